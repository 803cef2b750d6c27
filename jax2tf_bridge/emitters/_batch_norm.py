"""Batch normalization, which PyTorch/XLA writes as single operations.

See https://openxla.org/stablehlo/spec#batch_norm_grad and its neighbours for the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters import _converter_forms
from jax2tf_bridge.emitters._array import Array
from jax2tf_bridge.emitters._emitter import emits
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.emitters._shapes import broadcast


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
        """Reduces all axes but the feature axis."""
        others = [axis for axis in range(self.operand.rank) if axis != self.axis]
        sizes = [self.operand.sizes[self.axis]]
        return self.scope.new_array(function(tensor, others), self.operand.element, sizes)

    def result(self, tensor: ops.Tensor) -> Array:
        """Makes an array from a tensor with the operand's sizes."""
        return self.scope.new_array(tensor, self.operand.element, self.operand.sizes)


def _normalize(
    features: _Features, scale: Array, offset: Array, mean: Array, variance: Array
) -> Array:
    deviation = ops.sqrt(features.along(variance) + features.epsilon)
    centered = features.x - features.along(mean)
    return features.result(centered / deviation * features.along(scale) + features.along(offset))


@emits("batch_norm_inference")
def _inference(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    operand, scale, offset, mean, variance = operands
    return _normalize(_Features(scope, operation, operand), scale, offset, mean, variance)


@emits("batch_norm_training")
def _training(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    operand, scale, offset = operands
    features = _Features(scope, operation, operand)
    mean = features.reduce(ops.reduce_mean, features.x)
    square = _converter_forms.square if scope.for_converters else ops.square
    variance = features.reduce(ops.reduce_mean, square(features.x - features.along(mean)))
    return _normalize(features, scale, offset, mean, variance), mean, variance


@emits("batch_norm_grad")
def _grad(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
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
