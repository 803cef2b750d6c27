"""Runs sizes above the largest bucket in pieces of it, and joins the results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from jax2tf_bridge.portable._dtypes import NARROW_FLOATS
from jax2tf_bridge.portable._portable_function import Aval
from jax2tf_bridge.saving.buckets._buckets import Bucketing, is_plain
from shape_poly import evaluate_shape

Run: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
"""From named tensors and the variables' values to named tensors."""


def carried_dtype(aval: Aval) -> tf.DType:
    """The dtype in which a tensor is padded, sliced and joined: mostly its own.

    TensorFlow has no kernels for that of 8-bit floating point numbers; float16 holds all of them.
    """
    return tf.float16 if aval.op_dtype in NARROW_FLOATS else tf.as_dtype(aval.op_dtype)


def in_pieces(run: Run, bucketing: Bucketing, variable: str) -> Run:
    """`run` for sizes of a variable above its largest bucket as well.

    Args:
      run: the function for sizes up to the largest bucket.
      bucketing: of which each input and output has the variable at most once, alone in its
        dimension.
      variable: along which to cut.
    """
    largest = bucketing.sizes[variable][-1]
    inputs, outputs = bucketing.given(), bucketing.outputs
    axes = {name: _axis(aval, variable) for name, aval in outputs.items()}

    def whole_or_pieces(tensors: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        size = values[variable]
        if isinstance(size, int):
            return run(tensors, values) if size <= largest else unrolled(tensors, values)
        # The first piece is computed outside of the branches, so that one of them computes nothing.
        # TensorFlow's gradient pairs the intermediate tensors of two branches by position, whatever
        # their dtypes, and logs "Type inference failed" where these differ.
        once = _as_function(run, values)
        first = piece(once, tensors, values, 0, tf.minimum(size, largest))
        rows = {name: part for name, part in first.items() if axes[name] is not None}
        if not rows:
            return first
        joined = tf.cond(
            size <= largest, lambda: rows, lambda: continued(once, tensors, values, rows)
        )
        return {**first, **joined}

    def piece(
        run: Run, tensors: Mapping[str, Any], values: Mapping[str, Any], start: Any, size: Any
    ) -> dict[str, Any]:
        cut = {
            name: _cut(tensors[name], _axis(aval, variable), start, size)
            for name, aval in inputs.items()
        }
        return run(cut, {**values, variable: size})

    def unrolled(tensors: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        size = values[variable]
        pieces = [
            piece(run, tensors, values, start, min(largest, size - start))
            for start in range(0, size, largest)
        ]
        joined = {}
        for name, axis in axes.items():
            parts = [part[name] for part in pieces]
            joined[name] = parts[0] if axis is None else tf.concat(parts, axis)
        return joined

    def continued(
        once: Run,
        tensors: Mapping[str, Any],
        values: Mapping[str, Any],
        first: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The results that begin with those of the first piece."""
        size = values[variable]
        count = tf.math.floordiv(size + (largest - 1), largest)

        def write(arrays: Mapping[str, Any], i: Any, part: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: array.write(i, _rows_first(part[name], axes[name]))
                for name, array in arrays.items()
            }

        def body(i: Any, arrays: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
            start = i * largest
            part = piece(once, tensors, values, start, tf.minimum(largest, size - start))
            return i + 1, write(arrays, i, part)

        arrays = {
            name: tf.TensorArray(
                carried_dtype(outputs[name]),
                size=count,
                infer_shape=False,
                element_shape=_rows_shape(outputs[name], variable, values),
            )
            for name in first
        }
        _, arrays = tf.while_loop(
            lambda i, _: i < count,
            body,
            (tf.constant(1), write(arrays, 0, first)),
            parallel_iterations=1,
        )
        joined = {}
        for name, array in arrays.items():
            joined[name] = _rows_back(array.concat(), axes[name])
            joined[name].set_shape(_known(outputs[name], values))
        return joined

    return whole_or_pieces


def _as_function(run: Run, values: Mapping[str, Any]) -> Run:
    """`run` as a function of the graph, called with such values.

    A SavedModel keeps gradients by function. TensorFlow does not find them again where the
    operation itself lies in the body of a loop or in a branch.
    """
    known = {name: value for name, value in values.items() if isinstance(value, int)}

    @functools.partial(tf.function, autograph=False)
    def function(tensors: dict[str, Any], unknown: dict[str, Any]) -> dict[str, Any]:
        return run(tensors, {**known, **unknown})

    def call(tensors: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        unknown = {name: value for name, value in values.items() if name not in known}
        return dict(function(dict(tensors), unknown))

    return call


def _axis(aval: Aval, variable: str) -> int | None:
    """The dimension that is the variable, if there is one."""
    return next((i for i, d in enumerate(aval.op_shape) if is_plain(d, variable)), None)


def _cut(tensor: Any, axis: int | None, start: Any, size: Any) -> Any:
    if axis is None:
        return tensor
    rank = tensor.shape.rank
    begin = tf.stack([start if i == axis else 0 for i in range(rank)])
    sizes = tf.stack([size if i == axis else -1 for i in range(rank)])
    cut = tf.slice(tensor, begin, sizes)
    known = tensor.shape.as_list()
    known[axis] = size if isinstance(size, int) else None
    cut.set_shape(known)
    return cut


def _known(aval: Aval, values: Mapping[str, Any]) -> tuple[int | None, ...]:
    known = {name: value for name, value in values.items() if isinstance(value, int)}
    return evaluate_shape(aval.op_shape, known)


def _rows_shape(aval: Aval, variable: str, values: Mapping[str, Any]) -> list[int | None]:
    """The shape of a part with the dimension that is the variable in front."""
    known, axis = list(_known(aval, values)), _axis(aval, variable)
    if axis is not None:
        known.insert(0, known.pop(axis))
    return known


def _rows_first(tensor: Any, axis: int | None) -> Any:
    if not axis:
        return tensor
    rank = tensor.shape.rank
    return tf.transpose(tensor, [axis, *(i for i in range(rank) if i != axis)])


def _rows_back(tensor: Any, axis: int | None) -> Any:
    if not axis:
        return tensor
    rank = tensor.shape.rank
    return tf.transpose(tensor, [*range(1, axis + 1), 0, *range(axis + 1, rank)])
