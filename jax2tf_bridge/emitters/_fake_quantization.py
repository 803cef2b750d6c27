"""Rounding to the steps of few-bit integers, for consumers that then compute with integers."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array
from jax2tf_bridge.emitters._emitter import emits
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.rewriting import FAKE_QUANTIZE

_BITS = 8


@emits(FAKE_QUANTIZE)
def _emit_fake_quantize(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    array, scale, *zero_points = operands
    low, high = operation.int("low"), operation.int("high")
    x, step = scope.tensor(array), scope.compact(scale)
    zero_point = scope.compact(zero_points[0]) if zero_points else ops.constant(0.0)
    channels = [axis for axis in range(scale.rank) if not scale.repeats(axis)]
    if scope.for_onnx and len(channels) <= 1 and _fits_bytes(low, high):
        axis = channels[0] if channels else None
        tensor = ops.fake_quantize(x, step, zero_point, low=low, high=high, axis=axis)
    elif (
        scope.for_litert
        and not channels
        and not (zero_points and not _is_scalar(zero_points[0]))
        and operation.attributes["is_static"]
        and high - low in (2**_BITS - 2, 2**_BITS - 1)
    ):
        # The converter reads ranges, and finds the steps of weights by itself.
        step, zero_point = ops.reshape(step, []), ops.reshape(zero_point, [])
        least, most = ((ops.constant(float(n)) - zero_point) * step for n in (low, high))
        narrow = high - low == 2**_BITS - 2
        tensor = ops.quantization.fake_quant_with_min_max_vars(
            x, least, most, num_bits=_BITS, narrow_range=narrow
        )
    else:
        steps = ops.round(x / step) + zero_point
        steps = ops.minimum(ops.maximum(steps, float(low)), float(high))
        tensor = (steps - zero_point) * step
    return scope.new_array(tensor, array.element, array.sizes)


def _fits_bytes(low: int, high: int) -> bool:
    return (low >= -128 and high <= 127) or (low >= 0 and high <= 255)


def _is_scalar(array: Array) -> bool:
    return all(array.repeats(axis) for axis in range(array.rank))
