"""Runs sizes above the largest bucket in pieces of it, and joins the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._dtypes import NARROW_FLOATS
from jax2tf_bridge.saving.buckets._buckets import Bucketing, is_plain
from jax2tf_bridge.saving.buckets._piecewise import Kind, PieceGradients, Piecewise, Slot, cut
from shape_poly import evaluate_shape

Run: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
"""From named tensors and the variables' values to named tensors.

Tensors beside the inputs, as weights, are for all pieces the same.
"""


def carried_dtype(aval: Aval) -> tf.DType:
    """The dtype in which a tensor is padded, sliced and joined: mostly its own.

    TensorFlow has no kernels for that of 8-bit floating point numbers; float16 holds all of them.
    """
    return tf.float16 if aval.op_dtype in NARROW_FLOATS else tf.as_dtype(aval.op_dtype)


def in_pieces(
    run: Run, bucketing: Bucketing, variable: str, gradients: PieceGradients | None
) -> Run:
    """`run` for sizes of a variable above its largest bucket as well.

    Args:
      run: the function for sizes up to the largest bucket.
      bucketing: of which each input and output has the variable at most once, alone in its
        dimension.
      variable: along which to cut.
      gradients: where those of the pieces are collected, if they are saved.
    """
    largest = bucketing.sizes[variable][-1]
    inputs, outputs = bucketing.given(), bucketing.outputs
    axes = {name: _axis(aval, variable) for name, aval in outputs.items()}

    def whole_or_pieces(tensors: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        size = values[variable]
        if isinstance(size, int):
            return run(tensors, values) if size <= largest else unrolled(tensors, values)
        known = {name: value for name, value in values.items() if isinstance(value, int)}
        unknown = {name: value for name, value in values.items() if name not in known}

        arguments = {
            **{name: argument(name, tensor) for name, tensor in tensors.items()},
            **{f"sizes/{name}": size_argument(name, value) for name, value in unknown.items()},
        }

        def of_piece(*args: tf.Tensor) -> list[tf.Tensor]:
            part = dict(zip(arguments, args, strict=True))
            sizes = {name: part.pop(f"sizes/{name}") for name in unknown}
            results = run(part, {**known, **sizes})
            return [results[name] for name in outputs]

        def make() -> Piecewise:
            return Piecewise(
                tf.function(of_piece, autograph=False),
                largest,
                tuple(arguments.values()),
                tuple(result(name, known) for name in outputs),
                (lambda order: None) if gradients is None else gradients.prevented,
            )

        key = (variable, *known.items(), *arguments.items())
        piecewise = make() if gradients is None else gradients.piecewise(key, make)
        results = piecewise(*tensors.values(), *unknown.values())
        return dict(zip(outputs, results, strict=True))

    def argument(name: str, tensor: Any) -> Slot:
        axis = _axis(inputs[name], variable) if name in inputs else None
        return Slot("whole" if axis is None else axis, tf.TensorSpec(tensor.shape, tensor.dtype))

    def size_argument(name: str, value: Any) -> Slot:
        kind: Kind = "size" if name == variable else "whole"
        return Slot(kind, tf.TensorSpec((), value.dtype))

    def result(name: str, known: Mapping[str, int]) -> Slot:
        aval, axis = outputs[name], axes[name]
        spec = tf.TensorSpec(evaluate_shape(aval.op_shape, known), carried_dtype(aval))
        return Slot("first" if axis is None else axis, spec)

    def unrolled(tensors: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        size = values[variable]
        pieces = []
        for start in range(0, size, largest):
            part = dict(tensors)
            rows = min(largest, size - start)
            for name, aval in inputs.items():
                if (axis := _axis(aval, variable)) is not None:
                    part[name] = cut(tensors[name], axis, start, rows)
            pieces.append(run(part, {**values, variable: rows}))
        joined = {}
        for name, axis in axes.items():
            parts = [part[name] for part in pieces]
            joined[name] = parts[0] if axis is None else tf.concat(parts, axis)
        return joined

    return whole_or_pieces


def _axis(aval: Aval, variable: str) -> int | None:
    """The dimension that is the variable, if there is one."""
    return next((i for i, d in enumerate(aval.op_shape) if is_plain(d, variable)), None)
