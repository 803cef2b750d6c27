"""Operations that move elements: broadcast, reshape, transpose, slice, pad, concatenate, iota."""

from __future__ import annotations

import numpy as np

from jax2tf_bridge.bytecode import DenseElements, Operation
from jax2tf_bridge.emitters._array import Array, Arrays, graph_dtype, make_integer
from jax2tf_bridge.emitters._movement import (
    broadcast,
    concatenate,
    iota,
    pad,
    reshape,
    resize,
    reverse,
    slice_array,
    transpose,
)
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.emitters._sizes import MIN_COMPUTED_AMOUNT, fill_sizes
from jax2tf_bridge.rewriting import DROP_AXES


@emits("constant")
def _constant(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    value = operation.attributes.get("value")
    if not isinstance(value, DenseElements):
        scope.fail(operation, f"its value is {value!r}")
    array, element = value.array(), operation.result_type.element
    if array.size and all(stride == 0 for stride in array.strides):
        array = array.reshape(-1)[0].reshape(())  # a single repeated element
    known = np.asarray(array).astype(graph_dtype(element).as_numpy_dtype, copy=False)
    return Array(element, scope.result_sizes(operation), known=known)


@emits("broadcast_in_dim", "dynamic_broadcast_in_dim")
def _broadcast_in_dim(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    array, *shape = operands
    sizes = scope.result_sizes(operation, *shape)
    return broadcast(scope, array, sizes, operation.ints("broadcast_dimensions"))


@emits("broadcast")
def _broadcast_leading(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (array,) = operands
    sizes = (*operation.ints("broadcast_sizes"), *array.sizes)
    return broadcast(scope, array, sizes, range(len(sizes) - array.rank, len(sizes)))


@emits("reshape", "dynamic_reshape")
def _reshape(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    array, *shape = operands
    return reshape(scope, array, scope.result_sizes(operation, *shape))


@emits("transpose")
def _transpose(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    return transpose(scope, operands[0], operation.ints("permutation"))


@emits(DROP_AXES)
def _drop_axes(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (array,) = operands
    dropped = operation.ints("dimensions")
    return reshape(scope, array, [n for i, n in enumerate(array.sizes) if i not in dropped])


@emits("get_dimension_size")
def _dimension_size(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    size = operands[0].sizes[operation.int("dimension")]
    return make_integer(operation.result_type.element, size)


@emits("set_dimension_size")
def _set_dimension_size(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    axis = operation.int("dimension")
    size = operands[1].integers
    if size is None or size[0] != operands[0].sizes[axis]:
        scope.fail(operation, f"{scope.runtime}'s tensors cannot be declared smaller than they are")
    return operands[0]


@emits("slice", "real_dynamic_slice")
def _slice(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    array, *bounds = operands
    if not bounds:
        starts = operation.ints("start_indices")
        limits = operation.ints("limit_indices")
        return slice_array(scope, array, starts, limits, operation.ints("strides"))
    known = [bound.integers for bound in bounds]
    columns_known = [column for column in known if column is not None]
    if len(columns_known) == 3:
        return slice_array(scope, array, *columns_known)
    vectors = [ops.cast(scope.tensor(bound), ops.int32) for bound in bounds]
    tensor = ops.strided_slice(scope.tensor(array), *vectors)
    tensor.set_shape(operation.result_type.shape)
    return scope.measure(tensor, array.element, operation.result_type.shape)


@emits("concatenate")
def _concatenate(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    return concatenate(scope, operands, operation.int("dimension"))


@emits("iota", "dynamic_iota")
def _iota(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    element, sizes = operation.result_type.element, scope.result_sizes(operation, *operands)
    return iota(scope, element, sizes, operation.int("iota_dimension"))


@emits("reverse")
def _reverse(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (array,) = operands
    return reverse(scope, array, operation.ints("dimensions"))


@emits("pad", "dynamic_pad")
def _pad(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    array, value, *amounts = operands
    if not amounts:
        low = operation.ints("edge_padding_low")
        high = operation.ints("edge_padding_high")
        return pad(scope, array, value, low, high, operation.ints("interior_padding"))
    unknown = [None] * array.rank
    columns = [scope.sizes_of(amount, unknown, least=MIN_COMPUTED_AMOUNT) for amount in amounts]
    result = pad(scope, array, value, *columns)
    return resize(result, fill_sizes(operation.result_type.shape, result.sizes))
