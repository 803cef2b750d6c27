"""Reductions with any body: TensorFlow's own ones if possible; others halve the axis in steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from jax2tf_bridge.bytecode import Block, Operation
from jax2tf_bridge.emitters._array import Array, Arrays, graph_dtype
from jax2tf_bridge.emitters._folding import convert_array
from jax2tf_bridge.emitters._movement import (
    broadcast,
    concatenate,
    fit_sizes,
    multiply_sizes,
    reshape,
    resize,
    transpose,
)
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Emitter, Scope, emits
from jax2tf_bridge.emitters.formulas import converter_forms
from jax2tf_bridge.emitters.formulas.integers import wrap
from jax2tf_bridge.rewriting import COMBINE, EXTREME_AND_INDEX, REDUCE, Reducer
from shape_poly import Dim

Combine: TypeAlias = "Callable[[Scope, Arrays, Arrays], list[Array]]"
"""Function that applies a reducer to arrays of equal sizes, elementwise, in this order."""

_OF_FLAGS: Mapping[str, Callable[..., ops.Tensor]] = MappingProxyType(
    {"and": ops.reduce_all, "or": ops.reduce_any}
)
_OF_NUMBERS: Mapping[str, Callable[..., ops.Tensor]] = MappingProxyType(
    {
        "add": ops.reduce_sum,
        "multiply": ops.reduce_prod,
        "maximum": ops.reduce_max,
        "minimum": ops.reduce_min,
    }
)
_IDEMPOTENT = frozenset({"and", "or", "maximum", "minimum"})


def _reduce_by_body(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    half = len(operands) // 2
    arrays, inits = operands[:half], operands[half:]
    (block,) = operation.regions
    return reduce_by(scope, make_combine(block), arrays, inits, operation.ints("dimensions"))


_reduce = emits("reduce")(_reduce_by_body)


@emits(REDUCE)
def _reduce_from_identity(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    reducer = Reducer(operation.text("reducer"), operation.text("element"))
    axes, keeps_axes = operation.ints("dimensions"), operation.flag("keeps_axes")
    return reduce_axes(scope, reducer, operands[0], axes, keeps_axes=keeps_axes)


@emits(COMBINE)
def _combine(scope: Scope, operation: Operation, operands: Arrays) -> list[Array]:
    half = len(operands) // 2
    return make_combine(operation.regions[0])(scope, operands[:half], operands[half:])


def make_combine(block: Block) -> Combine:
    """Returns a function that applies the block of a reducer."""

    def combine(scope: Scope, left: Arrays, right: Arrays) -> list[Array]:
        sizes = max((array.sizes for array in (*left, *right)), key=len)
        results = scope.new_region().run(block, [*left, *right])
        return [fit_sizes(scope, result, sizes) for result in results]

    return combine


# Reducers that TensorFlow has.


def reduce_axes(
    scope: Scope, reducer: Reducer, array: Array, axes: Sequence[int], *, keeps_axes: bool = False
) -> Array:
    """Reduces axes with TensorFlow's operation, starting from the identity.

    The axes stay with size 1 if `keeps_axes` is true.
    """
    wide = _widen(scope, convert_array(scope, array, reducer.element))
    result = _reduce_compact(scope, reducer.name, wide, sorted(axes), keeps_axes)
    return convert_array(scope, result, array.element)


def _widen(scope: Scope, array: Array) -> Array:
    """Converts 8-bit floats, which TensorFlow does not reduce, to float32."""
    return convert_array(scope, array, "f32") if array.element.startswith("f8") else array


def _reduce_compact(
    scope: Scope, name: str, array: Array, axes: Sequence[int], keeps_axes: bool
) -> Array:
    left = [axis for axis in range(array.rank) if axis not in axes]
    sizes = tuple(array.sizes[axis] for axis in left)
    whole = tuple(1 if axis in axes else size for axis, size in enumerate(array.sizes))
    repeated = [axis for axis in axes if array.repeats(axis) and array.sizes[axis] != 1]
    times = multiply_sizes(array.sizes[axis] for axis in repeated)
    if not _may_be_compact(scope, name, array, times):
        array, times = scope.full(array), 1
    compact = scope.compact(array)
    first = array.rank - compact.shape.rank
    there = [axis - first for axis in axes if axis >= first]
    if all(array.repeats(axis) for axis in axes):
        tensor = ops.squeeze(compact, there) if there else compact
    elif keeps_axes and not first and not repeated:
        tensor = reduce_tensor(name, compact, there, keepdims=True)
        return scope.new_array(wrap(array.element, tensor), array.element, whole)
    else:
        tensor = reduce_tensor(name, compact, there)
    if name == "add" and times != 1:
        tensor = tensor * scope.sizes.number(times, tensor.dtype)
    result = scope.new_array(wrap(array.element, tensor), array.element, sizes)
    return broadcast(scope, result, whole, left) if keeps_axes else result


def _may_be_compact(scope: Scope, name: str, array: Array, times: Dim) -> bool:
    """Returns whether repeated elements can be reduced in compact form."""
    if times == 1:
        return True
    if name in _IDEMPOTENT:
        return scope.sizes.bounds(times)[0] >= 1
    # A multiplication is at least as exact as a sum, but 0 * infinity is not an empty sum.
    is_wide = array.row.is_integer or array.row.bits >= 32
    return name == "add" and is_wide and scope.sizes.bounds(times)[0] >= 1


def reduce_tensor(
    name: str, tensor: ops.Tensor, axes: Sequence[int], *, keepdims: bool = False
) -> ops.Tensor:
    """Reduces axes of a tensor with a reducer that TensorFlow has."""
    if tensor.dtype != ops.bool:
        return _OF_NUMBERS[name](tensor, axes, keepdims)
    if name == "xor":
        ones = ops.reduce_sum(ops.cast(tensor, ops.int32), axes, keepdims)
        return ops.not_equal(ops.bitwise.bitwise_and(ones, 1), 0)
    return _OF_FLAGS[name](tensor, axes, keepdims)


# The first extreme number and its index.


@emits(EXTREME_AND_INDEX)
def _extreme_and_index(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    array, indices, *_ = operands
    name, element = operation.text("extreme"), array.element
    array = _widen(scope, array)
    (axis,) = operation.ints("dimensions")
    if scope.sizes.bounds(array.sizes[axis])[0] < 1:
        return _reduce_by_body(scope, operation, operands)
    if array.repeats(axis):
        array = scope.full(array)
    compact = scope.compact(array)
    place = axis - (array.rank - compact.shape.rank)
    sizes = tuple(size for i, size in enumerate(array.sizes) if i != axis)
    dtype = ops.int64 if graph_dtype(indices.element).size == 8 else ops.int32
    if array.row.kind == "float":
        # TensorFlow's argmax does not find NaN, which is the most extreme, and equals nothing.
        best = reduce_tensor(name, compact, [place], keepdims=True)
        is_best = ops.logical_or(ops.equal(compact, best), ops.math.is_nan(compact))
        if scope.for_converters:  # ONNX has no ArgMax of bools
            is_best = ops.cast(is_best, ops.int32)
        index = ops.argmax(is_best, place, output_type=dtype)
        value = ops.squeeze(best, place)
    else:
        search = ops.argmin if name == "minimum" else ops.argmax
        index = search(compact, place, output_type=dtype)
        reducer = {"maximum": "or", "minimum": "and"}[name] if element == "i1" else name
        value = reduce_tensor(reducer, compact, [place])
    index = ops.cast(index, graph_dtype(indices.element))
    best_number = convert_array(scope, scope.new_array(value, array.element, sizes), element)
    return [best_number, scope.new_array(index, indices.element, sizes)]


# Any other reducer.


def reduce_by(
    scope: Scope, combine: Combine, arrays: Arrays, inits: Arrays, axes: Sequence[int]
) -> list[Array]:
    """Reduces axes with any reducer, by combining neighbours until one element remains."""
    rest_axes = [axis for axis in range(arrays[0].rank) if axis not in axes]
    rest = tuple(arrays[0].sizes[axis] for axis in rest_axes)
    length = multiply_sizes(arrays[0].sizes[axis] for axis in axes)
    columns = [
        reshape(scope, transpose(scope, array, [*sorted(axes), *rest_axes]), (length, *rest))
        for array in arrays
    ]
    starts = [broadcast(scope, init, rest, ()) for init in inits]
    if length == 0:
        return starts
    if isinstance(length, int):
        while length > 1:
            columns = _halve(scope, combine, columns, length)
            length -= length // 2
        return combine(scope, starts, [reshape(scope, row, rest) for row in columns])
    # The initial value comes first, so that there is at least one element.
    long = [
        concatenate(scope, [reshape(scope, start, (1, *rest)), column], 0)
        for start, column in zip(starts, columns, strict=True)
    ]
    return _halve_in_loop(scope, combine, long)


def _rows(scope: Scope, array: Array, index: slice, size: Dim) -> Array:
    """Slices the first axis; unlike `slice_axis` keeps it if it has a single element."""
    sizes = (size, *array.sizes[1:])
    if array.repeats(0):
        return resize(array, sizes)
    return scope.new_array(scope.compact(array)[index], array.element, sizes)


def _halve(scope: Scope, combine: Combine, columns: Arrays, length: Any) -> list[Array]:
    """Combines neighbouring rows; the number of rows is an int or a tensor."""
    half = length // 2
    size, left = half, length - 2 * half
    if not isinstance(length, int):
        size, left = scope.sizes.new_size(half), scope.sizes.new_size(left)
    even = [_rows(scope, column, slice(0, 2 * half, 2), size) for column in columns]
    odd = [_rows(scope, column, slice(1, 2 * half, 2), size) for column in columns]
    results = combine(scope, even, odd)
    if left == 0:
        return results
    last = [_rows(scope, column, slice(2 * half, None), left) for column in columns]
    return [concatenate(scope, pair, 0) for pair in zip(results, last, strict=True)]


def _halve_in_loop(scope: Scope, combine: Combine, columns: Arrays) -> list[Array]:
    def step(inner: Scope, length: ops.Tensor, arrays: Arrays) -> tuple[ops.Tensor, list[Array]]:
        return length - length // 2, _halve(inner, combine, arrays, length)

    length = scope.sizes.number(columns[0].sizes[0], ops.int32)
    tensors = scope.loop(length, lambda length: length > 1, step, columns, is_open=True)
    return scope.new_arrays((tensor[0] for tensor in tensors), columns, columns[0].sizes[1:])


# Cumulative reductions along an axis, with any reducer.

_MAX_UNROLLED = 32
"""Maximum length of an axis whose steps are unrolled rather than made as a loop."""


def sum_along(scope: Scope, array: Array, axis: int, backwards: bool) -> Array:
    """Sums up to each element, or from each one to the end.

    It is the only running reduction that LiteRT and ONNX know as well.
    """
    wide = _widen(scope, array)
    tensor = ops.cumsum(scope.tensor(wide), axis, reverse=backwards)
    result = scope.new_array(wrap(wide.element, tensor), wide.element, array.sizes)
    return convert_array(scope, result, array.element)


def reduce_along(
    scope: Scope, combine: Combine, arrays: Arrays, axis: int, backwards: bool
) -> list[Array]:
    """Reduces up to each element, or from each one to the end, with any associative reducer.

    After k steps, each element is reduced with those at most 2**k - 1 positions away.
    """
    rank = arrays[0].rank
    order = [axis, *(a for a in range(rank) if a != axis)]
    back = [order.index(a) for a in range(rank)]
    columns = [scope.full(transpose(scope, array, order)) for array in arrays]
    length = columns[0].sizes[0]
    if isinstance(length, int) and length <= _MAX_UNROLLED:
        step = 1
        while step < length:
            columns = _step(scope, combine, columns, step, length - step, backwards)
            step *= 2
    else:
        columns = _step_in_loop(scope, combine, columns, backwards)
    return [transpose(scope, column, back) for column in columns]


def _step(
    scope: Scope, combine: Combine, columns: Arrays, step: Any, rest: Any, backwards: bool
) -> list[Array]:
    """Combines each element with the one `step` positions away; `rest` elements have one."""
    tensors = [scope.tensor(column) for column in columns]
    number = rest if isinstance(rest, int) else scope.sizes.new_size(rest)

    def parts(begin: Any, end: Any) -> list[Array]:
        sizes = (number, *columns[0].sizes[1:])
        return scope.new_arrays((tensor[begin:end] for tensor in tensors), columns, sizes)

    combined = combine(scope, parts(None, rest), parts(step, None))
    result: list[Array] = []
    for tensor, column, part in zip(tensors, columns, combined, strict=True):
        unchanged = tensor[rest:] if backwards else tensor[:step]
        pair = [scope.tensor(part), unchanged] if backwards else [unchanged, scope.tensor(part)]
        result.append(scope.new_array(ops.concat(pair, 0), column.element, column.sizes))
    return result


def _step_in_loop(scope: Scope, combine: Combine, columns: Arrays, backwards: bool) -> list[Array]:
    length = scope.sizes.number(columns[0].sizes[0], ops.int32)

    def step(inner: Scope, width: ops.Tensor, arrays: Arrays) -> tuple[ops.Tensor, list[Array]]:
        return width * 2, _step(inner, combine, arrays, width, length - width, backwards)

    tensors = scope.loop(ops.constant(1), lambda width: width < length, step, columns)
    return scope.new_arrays(tensors, columns)


# Composites of the cumulative functions.


def _elementwise(function: Callable[..., ops.Tensor]) -> Combine:
    def combine(scope: Scope, left: Arrays, right: Arrays) -> list[Array]:
        return [
            scope.new_array(
                wrap(a.element, function(scope.compact(a), scope.compact(b))),
                a.element,
                a.sizes,
            )
            for a, b in zip(left, right, strict=True)
        ]

    return combine


def _log_add_exp(
    left: ops.Tensor, right: ops.Tensor, log1p: Callable[[ops.Tensor], ops.Tensor] = ops.math.log1p
) -> ops.Tensor:
    """Computes log(exp(a) + exp(b)) without overflow, with jax.numpy's results for infinities."""
    if left.dtype.is_complex:
        swaps = ops.math.real(left) < ops.math.real(right)
        greater, less = ops.where(swaps, right, left), ops.where(swaps, left, right)
        return greater + log1p(ops.exp(less - greater))
    difference = left - right
    result = ops.maximum(left, right) + log1p(ops.exp(-ops.abs(difference)))
    return ops.where(ops.math.is_nan(difference), left + right, result)


