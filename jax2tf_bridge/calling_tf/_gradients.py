"""Makes gradients of TensorFlow functions."""

from __future__ import annotations

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
from jax2tf_bridge.calling_tf._functions import FlatFunction, FunctionTrace, Results
from jax2tf_bridge.calling_tf._values import get_aval
from jax2tf_bridge.errors import BridgeError, GradientError
from jax2tf_bridge.portable import Aval

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
    key = ("gradient", tuple(places), tuple(results))
    return function.derive_function(
        key, lambda: _GradientFunction(function, tuple(places), tuple(results))
    )


class _GradientFunction(FlatFunction):
    def __init__(
        self, function: FlatFunction, places: tuple[int, ...], results: tuple[int, ...]
    ) -> None:
        options = replace(function.options, declared=None)
        super().__init__(f"the gradient of {function.name}", options)
        self._function, self._places, self._results = function, places, results

    def known_shapes(
        self, avals: Sequence[Aval], shapes: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        """Returns the shapes of the arguments that it differentiates with respect to."""
        return [shapes[i] for i in self._places]

    def run(self, tensors: Sequence[tf.Tensor]) -> Results:
        _tf_compat.check_tapes_record(self._function.name)
        count = len(tensors) - len(self._results)
        primals, cotangents = list(tensors[:count]), tensors[count:]
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
                output_gradients=[_conjugate(cotangent) for cotangent in cotangents],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        # The gradient of tf.gather is a tf.IndexedSlices.
        dense = [
            tf.cast(_conjugate(tf.convert_to_tensor(gradient)), tensor.dtype)
            for gradient, tensor in zip(gradients, watched, strict=True)
        ]
        self._check_no_random_numbers(tensors, dense)
        return dense, jax.tree_util.tree_structure(dense)

    def _trace(self, avals: Sequence[Aval]) -> FunctionTrace:
        traced = super()._trace(avals)
        if any(map(tf.is_symbolic_tensor, traced.concrete.captured_inputs)):
            raise make_gradient_not_saved_error(self._function.name)
        return traced

    def _check_no_random_numbers(
        self, tensors: Sequence[tf.Tensor], results: Sequence[Any]
    ) -> None:
        """Raises GradientError if gradients depend on random numbers, which a rerun draws again."""
        if not tf.executing_eagerly():
            operation = _find_random_operation(results)
            if operation is None:
                return
            raise GradientError(
                f"The TensorFlow function {self._function.name} draws random numbers ({operation}) "
                "that its gradient depends on. The gradient runs it again, with others: it would "
                "be wrong. Draw them by tf.random.stateless_uniform and its like, with a seed that "
                "is an argument."
            )
        count = len(tensors) - len(self._results)
        avals = [get_aval(t) for t in tensors]
        try:
            operations = self._function.traced(avals[:count]).stateful_operations()
        except BridgeError:
            return  # the function only runs eagerly, so there is no graph to inspect
        if any(map(_RANDOM_OPERATION.search, operations)):
            self.traced(avals)


def _find_random_operation(results: Sequence[tf.Tensor]) -> str | None:
    """Finds a random operation that tensors of a graph depend on."""
    if not results:
        return None
    random_operations = list(
        filter(_RANDOM_OPERATION.search, _tf_compat.list_stateful_operation_types(results[0].graph))
    )
    if not random_operations:
        return None
    waiting, seen = [t.op for t in results], set()
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        # Treats every call as possibly random; its body is not inspected.
        if _RANDOM_OPERATION.search(op.type) or op.type == "StatefulPartitionedCall":
            return random_operations[0]
        waiting += [t.op for t in op.inputs]
    return None


def _conjugate(value: tf.Tensor) -> tf.Tensor:
    """Converts complex cotangents between JAX's convention and TensorFlow's.

    JAX multiplies a cotangent by the Jacobian, TensorFlow by the conjugate of the Jacobian.
    """
    return tf.math.conj(value) if value.dtype.is_complex else value
