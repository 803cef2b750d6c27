"""Reductions of windows: pools, cumulative sums, and any other reducer over any windows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from jax2tf_bridge.bytecode import Block, Operation
from jax2tf_bridge.emitters._array import Array, zeros
from jax2tf_bridge.emitters._bodies import (
    called_block,
    fit_sizes,
    is_identity,
)
from jax2tf_bridge.emitters._cumulative import run_along, running_sum
from jax2tf_bridge.emitters._dynamic_slices import shrink_repeated
from jax2tf_bridge.emitters._emitter import emits
from jax2tf_bridge.emitters._indices import slice_axis
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._pools import (
    Windows,
    has_pool_gradient,
    if_finite,
    neutral_element,
    pool_gradient,
    reduce_by_pool,
    reshape_whole,
    window_count,
)
from jax2tf_bridge.emitters._reductions import (
    Combine,
    convert_float,
    make_combine,
    reduce_axes,
    reduce_by,
)
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.emitters._shapes import (
    broadcast,
    pad,
    pad_to,
    product,
    reshape,
    slice_array,
    take_first,
)
from jax2tf_bridge.rewriting import (
    Reducer,
    has_reduction,
    match_reducers,
    match_selected_extreme,
)
from shape_poly import Dim


def _read_windows(operation: Operation, rank: int) -> Windows:
    ones = (1,) * rank
    padding = operation.ints("padding", absent=(0,) * 2 * rank)
    return Windows(
        operation.ints("window_dimensions"),
        operation.ints("window_strides", absent=ones),
        operation.ints("window_dilations", absent=ones),
        tuple(base - 1 for base in operation.ints("base_dilations", absent=ones)),
        padding[::2],
        padding[1::2],
    )


@emits("reduce_window")
def _reduce_window(scope: Scope, operation: Operation, operands: Sequence[Array]) -> list[Array]:
    half = len(operands) // 2
    windows = _read_windows(operation, operands[0].rank)
    (block,) = operation.regions
    return _reduce(scope, block, operands[:half], operands[half:], windows)


@emits("stablehlo.dynamic_reduce_window")
def _dynamic_reduce_window(
    scope: Scope, operation: Operation, operands: Sequence[Array]
) -> list[Array]:
    *arrays, sizes, strides, bases, dilations, padding = operands
    half = len(arrays) // 2
    unknown = [None] * arrays[0].rank

    def read(vector: Array) -> tuple[Dim, ...]:
        return scope.sizes_of(vector, unknown)

    flat = reshape(scope, padding, (2 * len(unknown),))
    amounts = scope.sizes_of(flat, [*unknown, *unknown])
    holes = tuple(base - 1 for base in read(bases))
    windows = Windows(
        read(sizes), read(strides), read(dilations), holes, amounts[::2], amounts[1::2]
    )
    block = called_block(scope, operation)
    return _reduce(scope, block, arrays[:half], arrays[half:], windows)


def _reduce(
    scope: Scope,
    block: Block,
    arrays: Sequence[Array],
    inits: Sequence[Array],
    windows: Windows,
) -> list[Array]:
    """Reduces the windows of arrays, from initial values, with a reducer's block."""
    sizes = windows.counts(scope, arrays[0].sizes)
    if 0 in sizes:
        return [broadcast(scope, init, sizes, ()) for init in inits]
    combine = make_combine(block)
    reducers = match_reducers(block)
    direction = _running_direction(arrays[0], windows)
    if direction is not None:
        results = _reduce_running(scope, reducers, combine, arrays, *direction)
    elif reducers is None or len(arrays) > 1:
        return _reduce_without_identity(scope, combine, arrays, inits, windows)
    else:
        results = [_reduce_from_identity(scope, reducers[0], combine, arrays[0], windows)]
        results = [fit_sizes(scope, result, sizes) for result in results]
    if reducers is not None and all(map(functools.partial(is_identity, scope), reducers, inits)):
        return results
    return _combine_inits(scope, combine, inits, results)


def _combine_inits(
    scope: Scope, combine: Combine, inits: Sequence[Array], arrays: Sequence[Array]
) -> list[Array]:
    sizes = arrays[0].sizes
    return combine(scope, [broadcast(scope, init, sizes, ()) for init in inits], arrays)


# Cumulative reductions.


def _running_direction(array: Array, windows: Windows) -> tuple[int, bool] | None:
    """Returns (axis, is_reversed) if windows have all elements up to each one; else None."""
    if len(windows.axes) != 1:
        return None
    (axis,) = windows.axes
    size, window = array.sizes[axis], windows.sizes[axis]
    if window != size and not (
        isinstance(window, int) and isinstance(size, int) and window >= size
    ):
        return None
    steps = (windows.strides[axis], windows.dilations[axis], windows.holes[axis])
    if steps != (1, 1, 0) or size == 1:
        return None
    padding = (windows.low[axis], windows.high[axis])
    if padding == (window - 1, 0):
        return axis, False
    return (axis, True) if padding == (0, window - 1) else None