@emits("jax2tf.cumsum")
def _sum(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (array,) = operands
    axis, backwards = _direction(scope, operation, array.rank)
    return sum_along(scope, array, axis, backwards)


def _stepwise(function: Callable[..., ops.Tensor]) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
        axis, backwards = _direction(scope, operation, operands[0].rank)
        wide = [_widen(scope, array) for array in operands]
        results = reduce_along(scope, _elementwise(function), wide, axis, backwards)
        pairs = zip(results, operands, strict=True)
        return [convert_array(scope, result, array.element) for result, array in pairs]

    return emit


def _direction(scope: Scope, operation: Operation, rank: int) -> tuple[int, bool]:
    attributes = operation.attributes.get("composite_attributes")
    match attributes:
        case {"axis": int(axis), "reverse": bool(backwards)} if 0 <= axis < rank:
            return axis, backwards
    scope.fail(operation, f"its axis and direction are {attributes!r:.100}")


_cumprod = emits("jax2tf.cumprod")(_stepwise(ops.multiply))
_cummax = emits("jax2tf.cummax")(_stepwise(ops.maximum))
_cummin = emits("jax2tf.cummin")(_stepwise(ops.minimum))
_cumlogsumexp = emits(
    "jax2tf.cumlogsumexp",
    for_converters=_stepwise(functools.partial(_log_add_exp, log1p=converter_forms.log1p)),
)(_stepwise(_log_add_exp))
