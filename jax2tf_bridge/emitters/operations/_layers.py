"""Layers of neural networks: activations, biases, batch normalization, and fake quantization.

The rewriting makes most of these operations of several ones of StableHLO. PyTorch/XLA writes batch
normalization as single operations, whose formulas are those of
https://openxla.org/stablehlo/spec#batch_norm_grad and its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays
from jax2tf_bridge.emitters._movement import broadcast
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Emitter, Scope, emits
from jax2tf_bridge.emitters.formulas import converter_forms
from jax2tf_bridge.emitters.operations._elementwise import elementwise
from jax2tf_bridge.rewriting import BIAS_ADD, FAKE_QUANTIZE, LOG_SOFTMAX, RELU, RELU6, SOFTMAX


def _of_whole_tensors(function: Callable[..., ops.Tensor]) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Arrays) -> Array:
        tensor = function(*map(scope.tensor, operands))
        return scope.new_array(tensor, operands[0].element, operands[0].sizes)

    return emit


_bias_add = emits(BIAS_ADD)(_of_whole_tensors(ops.nn.bias_add))
_relu = emits(RELU)(elementwise(ops.nn.relu))
_relu6 = emits(RELU6)(elementwise(ops.nn.relu6))
_softmax = emits(SOFTMAX)(_of_whole_tensors(ops.nn.softmax))
_log_softmax = emits(LOG_SOFTMAX)(_of_whole_tensors(ops.nn.log_softmax))


# Batch normalization.


class _Features:
    """Operand with many values per feature; converts arrays with one value per feature."""

    def __init__(self, scope: Scope, operation: Operation, operand: Array) -> None:
        self.scope, self.operand = scope, operand
        self.axis = operation.int("feature_index")
        epsilon = operation.attributes["epsilon"]
        if not isinstance(epsilon, float) or not 0 <= self.axis < operand.rank:
            scope.fail(operation, f"its epsilon is {epsilon!r} and its feature_index {self.axis}")
        self.epsilon = epsilon
        self.x = scope.tensor(operand)

    def along(self, array: Array) -> ops.Tensor:
        """Converts an array of one value per feature to a tensor that broadcasts to the operand."""
        return self.scope.compact(broadcast(self.scope, array, self.operand.sizes, [self.axis]))

    def reduce(self, function: Callable[..., ops.Tensor], tensor: ops.Tensor) -> Array:
        others = [axis for axis in range(self.operand.rank) if axis != self.axis]
        sizes = [self.operand.sizes[self.axis]]
        return self.scope.new_array(function(tensor, others), self.operand.element, sizes)

    def result(self, tensor: ops.Tensor) -> Array:
        return self.scope.new_array(tensor, self.operand.element, self.operand.sizes)


def _normalize(
    features: _Features, scale: Array, offset: Array, mean: Array, variance: Array
) -> Array:
    deviation = ops.sqrt(features.along(variance) + features.epsilon)
    centered = features.x - features.along(mean)
    return features.result(centered / deviation * features.along(scale) + features.along(offset))


@emits("batch_norm_inference")
def _inference(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    operand, scale, offset, mean, variance = operands
    return _normalize(_Features(scope, operation, operand), scale, offset, mean, variance)


@emits("batch_norm_training")
def _training(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    operand, scale, offset = operands
    features = _Features(scope, operation, operand)
    mean = features.reduce(ops.reduce_mean, features.x)
    square = converter_forms.square if scope.for_converters else ops.square
    variance = features.reduce(ops.reduce_mean, square(features.x - features.along(mean)))
    return _normalize(features, scale, offset, mean, variance), mean, variance


@emits("batch_norm_grad")
def _grad(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    operand, scale, mean, variance, cotangent = operands
    features = _Features(scope, operation, operand)
    ct = scope.tensor(cotangent)
    inverse = ops.math.rsqrt(features.along(variance) + features.epsilon)
    normalized = (features.x - features.along(mean)) * inverse
    scaled = ct * normalized
    d_scale, d_offset = (features.reduce(ops.reduce_sum, x) for x in (scaled, ct))
    means = [features.along(features.reduce(ops.reduce_mean, x)) for x in (ct, scaled)]
    # The element's effects on the mean and the variance are subtracted from its cotangent.
    own = ct - means[0] - normalized * means[1]
    return features.result(own * inverse * features.along(scale)), d_scale, d_offset


# Rounding to the steps of few-bit integers, for consumers that then compute with integers.

_BITS = 8


@emits(FAKE_QUANTIZE)
def _emit_fake_quantize(scope: Scope, operation: Operation, operands: Arrays) -> Array:
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
        and all(map(_is_scalar, zero_points))
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