def _reduce_running(
    scope: Scope,
    reducers: Sequence[Reducer] | None,
    combine: Combine,
    arrays: Sequence[Array],
    axis: int,
    backwards: bool,
) -> list[Array]:
    if reducers is None or any(reducer.name != "add" for reducer in reducers):
        return run_along(scope, combine, arrays, axis, backwards)
    results: list[Array] = []
    for reducer, array in zip(reducers, arrays, strict=True):
        wide = convert_float(scope, array, reducer.element)
        total = running_sum(scope, wide, axis, backwards)
        results.append(convert_float(scope, total, array.element))
    return results


# Reducers with a known identity.


def _reduce_from_identity(
    scope: Scope, reducer: Reducer, combine: Combine, array: Array, windows: Windows
) -> Array:
    """Reduces windows; the result may lack repeated elements of axes without windows."""
    axes = windows.axes
    if not axes:
        return array
    result: Array | None = None
    if not any(windows.holes[a] != 0 or windows.dilations[a] != 1 for a in axes):
        sizes = [size if axis in axes else 1 for axis, size in enumerate(array.sizes)]
        compact = shrink_repeated(array, sizes)
        for strategy in (_reduce_whole_axes, reduce_by_pool, _reduce_tiles):
            result = result or strategy(scope, reducer, compact, windows)
    if result is None:
        neutral = neutral_element(reducer, array.element)
        (result,) = _reduce_by_axis(scope, combine, [array], [neutral], windows)
    return result


def _reduce_whole_axes(
    scope: Scope, reducer: Reducer, array: Array, windows: Windows
) -> Array | None:
    """Reduces axes that a single window covers, including padding with the identity."""
    axes = windows.axes
    padded = windows.padded_sizes(array.sizes)
    drops_elements = any(scope.sizes.bounds(n)[0] < 0 for n in (*windows.low, *windows.high))
    if drops_elements or any(padded[a] != windows.sizes[a] for a in axes):
        return None
    if not has_reduction(reducer, array.element):
        return None
    return reduce_axes(scope, reducer, array, axes, keeps_axes=True)


def _reduce_tiles(scope: Scope, reducer: Reducer, array: Array, windows: Windows) -> Array | None:
    """Reduces non-overlapping windows, each as an axis of its own."""
    axes = windows.axes
    if any(windows.sizes[a] != windows.strides[a] or windows.sizes[a] == 1 for a in axes):
        return None
    if not has_reduction(reducer, array.element):
        return None
    array = windows.pad(scope, array, neutral_element(reducer, array.element))
    tiles: list[Dim] = []
    limits = list(array.sizes)
    window_axes: list[int] = []
    for axis, size in enumerate(array.sizes):
        tiles.append(size)
        if axis in axes:
            window = windows.sizes[axis]
            tiles[-1] = size // window
            limits[axis] = tiles[-1] * window
            window_axes.append(len(tiles))
            tiles.append(window)
    array = take_first(scope, array, limits)
    return reduce_axes(scope, reducer, reshape_whole(scope, array, tuple(tiles)), window_axes)


# Any reducer and any windows.

_MAX_UNROLLED_WINDOW = 6
"""Maximum length of a window whose elements are combined one by one."""


def _reduce_without_identity(
    scope: Scope,
    combine: Combine,
    arrays: Sequence[Array],
    inits: Sequence[Array],
    windows: Windows,
) -> list[Array]:
    """Reduces windows with a reducer without a known identity.

    Flags mark padding, which is skipped.
    """
    if not windows.has_padding and all(isinstance(size, int) for size in windows.sizes):
        results = _reduce_by_axis(scope, combine, arrays, inits, windows)
        return _combine_inits(scope, combine, inits, results)
    yes, no = Array("i1", (), known=np.array(True)), zeros("i1")
    mask = broadcast(scope, yes, arrays[0].sizes, ())
    combine = _skip_unflagged(combine)
    results = _reduce_by_axis(scope, combine, [*arrays, mask], [*inits, no], windows)
    return _combine_inits(scope, combine, [*inits, yes], results)[:-1]


