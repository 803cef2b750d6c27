"""Slices at computed indices: the layout of gather and scatter, and indices within bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays, Shape, make_integer, zeros
from jax2tf_bridge.emitters._movement import (
    broadcast,
    concatenate,
    fit_sizes,
    iota,
    multiply_sizes,
    reshape,
    resize,
    slice_array,
)
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.rewriting import INDEX_OPERANDS
from shape_poly import Dim

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
    if indices.sizes[axis] == 1:
        return reshape(scope, indices, sizes)
    if indices.repeats(axis):
        single = resize(indices, (*indices.sizes[:axis], 1, *indices.sizes[axis + 1 :]))
        return reshape(scope, single, sizes)
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
    tensor = ops.minimum(tensor, ops.cast(scope.sizes.size(limit), tensor.dtype))
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
        tensor = ops.cast(scope.compact(total), dtype) * ops.cast(scope.sizes.size(size), dtype)
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
