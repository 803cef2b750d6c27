"""Gather: slices of an array at given indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.to_tensorflow.operations._array import Array
from jax2tf_bridge.to_tensorflow.operations._dynamic_slices import shrink_repeated, slice_at
from jax2tf_bridge.to_tensorflow.operations._indices import (
    clamped,
    clamped_vectors,
    component,
    flat_index,
    index_vectors,
    ints_or_none,
    is_too_deep,
    whole_vectors,
)
from jax2tf_bridge.to_tensorflow.operations._scope import Emitter, Scope, typed
from jax2tf_bridge.to_tensorflow.operations._shapes import (
    broadcast,
    iota,
    product,
    reshape,
    slice_array,
    transpose,
)
from shape_poly import Dim

_Axes: TypeAlias = "list[tuple[bool, int]]"
"""(is_batch, number) for each axis: an axis of the indices' batch or of the operand."""


def _gather(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    array, indices, *given = operands
    if given:
        sizes = scope.sizes_of(given[0], [None] * array.rank)
    else:
        sizes = operation.ints("slice_sizes")
    array = shrink_repeated(array, sizes)
    vector_axis = operation.int("index_vector_dim")
    batch_sizes = (*indices.sizes[:vector_axis], *indices.sizes[vector_axis + 1 :])
    batching = ints_or_none(operation, "operand_batching_dims")
    along = ints_or_none(operation, "start_indices_batching_dims")
    batched = {
        axis: place - (place > vector_axis)
        for axis, place in zip(batching, along, strict=True)
        if array.sizes[axis] != 1
    }
    gone = {*operation.ints("collapsed_slice_dims"), *batching}
    kept = [axis for axis in range(array.rank) if axis not in gone]
    offset_places = operation.ints("offset_dims")
    rank = len(batch_sizes) + len(kept)
    batch_places = [place for place in range(rank) if place not in offset_places]
    places = {
        **{(True, axis): place for axis, place in enumerate(batch_places)},
        **{(False, axis): place for axis, place in zip(kept, offset_places, strict=True)},
    }
    wanted: list[Dim] = [1] * rank
    for (is_batch, axis), place in places.items():
        wanted[place] = batch_sizes[axis] if is_batch else sizes[axis]
    wanted = list(typed(operation.results[0].tensor.shape, wanted))
    if 0 in wanted:
        return broadcast(scope, array, wanted, [])

    index_map = operation.ints("start_index_map")
    indexed = [axis for axis in sorted(index_map) if array.sizes[axis] != sizes[axis]]
    many = any(size != 1 for size in batch_sizes)
    if many:
        # Axes without an index start at 0.
        whole = [
            own if axis in indexed or axis in batched else size
            for axis, (own, size) in enumerate(zip(array.sizes, sizes, strict=True))
        ]
        array = slice_array(scope, array, [0] * array.rank, whole, [1] * array.rank)
    by_elements = many and not batched and len(indexed) == len(index_map) > 1
    if by_elements and all(sizes[axis] == 1 for axis in indexed):
        vectors = whole_vectors(scope, indices, vector_axis)
        if vectors is not None:
            result = _take_elements(scope, array, vectors, index_map, batch_sizes)
            return _arranged(scope, *result, places, wanted)
    clamps: dict[int, Array] = {}
    for axis in indexed:
        start = component(scope, indices, vector_axis, index_map.index(axis))
        clamps[axis] = clamped(scope, start, array.sizes[axis] - sizes[axis])
    if all(size == 1 for size in batch_sizes):
        return slice_at(scope, array, clamps, sizes, wanted)
    result = _take(scope, array, clamps, batched, sizes, batch_sizes)
    return _arranged(scope, *result, places, wanted)


def _arranged(
    scope: Scope,
    array: Array,
    axes: _Axes,
    places: Mapping[tuple[bool, int], int],
    sizes: Sequence[Dim],
) -> Array:
    """Moves axes to their positions in the result; axes without a position have size 1."""
    live = [axis for axis, label in enumerate(axes) if label in places]
    if len(live) < len(axes):
        array = reshape(scope, array, [array.sizes[axis] for axis in live])
    return broadcast(scope, array, sizes, [places[axes[axis]] for axis in live])


def _take_elements(
    scope: Scope,
    array: Array,
    vectors: tf.Tensor,
    index_map: Sequence[int],
    batch_sizes: Sequence[Dim],
) -> tuple[Array, _Axes]:
    """Takes elements by index vectors, whose components are indices of different axes."""
    limits = [array.sizes[axis] - 1 for axis in index_map]
    rest = [axis for axis in range(array.rank) if axis not in index_map]
    array = transpose(scope, array, [*index_map, *rest])
    tensor = tf.gather_nd(scope.tensor(array), clamped_vectors(scope, vectors, limits))
    sizes = (*batch_sizes, *array.sizes[len(index_map) :])
    axes = [*((True, i) for i in range(len(batch_sizes))), *((False, axis) for axis in rest)]
    return scope.made(tensor, array.element, sizes), axes


def _take(
    scope: Scope,
    array: Array,
    starts: Mapping[int, Array],
    batched: Mapping[int, int],
    sizes: Sequence[Dim],
    batch_sizes: Sequence[Dim],
) -> tuple[Array, _Axes]:
    """Takes the slices.

    Args:
      scope: the scope of the values.
      array: the array; its axes without an index have the sizes of the slices.
      starts: maps axes of the array to indices within bounds.
      batched: maps batching axes of the array to batch axes of the indices.
      sizes: the sizes of the slices.
      batch_sizes: the batch sizes of the indices.

    Returns:
      An array, and the meaning of its axes. Missing axes have size 1 or are repeated.
    """
    labels: _Axes = [(False, axis) for axis in range(array.rank)]
    order = [*batched, *(axis for axis in range(array.rank) if axis not in batched)]
    if not starts:
        moved = transpose(scope, array, order)
        return moved, [(True, batched[axis]) if axis in batched else labels[axis] for axis in order]
    # The axes of the index: batching axes, other batch axes, then window axes.
    batch = [*batched.values(), *(i for i in range(len(batch_sizes)) if i not in batched.values())]
    windows = [axis for axis in starts if sizes[axis] != 1]
    grid = [*(batch_sizes[i] for i in batch), *(sizes[axis] for axis in windows)]
    index_axes: _Axes = [*((True, i) for i in batch), *((False, axis) for axis in windows)]
    components = {
        axis: _on_grid(
            scope,
            transpose(scope, start, batch),
            grid,
            len(batch) + windows.index(axis) if axis in windows else None,
        )
        for axis, start in starts.items()
    }
    count = len(batched)
    if len(components) == 1:
        ((axis, index),) = components.items()
        array, labels = transpose(scope, array, order), [labels[i] for i in order]
        place = order.index(axis)
    elif count or is_too_deep(len(components)):
        order = [
            *batched,
            *components,
            *(i for i in order if i not in components and i not in batched),
        ]
        array, labels = transpose(scope, array, order), [labels[i] for i in order]
        index = flat_index(
            scope, list(components.values()), array.sizes[count : count + len(components)]
        )
        array, place = _joined(scope, array, count, len(components)), count
        labels[count : count + len(components)] = [(False, -1)]
    else:
        order = [*components, *(axis for axis in range(array.rank) if axis not in components)]
        array, labels = transpose(scope, array, order), [labels[i] for i in order]
        vectors = index_vectors(scope, list(components.values()))
        rest = len(components)
        tensor = tf.gather_nd(scope.tensor(array), vectors)
        return (
            scope.made(tensor, array.element, (*grid, *array.sizes[rest:])),
            [*index_axes, *labels[rest:]],
        )
    result = (*array.sizes[:place], *grid[count:], *array.sizes[place + 1 :])
    axes = [*labels[:place], *index_axes[count:], *labels[place + 1 :]]
    axes[:count] = index_axes[:count]
    progression = None if count else _progression(index)
    if progression is not None:
        first, step = progression
        limits, steps = list(array.sizes), [1] * array.rank
        firsts = [0] * array.rank
        length = index.static_sizes()[0]
        firsts[place], steps[place] = first, step
        limits[place] = first + (length - 1) * step + 1
        return slice_array(scope, array, firsts, limits, steps), axes
    tensor = tf.gather(scope.tensor(array), scope.tensor(index), axis=place, batch_dims=count)
    return scope.made(tensor, array.element, result), axes


def _progression(index: Array) -> tuple[int, int] | None:
    """Returns the first index and the step if the indices are a known progression, else None."""
    if index.known is None or index.rank != 1 or index.known.size < 2:
        return None
    steps = np.diff(index.known.reshape(-1))
    if steps[0] < 1 or np.any(steps != steps[0]):
        return None
    return int(index.known.reshape(-1)[0]), int(steps[0])


def _on_grid(scope: Scope, start: Array, grid: Sequence[Dim], window: int | None) -> Array:
    """Broadcasts starts over the axes of an index; they increase along the window's axis."""
    start = broadcast(scope, start, grid, range(start.rank))
    if window is None:
        return start
    counted = iota(scope, start.element, grid, window)
    if start.known is not None and counted.known is not None:
        return Array(start.element, tuple(grid), known=start.known + counted.known)
    tensor = scope.compact(start) + scope.compact(counted)
    return Array(start.element, tuple(grid), tensor)


def _joined(scope: Scope, array: Array, first: int, count: int) -> Array:
    """Merges several axes into one."""
    total = product(array.sizes[first : first + count])
    return reshape(scope, array, (*array.sizes[:first], total, *array.sizes[first + count :]))


def _index_select(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    array, indices = operands
    count, axis = operation.int("batch_dims"), operation.int("dim")
    index = clamped(scope, indices, array.sizes[axis] - 1)
    tensor = tf.gather(scope.tensor(array), scope.tensor(index), axis=axis, batch_dims=count)
    sizes = (*array.sizes[:axis], *index.sizes[count:], *array.sizes[axis + 1 :])
    return scope.result(operation, tensor, sizes)


EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {"gather": _gather, "dynamic_gather": _gather, "torch_index_select": _index_select}
)