def _skip_unflagged(combine: Combine) -> Combine:
    """Returns a reducer of arrays and flags, which are last; skips elements without a flag."""

    def combine_flagged(scope: Scope, left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        left_flag, right_flag = scope.compact(left[-1]), scope.compact(right[-1])
        both = ops.logical_and(left_flag, right_flag)
        results: list[Array] = []
        combined = combine(scope, left[:-1], right[:-1])
        for result, a, b in zip(combined, left[:-1], right[:-1], strict=True):
            either = scope.choose(left_flag, scope.compact(a), scope.compact(b))
            tensor = scope.choose(both, scope.compact(result), either)
            results.append(scope.new_array(tensor, result.element, result.sizes))
        flag = ops.logical_or(left_flag, right_flag)
        return [*results, scope.new_array(flag, "i1", results[0].sizes)]

    return combine_flagged


def _reduce_by_axis(
    scope: Scope,
    combine: Combine,
    arrays: Sequence[Array],
    neutrals: Sequence[Array],
    windows: Windows,
) -> list[Array]:
    """Reduces windows axis by axis, starting with the last axis, in the order of elements.

    `neutrals` are the values for padding.
    """
    axes = windows.axes
    sizes = windows.padded_sizes(arrays[0].sizes)
    compact = [size if axis in axes else 1 for axis, size in enumerate(arrays[0].sizes)]
    least = [extent if axis in axes else 0 for axis, extent in enumerate(windows.extents)]
    columns: list[Array] = []
    for array, neutral in zip(arrays, neutrals, strict=True):
        column = windows.pad(scope, shrink_repeated(array, compact), neutral)
        columns.append(pad_to(scope, fit_sizes(scope, column, sizes), least))
    for axis in reversed(axes):
        columns = _reduce_along(scope, combine, columns, neutrals, windows, axis)
    counts = windows.counts(scope, arrays[0].sizes)
    return [take_first(scope, column, counts) for column in columns]


def _reduce_along(
    scope: Scope,
    combine: Combine,
    columns: Sequence[Array],
    neutrals: Sequence[Array],
    windows: Windows,
    axis: int,
) -> list[Array]:
    window, stride = windows.sizes[axis], windows.strides[axis]
    dilation = windows.dilations[axis]
    sizes = columns[0].sizes
    count = window_count(scope, sizes[axis], window, stride, dilation)

    def part(arrays: Sequence[Array], start: Dim, length: Dim, step: Dim) -> list[Array]:
        return [slice_axis(scope, array, axis, start, length, step) for array in arrays]

    if not isinstance(window, int):
        starts = ops.range(scope.sizes.size(count)) * scope.sizes.size(stride)
        within = ops.range(scope.sizes.size(window)) * scope.sizes.size(dilation)
        index = starts[:, ops.newaxis] + within
        wide = (*sizes[:axis], count, window, *sizes[axis + 1 :])
        taken = [
            scope.new_array(
                ops.gather(scope.tensor(column), index, axis=axis), column.element, wide
            )
            for column in columns
        ]
        return reduce_by(scope, combine, taken, neutrals, [axis + 1])
    if window <= _MAX_UNROLLED_WINDOW:
        parts = [part(columns, k * dilation, count, stride) for k in range(window)]
        return functools.reduce(lambda a, b: combine(scope, a, b), parts)
    # Windows of 1, 2, 4, ... elements consist of two halves; some of them form the whole window.
    span = window_count(scope, sizes[axis], window, 1, dilation)
    runs, length, place = list(columns), 1, 0
    result: list[Array] = []
    while place < window:
        if window & length:
            piece = part(runs, place * dilation, span, 1)
            result = combine(scope, result, piece) if result else piece
            place += length
        if place < window:
            shift = length * dilation
            rest = runs[0].sizes[axis] - shift
            runs = combine(scope, part(runs, 0, rest, 1), part(runs, shift, rest, 1))
            length *= 2
    return part(result, 0, count, stride)


# The gradient of pools, and select_and_scatter with other bodies.


@emits("select_and_scatter")
def _select_and_scatter(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    array, source, init = operands
    windows = _read_windows(operation, array.rank)
    if 0 in array.sizes or 0 in source.sizes:
        return broadcast(scope, init, array.sizes, ())
    select, scatter = operation.regions
    extreme = match_selected_extreme(select)
    reducers = match_reducers(scatter)
    reducer = None if reducers is None else reducers[0]

    def by_places(scope: Scope) -> Array:
        return _scatter_by_places(scope, operation, reducer, operands, windows)

    is_sum = reducer == Reducer("add", array.element) and scope.scalar(init) == 0
    if not (is_sum and has_pool_gradient(extreme, array, windows)):
        return by_places(scope)
    assert extreme is not None, "has_pool_gradient() is false for other selectors"

    def by_pool(scope: Scope) -> Array:
        return pool_gradient(scope, extreme, array, source, windows)

    def branch(function: Callable[[Scope], Array]) -> ops.Tensor:
        inner = scope.new_region(other_graph=True)
        return inner.tensor(function(inner))

    for operand in (array, source):
        scope.compact(operand)  # computed here, so that both branches can use it
    result = if_finite(scope, array, lambda: branch(by_pool), lambda: branch(by_places))
    return scope.new_array(result, array.element, array.sizes)


def _scatter_by_places(
    scope: Scope,
    operation: Operation,
    reducer: Reducer | None,
    operands: Sequence[Array],
    windows: Windows,
) -> Array:
    """Selects a position in each window, and scatters position by position, with any reducer."""
    array, source, init = operands
    select, scatter = operation.regions
    whole = pad_to(scope, source, (1,) * array.rank)
    # Padding of the array and of the source is never selected, and dropped again.
    padded = windows.padded_sizes(array.sizes)
    sizes = [
        size + scope.sizes.maximum(extent - own, 0)
        for size, extent, own in zip(array.sizes, windows.extents, padded, strict=True)
    ]
    larger = pad_to(scope, array, sizes)
    chosen = _select_places(scope, select, larger, whole.sizes, windows)
    if whole is not source:
        no_windows = ops.equal(scope.sizes.size(product(source.sizes)), 0)
        chosen = ops.where(no_windows, -1, chosen)
    result = _scatter_to(scope, scatter, reducer, chosen, larger.sizes, whole, init, windows)
    return take_first(scope, result, array.sizes)


def _places(windows: Windows) -> list[tuple[int, ...]]:
    """Lists the positions in a window in row-major order."""
    sizes = [size for size in windows.sizes if isinstance(size, int)]
    return list(itertools.product(*(range(size) for size in sizes)))


def _select_places(
    scope: Scope, block: Block, array: Array, sizes: Sequence[Dim], windows: Windows
) -> ops.Tensor:
    """Returns the index of the selected position in each window; -1 for none."""
    padded = windows.pad(scope, array, zeros(array.element))
    yes = Array("i1", array.sizes, known=np.array(True))
    inside = windows.pad(scope, yes, zeros("i1"))

    def at(array: Array, place: Sequence[int]) -> Array:
        limits = [
            first + (size - 1) * stride + 1
            for first, size, stride in zip(place, sizes, windows.strides, strict=True)
        ]
        return fit_sizes(scope, slice_array(scope, array, place, limits, windows.strides), sizes)

    chosen: ops.Tensor = ops.constant(-1)
    best: Array | None = None
    has_best: ops.Tensor | None = None
    for number, place in enumerate(_places(windows)):
        value = at(padded, place)
        is_inside = scope.tensor(at(inside, place)) if windows.has_padding else None
        if best is None:
            best, has_best = value, is_inside
            chosen = ops.constant(0) if is_inside is None else ops.where(is_inside, 0, -1)
            continue
        (verdict,) = scope.new_region().run(block, [best, value])
        keeps = scope.tensor(fit_sizes(scope, verdict, sizes))
        if is_inside is not None and has_best is not None:
            keeps = ops.logical_or(ops.logical_and(has_best, keeps), ops.logical_not(is_inside))
            has_best = ops.logical_or(has_best, is_inside)
        tensor = scope.choose(keeps, scope.tensor(best), scope.tensor(value))
        best = scope.new_array(tensor, array.element, sizes)
        chosen = ops.where(keeps, chosen, number)
    return chosen


def _scatter_to(
    scope: Scope,
    block: Block,
    reducer: Reducer | None,
    chosen: ops.Tensor,
    sizes: Sequence[Dim],
    source: Array,
    init: Array,
    windows: Windows,
) -> Array:
    """Combines initial values with the source's values at the selected positions.

    Windows that share an element are combined in order: the element is nearer to the end of the
    first window.
    """
    combine = make_combine(block)
    neutral = init if reducer is None else neutral_element(reducer, source.element)
    holes = [stride - 1 for stride in windows.strides]

    def spread(array: Array, value: Array, place: Sequence[int]) -> Array:
        """Writes the value of each window at one position of the window."""
        low = [at - before for at, before in zip(place, windows.low, strict=True)]
        high = [
            whole - (first + (size - 1) * stride + 1)
            for whole, first, size, stride in zip(
                sizes, low, source.sizes, windows.strides, strict=True
            )
        ]
        return fit_sizes(scope, pad(scope, array, value, low, high, holes), sizes)

    result: Array | None = None
    if reducer is None or not is_identity(scope, reducer, init):
        result = broadcast(scope, init, sizes, ())
    for number, place in reversed(list(enumerate(_places(windows)))):
        is_here = ops.equal(chosen, number)
        tensor = scope.choose(is_here, scope.compact(source), scope.compact(neutral))
        here = spread(scope.new_array(tensor, source.element, source.sizes), neutral, place)
        if result is None:
            result = here
            continue
        (combined,) = combine(scope, [result], [here])
        if reducer is None:
            flags = spread(scope.new_array(is_here, "i1", source.sizes), zeros("i1"), place)
            tensor = scope.choose(
                scope.tensor(flags), scope.compact(combined), scope.compact(result)
            )
            combined = scope.new_array(tensor, source.element, sizes)
        result = combined
    assert result is not None, "a window has an element"
    return result
