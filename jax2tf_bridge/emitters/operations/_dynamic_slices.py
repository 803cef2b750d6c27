"""Slices at computed indices: dynamic slices and updates, and what gather and scatter share.

These are the layout of slices, and indices within bounds.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays, Shape, make_integer, zeros
from jax2tf_bridge.emitters._movement import (
    broadcast,
    concatenate,
    find_compact_sizes,
    fit_sizes,
    iota,
    multiply_sizes,
    reshape,
    resize,
    select,
    slice_array,
)
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.rewriting import INDEX_OPERANDS
from shape_poly import Dim, DimExpr

_MAX_INDEX_COMPONENTS = 7
"""Maximum number of components of an index of ops.gather_nd and similar functions."""


@dataclass(frozen=True)
class Slices:
    """Slices of an array at index vectors: the result of a gather, or the updates of a scatter.

    Attributes:
      vector_axis: the axis of the indices that has the components of an index vector.
      index_map: the axis of the array for each component.
      batched: maps batching axes of the array to axes of the batch.
      batch_axes: the axes of the result or the updates that are the batch.
      window_axes: maps axes of the array to axes of the result or the updates; slices have size 1
        along other axes.
      sizes: the size of a slice along each axis of the array.
      batch: the sizes of the batch, which has a slice per element.
      starts: maps axes of the array to starts within bounds; slices span the other axes.
      valid: which slices were within bounds before their starts were clamped; None for all.
    """

    vector_axis: int
    index_map: tuple[int, ...]
    batched: Mapping[int, int]
    batch_axes: tuple[int, ...]
    window_axes: Mapping[int, int]
    sizes: tuple[Dim, ...] = ()
    batch: tuple[Dim, ...] = ()
    starts: Mapping[int, Array] = field(default_factory=dict)
    valid: Array | None = None

    @staticmethod
    def read(operation: Operation, names: Sequence[str], rank: int, indices_rank: int) -> Slices:
        """Reads the axes of an operation on an array of some rank.

        The names are those of the attributes with the window axes, the axes of the array without a
        window, its batching axes, those of the indices, and the axes that have an index.
        """
        window, collapsed, batching, indices_batching, index_map = names
        vector_axis = operation.int("index_vector_dim")
        array_axes = operation.ints(batching, absent=())
        batch = [
            axis - (axis > vector_axis) for axis in operation.ints(indices_batching, absent=())
        ]
        without_window = {*operation.ints(collapsed), *array_axes}
        slice_axes = [axis for axis in range(rank) if axis not in without_window]
        window_axes = operation.ints(window)
        result_rank = indices_rank - (vector_axis < indices_rank) + len(slice_axes)
        return Slices(
            vector_axis,
            operation.ints(index_map),
            dict(zip(array_axes, batch, strict=True)),
            tuple(axis for axis in range(result_rank) if axis not in window_axes),
            dict(zip(slice_axes, window_axes, strict=True)),
        )

    @property
    def spread(self) -> list[int]:
        """Axes of the array that have a start and a window of several elements."""
        return [axis for axis in self.starts if self.sizes[axis] != 1]

    @property
    def grid(self) -> tuple[Dim, ...]:
        """Sizes of an index: those of the batch, and of the windows that have a start."""
        return (*self.batch, *(self.sizes[axis] for axis in self.spread))

    @property
    def grid_axes(self) -> list[int]:
        """Axes of the result or the updates that are the grid."""
        return [*self.batch_axes, *(self.window_axes[axis] for axis in self.spread)]

    def component(self, scope: Scope, indices: Arrays, axis: int) -> Array:
        """Returns the component of the index vectors for an axis of the array."""
        return take_component(scope, indices, self.vector_axis, self.index_map.index(axis))

    def on_grid(self, scope: Scope, axis: int) -> Array:
        """Returns the indices along an axis of the array, with the sizes of the grid."""
        if axis in self.batched:
            return iota(scope, "i32", self.grid, self.batched[axis])
        start = broadcast(scope, self.starts[axis], self.grid, range(len(self.batch)))
        if axis not in self.spread:
            return start
        place = len(self.batch) + self.spread.index(axis)
        within_window = iota(scope, start.element, self.grid, place)
        if start.numbers is not None and within_window.numbers is not None:
            known = start.numbers + within_window.numbers
            return Array(start.element, self.grid, known=known)
        tensor = scope.compact(start) + scope.compact(within_window)
        return Array(start.element, self.grid, tensor)


def slice_axis(
    scope: Scope, array: Array, axis: int, start: Dim, size: Dim, step: Dim = 1
) -> Array:
    """Takes every step-th element of an axis, `size` elements in all."""
    starts: list[Dim] = [0] * array.rank
    steps: list[Dim] = [1] * array.rank
    limits = list(array.sizes)
    starts[axis], limits[axis], steps[axis] = start, start + (size - 1) * step + 1, step
    result = slice_array(scope, array, starts, limits, steps)
    return fit_sizes(scope, result, (*array.sizes[:axis], size, *array.sizes[axis + 1 :]))


def split_operands(operation: Operation, operands: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    """Splits operands into the arrays, the parts of the index vectors, and the others."""
    count = operation.attributes.get(INDEX_OPERANDS, 1)
    assert isinstance(count, int), "the attribute is the rewriter's"
    start = len(operation.results)
    return operands[:start], operands[start : start + count], operands[start + count :]


def take_component(scope: Scope, parts: Arrays, axis: int, number: int) -> Array:
    """Takes one component of index vectors, whose parts lie side by side along an axis.

    Without an axis, the indices are the component.
    """
    indices, *others = parts
    if axis == indices.rank:
        return indices
    count = indices.sizes[axis]
    if others and isinstance(count, int) and number >= count:
        return take_component(scope, others, axis, number - count)
    sizes = (*indices.sizes[:axis], *indices.sizes[axis + 1 :])
    if indices.sizes[axis] == 1 or indices.repeats(axis):
        ones = (*indices.sizes[:axis], 1, *indices.sizes[axis + 1 :])
        return reshape(scope, shrink_repeated(indices, ones), sizes)
    place = axis - (indices.rank - len(indices.compact_shape))
    if indices.known is not None:
        return Array(
            indices.element, sizes, known=indices.known.take([number], place).squeeze(place)
        )
    before = (slice(None),) * place
    return Array(indices.element, sizes, scope.compact(indices)[(*before, number)])


def clamp(scope: Scope, index: Array, limit: Dim) -> Array:
    """Clamps indices to 0..limit (inclusive); the result is i32 or i64."""
    if limit == 0:
        return zeros("i32", index.sizes)
    known = index.numbers
    if known is not None and known.size:
        if isinstance(limit, int):
            # uint64 is compared as Python integers.
            numbers = np.minimum(np.maximum(known.astype(object), 0), limit)
            return Array("i32", index.sizes, known=numbers.astype(np.int32))
        if known.min() >= 0 and scope.sizes.compare("GE", limit, int(known.max())):
            return Array("i32", index.sizes, known=known.astype(np.int32))
    if index.known is not None and index.rank == 0:
        (size,) = index.known.flat
        at_most = -scope.sizes.maximum(-size, -limit)
        return make_integer("i32", scope.sizes.maximum(at_most, 0))
    wide = widen_index(scope, index)
    tensor = scope.compact(wide)
    if index.row.kind != "uint":
        # The order matters: LiteRT's converter turns the other one, with a limit of 6, into Relu6.
        tensor = ops.maximum(tensor, ops.constant(0, tensor.dtype))
    tensor = ops.minimum(tensor, scope.sizes.number(limit, tensor.dtype))
    if wide.element in ("ui32", "ui64"):
        return Array("i32", index.sizes, ops.cast(tensor, ops.int32))
    return Array(wide.element, index.sizes, tensor)


def widen_index(scope: Scope, index: Array) -> Array:
    """Widens integers to at least 32 bits."""
    if index.row.bits >= 32:
        return index
    if index.known is not None:
        return Array("i32", index.sizes, known=index.known.astype(np.int32))
    return Array("i32", index.sizes, ops.cast(scope.compact(index), ops.int32))


def flag_unchanged(scope: Scope, index: Array, result: Array) -> Array | None:
    """Returns which indices `clamp` did not change; None if all are known to be unchanged."""
    if result is index:
        return None
    if index.known is not None and result.known is not None:
        same = np.asarray(index.known.astype(object) == result.known.astype(object), bool)
        if same.all():
            return None
        if index.numbers is not None and result.numbers is not None:
            return Array("i1", index.sizes, known=same)
    wide = scope.compact(widen_index(scope, index))
    return Array("i1", index.sizes, ops.equal(wide, ops.cast(scope.compact(result), wide.dtype)))


def combine_flags(scope: Scope, flags: Sequence[Array | None], sizes: Shape) -> Array | None:
    """Combines flags by `and`; None stands for true."""
    result: Array | None = None
    for flag in flags:
        if flag is None or result is None:
            result = result or flag
        else:
            both = ops.logical_and(scope.compact(result), scope.compact(flag))
            result = Array("i1", tuple(sizes), both)
    return result


def join_vectors(scope: Scope, parts: Arrays, axis: int) -> ops.Tensor | None:
    """Returns computed index vectors along the last axis, which need no changes; else None."""
    if axis != parts[0].rank - 1 or axis == 0:
        return None
    if any(part.computed is None or part.row.kind == "uint" for part in parts):
        return None
    if is_too_deep(sum(part.sizes[axis] for part in parts)):
        return None
    return scope.tensor(widen_index(scope, concatenate(scope, parts, axis)))


def clamp_vectors(scope: Scope, vectors: ops.Tensor, limits: Shape) -> ops.Tensor:
    """Clamps all components at once, like `clamp`."""
    return ops.minimum(
        ops.maximum(vectors, ops.constant(0, vectors.dtype)),
        ops.cast(scope.sizes.shape(limits), vectors.dtype),
    )


def stack_indices(scope: Scope, components: Arrays) -> ops.Tensor:
    """Stacks components of equal sizes for ops.gather_nd."""
    constants = [component.constant for component in components]
    if all(constant is not None for constant in constants):
        return ops.constant(np.stack([np.asarray(c) for c in constants], -1))
    (sizes,) = {component.sizes for component in components}
    wide = any(component.element == "i64" for component in components)
    dtype = ops.int64 if wide else ops.int32
    tensors = [ops.cast(scope.tensor(component), dtype) for component in components]
    if len(tensors) == 1:
        return scope.set_shape(ops.expand_dims(tensors[0], -1), (*sizes, 1))
    return scope.set_shape(ops.stack(tensors, -1), (*sizes, len(tensors)))


def is_too_deep(count: Dim) -> bool:
    """Returns whether an index has more components than TensorFlow's operations support."""
    return not isinstance(count, int) or count > _MAX_INDEX_COMPONENTS


