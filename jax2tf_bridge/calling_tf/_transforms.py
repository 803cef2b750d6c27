"""Transforms TensorFlow functions: batches them for jax.vmap, and makes their VJPs."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import tensorflow as tf

from jax2tf_bridge.calling_tf import _tf_compat
from jax2tf_bridge.calling_tf._failures import (
    convert_gradient_errors,
    make_gradient_not_saved_error,
)
from jax2tf_bridge.calling_tf._functions import (
    FlatFunction,
    FunctionTrace,
    Results,
    suspend_tracing,
)
from jax2tf_bridge.calling_tf._shapes import compute_result_shapes
from jax2tf_bridge.calling_tf._values import get_aval
from jax2tf_bridge.errors import BridgeError, GradientError
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.to_tensorflow import convert_cotangent


def make_batch_function(function: FlatFunction, batched: Sequence[bool]) -> FlatFunction:
    """Makes a batched function, with the batch along the first axis of arguments and results.

    Args:
      function: the function of one row.
      batched: for each flat argument, whether it has a batch axis.
    """
    return function.get_or_make(
        ("batch", *batched), lambda: _BatchFunction(function, tuple(batched))
    )


class _BatchFunction(FlatFunction):
    """A batched function: tf.vectorized_map if TensorFlow supports it, otherwise tf.map_fn.

    Functions with side effects or random numbers are called row by row.
    """

    def __init__(self, function: FlatFunction, batched: tuple[bool, ...]) -> None:
        super().__init__(function.name, replace(function.options, declared=None))
        self._function, self._batched = function, batched

    def find_known_shapes(
        self, avals: Sequence[Aval], shapes: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        """Returns the batch size, followed by the shape of one row, for each result."""
        row_avals = self._get_row_avals(avals)
        row_shapes = [s[1:] if b else s for s, b in zip(shapes, self._batched, strict=True)]
        size = self._get_batch_size(shapes)
        return [
            (size, *shape) for shape in compute_result_shapes(self._function, row_avals, row_shapes)
        ]

    def run(self, tensors: Sequence[tf.Tensor]) -> Results:
        size = self._get_batch_size([t.shape for t in tensors])
        if size == 0:
            row = self._trace_row(tensors)
            return [tf.zeros([0, *t.shape], t.dtype) for t in row.results], row.structure
        if tf.executing_eagerly():
            trace = self._trace_vectorized(tensors)
            if trace is not None:
                return trace(*tensors), trace.structure
            rows = [self._function.run(self._get_row(tensors, i)) for i in range(size)]
            columns = zip(*(results for results, _ in rows), strict=True)
            return [tf.stack(column) for column in columns], rows[0][1]
        row = self._trace_row(tensors)
        if not row.results:
            return [], row.structure
        map_function: Any = _map_vectorized
        if not self._is_vectorizable(tensors, row):
            map_function = functools.partial(tf.map_fn, fn_output_signature=list(row.results))
        return list(self._map(tensors, row, map_function)), row.structure

    def _get_batch_size(self, shapes: Sequence[Any]) -> Any:
        return next(s[0] for s, batched in zip(shapes, self._batched, strict=True) if batched)

    def _get_row(self, tensors: Sequence[tf.Tensor], i: int) -> list[tf.Tensor]:
        return [t[i] if b else t for t, b in zip(tensors, self._batched, strict=True)]

    def _trace_row(self, tensors: Sequence[tf.Tensor]) -> FunctionTrace:
        return self._function.get_trace(self._get_row_avals([get_aval(t) for t in tensors]))

    def _get_row_avals(self, avals: Sequence[Aval]) -> list[Aval]:
        return [
            Aval(aval.shape[1:] if b else aval.shape, aval.dtype)
            for aval, b in zip(avals, self._batched, strict=True)
        ]

    def _map(
        self, tensors: Sequence[tf.Tensor], row: FunctionTrace, map_function: Any
    ) -> Sequence[tf.Tensor]:
        """Maps the function over the batched tensors; the other tensors are captured."""
        # A tape cannot differentiate a branch in the body of a loop, but it can differentiate a
        # call of a function with a branch.
        call: Any = (
            row
            if row.has_control_flow()
            else lambda *row_tensors: self._function.run(row_tensors)[0]
        )

        def run_row(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            batched = iter(values)
            row_tensors = [
                next(batched) if b else t for t, b in zip(tensors, self._batched, strict=True)
            ]
            return list(call(*row_tensors))

        batched = [t for t, b in zip(tensors, self._batched, strict=True) if b]
        results: Sequence[tf.Tensor] = map_function(run_row, batched)
        return results

    def _trace_vectorized(self, tensors: Sequence[tf.Tensor]) -> FunctionTrace | None:
        """Traces the vectorized function for these tensors; None if it cannot be vectorized."""
        try:
            # Tracing fails for a function that only runs eagerly.
            if self._is_vectorizable(tensors, self._trace_row(tensors)):
                return self.get_trace([get_aval(t) for t in tensors])
        except BridgeError:
            pass
        return None

    def _is_vectorizable(self, tensors: Sequence[tf.Tensor], row: FunctionTrace) -> bool:
        avals = [get_aval(t) for t in tensors]
        return self.get_or_make(
            ("vectorizable", *avals), lambda: self._try_to_vectorize(avals, row)
        )

    def _try_to_vectorize(self, avals: Sequence[Aval], row: FunctionTrace) -> bool:
        """Returns whether TensorFlow can vectorize every operation, by tracing it."""
        # Vectorized branches and loops partition rows dynamically, and XLA needs static sizes.
        if row.list_stateful_operations() or row.has_control_flow():
            return False

        def attempt(*tensors: tf.Tensor) -> Sequence[tf.Tensor]:
            return self._map(tensors, row, _map_vectorized)

        specs = [tf.TensorSpec(aval.shape, tf.as_dtype(aval.dtype)) for aval in avals]
        try:
            with suspend_tracing():
                concrete = tf.function(attempt, autograph=False).get_concrete_function(*specs)
        except (ValueError, TypeError, NotImplementedError, LookupError):
            return False
        size = self._get_batch_size([aval.shape for aval in avals])
        expected = [(size, *t.shape) for t in row.results]
        return [tuple(t.shape) for t in concrete.outputs] == expected


def _map_vectorized(f: Any, tensors: Any) -> Any:
    return tf.vectorized_map(f, tensors, fallback_to_while_loop=False)


_RANDOM_OPERATION = re.compile(
    r"^(Random|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal|Rng|Stateful(?!Partitioned))"
)


def make_vjp(function: FlatFunction, places: Sequence[int], results: Sequence[int]) -> FlatFunction:
    """Makes the VJP of a function.

    Args:
      function: a function of n flat arguments.
      places: the indices of the arguments to differentiate with respect to.
      results: the indices of the results that have cotangents.

    Returns:
      A function of the n arguments and the cotangents, which returns a cotangent per place.
    """
    return function.get_or_make(
        ("gradient", tuple(places), tuple(results)),
        lambda: _GradientFunction(function, tuple(places), tuple(results)),
    )


class _GradientFunction(FlatFunction):
    def __init__(
        self, function: FlatFunction, places: tuple[int, ...], results: tuple[int, ...]
    ) -> None:
        options = replace(function.options, declared=None)
        super().__init__(f"the gradient of {function.name}", options)
        self._function, self._places, self._results = function, places, results

    def find_known_shapes(
        self, avals: Sequence[Aval], shapes: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        """Returns the shapes of the arguments that it differentiates with respect to."""
        return [shapes[i] for i in self._places]

    def run(self, tensors: Sequence[tf.Tensor]) -> Results:
        _tf_compat.check_tapes_record(self._function.name)
        n_primals = len(tensors) - len(self._results)
        primals, cotangents = list(tensors[:n_primals]), tensors[n_primals:]
        with convert_gradient_errors(self._function.name):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                # Copies, because two arguments may be the same tensor.
                watched = [tf.identity(primals[i]) for i in self._places]
                tape.watch(watched)
                for i, tensor in zip(self._places, watched, strict=True):
                    primals[i] = tensor
                # For a tf.function, this call already looks up the gradients.
                outputs, _ = self._function.run(primals)
                targets = [tf.identity(outputs[i]) for i in self._results]
            gradients = tape.gradient(
                targets,
                watched,
                output_gradients=[convert_cotangent(cotangent) for cotangent in cotangents],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        # The gradient of tf.gather is a tf.IndexedSlices.
        results = [
            tf.cast(convert_cotangent(tf.convert_to_tensor(gradient)), tensor.dtype)
            for gradient, tensor in zip(gradients, watched, strict=True)
        ]
        self._check_no_random_numbers(tensors, results)
        return results, jax.tree_util.tree_structure(results)

    def _trace(self, avals: Sequence[Aval]) -> FunctionTrace:
        trace = super()._trace(avals)
        if any(map(tf.is_symbolic_tensor, trace.concrete.captured_inputs)):
            raise make_gradient_not_saved_error(self._function.name)
        return trace

    def _check_no_random_numbers(
        self, tensors: Sequence[tf.Tensor], results: Sequence[Any]
    ) -> None:
        """Raises GradientError if gradients depend on random numbers, which differ in each run."""
        if not tf.executing_eagerly():
            operation = _find_random_operation(results)
            if operation is None:
                return
            raise GradientError(
                f"The TensorFlow function {self._function.name} draws random numbers ({operation}) "
                "that its gradient depends on. The gradient would run it again with other numbers, "
                "and be wrong. Draw them with stateless operations, such as "
                "tf.random.stateless_uniform, and pass the seed as an argument."
            )
        n_primals = len(tensors) - len(self._results)
        avals = [get_aval(t) for t in tensors]
        try:
            operations = self._function.get_trace(avals[:n_primals]).list_stateful_operations()
        except BridgeError:
            return  # the function only runs eagerly, so there is no graph to inspect
        if any(map(_RANDOM_OPERATION.search, operations)):
            self.get_trace(avals)


def _find_random_operation(results: Sequence[tf.Tensor]) -> str | None:
    if not results:
        return None
    random_operations = list(
        filter(_RANDOM_OPERATION.search, _tf_compat.list_stateful_operation_types(results[0].graph))
    )
    if not random_operations:
        return None
    pending, seen = [t.op for t in results], set()
    while pending:
        op = pending.pop()
        if op in seen:
            continue
        seen.add(op)
        # Treats every call as possibly random; its body is not inspected.
        if _RANDOM_OPERATION.search(op.type) or op.type == "StatefulPartitionedCall":
            return random_operations[0]
        pending += [t.op for t in op.inputs]
    return None
