"""Makes batched TensorFlow functions for jax.vmap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from jax2tf_bridge.calling_tf._functions import (
    FlatFunction,
    FunctionTrace,
    Results,
    suspend_tracing,
)
from jax2tf_bridge.calling_tf._shapes import compute_result_shapes
from jax2tf_bridge.calling_tf._values import get_aval
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.portable import Aval


def make_batched(function: FlatFunction, batched: Sequence[bool]) -> FlatFunction:
    """Makes a batched function, with the batch along the first axis of arguments and results.

    Args:
      function: the function of one row.
      batched: for each flat argument, whether it has a batch axis.
    """
    key = ("batch", tuple(batched))
    return function.derive_function(key, lambda: _Batch(function, tuple(batched)))


class _Batch(FlatFunction):
    """A batched function: tf.vectorized_map if TensorFlow supports it, otherwise tf.map_fn.

    Functions with side effects or random numbers are called row by row.
    """

    def __init__(self, function: FlatFunction, batched: tuple[bool, ...]) -> None:
        super().__init__(function.name, replace(function.options, declared=None))
        self._function, self._batched = function, batched
        self._vectorizable: dict[Any, tuple[bool]] = {}

    def known_shapes(
        self, avals: Sequence[Aval], shapes: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        """Returns the batch size, followed by the shape of one row, for each result."""
        row_avals = [
            Aval(aval.shape[1:] if batched else aval.shape, aval.dtype)
            for aval, batched in zip(avals, self._batched, strict=True)
        ]
        row_shapes = [s[1:] if b else s for s, b in zip(shapes, self._batched, strict=True)]
        size = self._size(shapes)
        return [
            (size, *shape) for shape in compute_result_shapes(self._function, row_avals, row_shapes)
        ]

    def run(self, tensors: Sequence[tf.Tensor]) -> Results:
        size = self._size([t.shape for t in tensors])
        if size == 0:
            row = self._trace_row(tensors)
            return [tf.zeros([0, *t.shape], t.dtype) for t in row.results], row.structure
        if tf.executing_eagerly():
            traced = self._trace_vectorized(tensors)
            if traced is not None:
                return traced(*tensors), traced.structure
            rows = [self._function.run(self._row(tensors, i)) for i in range(size)]
            columns = zip(*(results for results, _ in rows), strict=True)
            return [tf.stack(column) for column in columns], rows[0][1]
        row = self._trace_row(tensors)
        if not row.results:
            return [], row.structure
        if self._is_vectorizable(tensors, row):
            mapped = self._map(tensors, row, _map_vectorized)
        else:
            specs = [tf.TensorSpec(t.shape, t.dtype) for t in row.results]
            mapped = self._map(
                tensors, row, lambda f, xs: tf.map_fn(f, xs, fn_output_signature=specs)
            )
        return list(mapped), row.structure

    def _size(self, shapes: Sequence[Any]) -> Any:
        return next(s[0] for s, batched in zip(shapes, self._batched, strict=True) if batched)

    def _row(self, tensors: Sequence[tf.Tensor], i: int) -> list[tf.Tensor]:
        return [t[i] if b else t for t, b in zip(tensors, self._batched, strict=True)]

    def _trace_row(self, tensors: Sequence[tf.Tensor]) -> FunctionTrace:
        return self._function.traced(
            [
                Aval(tuple(t.shape[1:] if b else t.shape), t.dtype.name)
                for t, b in zip(tensors, self._batched, strict=True)
            ]
        )

    def _map(
        self, tensors: Sequence[tf.Tensor], row: FunctionTrace, map_function: Any
    ) -> Sequence[tf.Tensor]:
        """Maps the function over the batched tensors; the others are closed over."""
        # In the body of a loop, a tape cannot differentiate a branch, but it can differentiate a
        # call of a function that has one.
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
            # A function that only runs eagerly has no graph at all.
            if self._is_vectorizable(tensors, self._trace_row(tensors)):
                return self.traced([get_aval(t) for t in tensors])
        except BridgeError:
            pass
        return None

    def _is_vectorizable(self, tensors: Sequence[tf.Tensor], row: FunctionTrace) -> bool:
        avals = tuple(get_aval(t) for t in tensors)
        (is_vectorizable,) = self.get_or_make(
            self._vectorizable, avals, lambda: (self._can_be_vectorized(avals, row),)
        )
        return bool(is_vectorizable)

    def _can_be_vectorized(self, avals: Sequence[Aval], row: FunctionTrace) -> bool:
        """Returns whether TensorFlow can vectorize every operation, by tracing it."""
        # Vectorized branches and loops partition rows dynamically, and XLA needs static sizes.
        if row.stateful_operations() or row.has_control_flow():
            return False

        def attempt(*tensors: tf.Tensor) -> Sequence[tf.Tensor]:
            return self._map(tensors, row, _map_vectorized)

        specs = [tf.TensorSpec(aval.shape, tf.as_dtype(aval.dtype)) for aval in avals]
        try:
            with suspend_tracing():
                concrete = tf.function(attempt, autograph=False).get_concrete_function(*specs)
        except (ValueError, TypeError, NotImplementedError, LookupError):
            return False
        size = self._size([aval.shape for aval in avals])
        expected = [(size, *t.shape) for t in row.results]
        return [tuple(t.shape) for t in concrete.outputs] == expected


def _map_vectorized(f: Any, tensors: Any) -> Any:
    return tf.vectorized_map(f, tensors, fallback_to_while_loop=False)