def flatten_indices(scope: Scope, components: Arrays, sizes: Shape) -> Array:
    """Combines indices of several axes into one index of the merged axis.

    It has 64 bits if the product of the sizes is unknown or exceeds 32 bits.
    """
    first, *others = components
    total = first
    positions = multiply_sizes(sizes)
    is_wide = not isinstance(positions, int) or positions > ops.int32.max
    dtype = ops.int64 if is_wide or any(c.element == "i64" for c in components) else ops.int32
    for component, size in zip(others, sizes[1:], strict=True):
        tensor = ops.cast(scope.compact(total), dtype) * scope.sizes.number(size, dtype)
        tensor += ops.cast(scope.compact(component), dtype)
        total = Array("i64" if dtype == ops.int64 else "i32", first.sizes, tensor)
    return total


def scalar_index(scope: Scope, index: Array) -> Dim | ops.Tensor:
    """Returns an index of one element: a size, or a scalar int32 tensor."""
    if index.known is not None:
        number: Dim = index.known.reshape(-1).tolist()[0]
        return number
    tensor = ops.cast(scope.compact(index), ops.int32)
    return tensor if tensor.shape.rank == 0 else ops.reshape(tensor, [])


# Dynamic slices and updates, whose starts are operands.

_Start: TypeAlias = "Dim | ops.Tensor"

_MAX_COPIED_BYTES = 1 << 18
"""Maximum size in bytes of an array that is copied for an update. TensorStridedSliceUpdate writes
in place if nothing else reads the array, as in loops, but some consumers of graphs lack it. For
small arrays a copy is as fast as another operation."""


@emits("dynamic_slice")
def _dynamic_slice(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    array, *starts = operands
    sizes = operation.ints("slice_sizes")
    return slice_at(scope, array, clamp_starts(scope, array, starts, sizes), sizes)


def clamp_starts(scope: Scope, array: Array, starts: Arrays, sizes: Shape) -> dict[int, Array]:
    """Clamps starts so that slices lie within an array; omits axes that are taken whole."""
    return {
        axis: clamp(scope, start, array.sizes[axis] - sizes[axis])
        for axis, start in enumerate(starts)
        if array.sizes[axis] != sizes[axis]
    }


def slice_at(
    scope: Scope,
    array: Array,
    starts: Mapping[int, Array],
    sizes: Shape,
    new_sizes: Shape | None = None,
) -> Array:
    """Takes a slice, whose starts must lie within the array; missing starts are 0.

    The result is reshaped to the sizes `new_sizes`, if given, which differ by axes of size 1.
    """
    array = shrink_repeated(array, sizes)
    computed: dict[int, ops.Tensor] = {}
    firsts: list[Dim] = [0] * array.rank
    limits = list(array.sizes)
    for axis, size in enumerate(sizes):
        if array.sizes[axis] == size:
            continue
        start = scalar_index(scope, starts[axis]) if axis in starts else 0
        if not isinstance(start, int):
            computed[axis] = scope.sizes.size(start) if isinstance(start, DimExpr) else start
        else:
            firsts[axis], limits[axis] = start, start + size
    array = slice_array(scope, array, firsts, limits, [1] * array.rank)
    if computed:
        array = _slice_computed(scope, array, computed, sizes)
    return reshape(scope, array, sizes if new_sizes is None else new_sizes)


def shrink_repeated(array: Array, sizes: Shape) -> Array:
    """Changes the sizes of axes that repeat one element, for which all slices are equal."""
    result = tuple(
        size if array.repeats(axis) else array.sizes[axis] for axis, size in enumerate(sizes)
    )
    return array if result == array.sizes else resize(array, result)


def _slice_computed(
    scope: Scope, array: Array, starts: Mapping[int, ops.Tensor], sizes: Shape
) -> Array:
    compact = scope.compact(array)
    own = list(find_compact_sizes(array))
    first = array.rank - len(own)
    if len(starts) == 1:
        ((axis, start),) = starts.items()
        if sizes[axis] == 1:
            # The result lacks the sliced axis.
            taken = ops.gather(compact, start, axis=axis - first)
            dropped = [size for place, size in enumerate(own) if place != axis - first]
            left = [size for place, size in enumerate(sizes) if place != axis]
            return Array(array.element, tuple(left), scope.set_shape(taken, dropped))
    taken = _slice_tensor(
        scope,
        compact,
        {axis - first: start for axis, start in starts.items()},
        {axis - first: scope.sizes.size(sizes[axis]) for axis in starts},
    )
    for axis in starts:
        own[axis - first] = sizes[axis]
    return Array(array.element, tuple(sizes), scope.set_shape(taken, own))


def _slice_tensor(
    scope: Scope, tensor: ops.Tensor, starts: Mapping[int, Any], lengths: Mapping[int, Any]
) -> ops.Tensor:
    """Slices a tensor, by default from the start and to the end of an axis."""
    axes = range(tensor.shape.rank)
    if scope.for_converters:
        # tf2onnx mishandles a Slice with lengths of -1.
        ends = {
            axis: starts[axis] + length if axis in starts else length
            for axis, length in lengths.items()
        }
        return tensor[tuple(slice(starts.get(axis), ends.get(axis)) for axis in axes)]
    begin = [starts.get(axis, 0) for axis in axes]
    return ops.slice(tensor, begin, [lengths.get(axis, -1) for axis in axes])


@emits("dynamic_update_slice")
def _dynamic_update_slice(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    array, update, *starts = operands
    return update_at(scope, array, update, clamp_starts(scope, array, starts, update.sizes))


def update_at(scope: Scope, array: Array, update: Array, starts: Mapping[int, Array]) -> Array:
    """Replaces a slice, which must lie within the array."""
    if 0 in update.sizes:
        return array
    scalars = {
        axis: scalar_index(scope, start)
        for axis, start in starts.items()
        if array.sizes[axis] != update.sizes[axis]
    }
    if not scalars:
        return resize(update, array.sizes)
    if all(isinstance(start, int) for start in scalars.values()):
        return _assemble(scope, array, update, scalars)
    is_small = array.is_static and (
        math.prod(array.static_sizes()) * array.graph_dtype.size <= _MAX_COPIED_BYTES
    )
    if is_small and all(update.sizes[axis] == 1 for axis in scalars):
        return _select(scope, array, update, scalars)
    if not is_small and not (scope.for_converters or scope.for_onnx):
        return _write(scope, array, update, scalars)
    if not is_small and set(scalars) == {0} and update.sizes[0] == 1:
        return _write_row(scope, array, update, scalars[0])
    return _assemble(scope, array, update, scalars)


def _write(scope: Scope, array: Array, update: Array, starts: Mapping[int, _Start]) -> Array:
    last = max(starts) + 1
    whole = sum(1 << axis for axis in range(last) if axis not in starts)
    begin = [_scalar(scope, starts.get(axis, 0)) for axis in range(last)]
    ends = [
        begin[axis] + scope.sizes.size(update.sizes[axis]) if axis in starts else 0
        for axis in range(last)
    ]
    tensor = ops.raw_ops.TensorStridedSliceUpdate(
        input=scope.tensor(array),
        begin=ops.stack(begin),
        end=ops.stack(ends),
        strides=[1] * last,
        value=scope.tensor(update),
        end_mask=whole,
    )
    return scope.new_array(tensor, array.element, array.sizes)


def _write_row(scope: Scope, array: Array, update: Array, start: _Start) -> Array:
    index = ops.reshape(_scalar(scope, start), [1, 1])
    tensor = ops.tensor_scatter_nd_update(scope.tensor(array), index, scope.tensor(update))
    return scope.new_array(tensor, array.element, array.sizes)


def _scalar(scope: Scope, start: _Start) -> Any:
    return start if ops.is_tensor(start) else scope.sizes.size(start)


def _select(scope: Scope, array: Array, update: Array, starts: Mapping[int, _Start]) -> Array:
    """Selects the update for elements whose indices lie within it."""
    flags = [
        ops.equal(scope.compact(iota(scope, "i32", array.sizes, axis)), _scalar(scope, start))
        for axis, start in starts.items()
    ]
    return select(scope, functools.reduce(operator.and_, flags), update, scope.full(array))


def _assemble(scope: Scope, array: Array, update: Array, starts: Mapping[int, _Start]) -> Array:
    """Concatenates the parts before and after an update with it, axis by axis."""
    (axis, start), *others = starts.items()
    size = update.sizes[axis]
    if ops.is_tensor(start):
        array = scope.full(array)
    if others:
        window = _part(scope, array, axis, start, size)
        update = _assemble(scope, window, update, dict(others))
    if not ops.is_tensor(start):
        end = start + size
        around = [
            _part(scope, array, axis, 0, start),
            _part(scope, array, axis, end, array.sizes[axis] - end),
        ]
        return concatenate(scope, [around[0], update, around[1]], axis)
    tensor = scope.tensor(array)
    pieces = [
        _slice_tensor(scope, tensor, {}, {axis: start}),
        scope.tensor(update),
        _slice_tensor(scope, tensor, {axis: start + scope.sizes.size(size)}, {}),
    ]
    return scope.new_array(ops.concat(pieces, axis), array.element, array.sizes)


def _part(scope: Scope, array: Array, axis: int, start: _Start, size: Dim) -> Array:
    sizes = [size if i == axis else own for i, own in enumerate(array.sizes)]
    if array.repeats(axis):
        return shrink_repeated(array, sizes)
    if ops.is_tensor(start):
        return reshape(scope, _slice_computed(scope, array, {axis: start}, sizes), sizes)
    return slice_axis(scope, array, axis, start, size)
