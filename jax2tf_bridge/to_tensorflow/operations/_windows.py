"""Reductions of windows: pools, cumulative sums, and any other reducer over any windows.

TensorFlow's pools are fast, and LiteRT supports them. But MaxPool skips NaN, and returns the lowest
finite number for a window of -inf only. So a pool first checks whether all numbers are finite, and
otherwise uses a slower exact form. Converters of TensorFlow's graphs get only MaxPool.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.rewriting import Reducer, match_reducers, match_selected_extreme
from jax2tf_bridge.to_tensorflow.operations._array import Array, tf_dtype
from jax2tf_bridge.to_tensorflow.operations._bodies import called_block, is_identity, sized
from jax2tf_bridge.to_tensorflow.operations._cumulative import run_along, running_sum
from jax2tf_bridge.to_tensorflow.operations._folding import greatest
from jax2tf_bridge.to_tensorflow.operations._integers import constant_like
from jax2tf_bridge.to_tensorflow.operations._reductions import (
    Combine,
    combining,
    converted,
    has_reduction,
    reduce_by,
    reduced,
)
from jax2tf_bridge.to_tensorflow.operations._shapes import (
    broadcast,
    cut,
    grown,
    pad,
    product,
    reshape,
    slice_array,
    transpose,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jax2tf_bridge.bytecode import Block, Operation
    from jax2tf_bridge.to_tensorflow.operations._scope import Emitter, Scope
    from shape_poly import Dim


@dataclass(frozen=True)
class Windows:
    """Windows over an array, with a number per axis.

    Attributes:
      sizes: the sizes of a window.
      strides: the strides of windows.
      holes: the numbers of elements inserted between two elements of the array.
      dilations: the dilations of a window.
      low: the padding before the array; negative to drop elements.
      high: the padding after the array.
    """

    sizes: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    holes: tuple[Dim, ...]
    dilations: tuple[Dim, ...]
    low: tuple[Dim, ...]
    high: tuple[Dim, ...]

    @property
    def axes(self) -> list[int]:
        """Axes along which windows are not trivial."""
        return [axis for axis in range(len(self.sizes)) if not self.is_plain(axis)]

    def is_plain(self, axis: int) -> bool:
        """Returns whether the windows along an axis are trivial: one window per element."""
        return (
            self.sizes[axis] == self.strides[axis] == 1
            and self.holes[axis] == self.low[axis] == self.high[axis] == 0
        )

    @property
    def extents(self) -> list[Dim]:
        """Sizes of a dilated window."""
        return [
            (size - 1) * dilation + 1
            for size, dilation in zip(self.sizes, self.dilations, strict=True)
        ]

    @property
    def has_padding(self) -> bool:
        """Returns whether windows may have elements outside of the array."""
        amounts = (*self.holes, *self.low, *self.high)
        return any(not (isinstance(amount, int) and amount <= 0) for amount in amounts)

    def padded(self, sizes: Sequence[Dim]) -> tuple[Dim, ...]:
        """Returns the sizes of an array with padding and inserted elements."""
        return tuple(
            size + (size - 1) * hole + low + high if hole != 0 else size + low + high
            for size, hole, low, high in zip(sizes, self.holes, self.low, self.high, strict=True)
        )

    def results(self, scope: Scope, sizes: Sequence[Dim]) -> tuple[Dim, ...]:
        """Returns the number of windows along each axis."""
        return tuple(
            count(scope, size, window, stride, dilation)
            for size, window, stride, dilation in zip(
                self.padded(sizes), self.sizes, self.strides, self.dilations, strict=True
            )
        )


def count(scope: Scope, size: Dim, window: Dim, stride: Dim, dilation: Dim) -> Dim:
    """Returns the number of windows along a padded axis."""
    span = size - (window - 1) * dilation
    if scope.bounds(span)[0] < 0:
        span = greatest(scope, span, 0)
    return span if stride == 1 else (span + stride - 1) // stride


def _reduce_window(scope: Scope, operation: Operation, operands: Sequence[Array]) -> list[Array]:
    half = len(operands) // 2
    rank = operands[0].rank
    low, high = _paddings(operation, rank)
    windows = Windows(
        operation.ints("window_dimensions"),
        _numbers(operation, "window_strides", rank),
        tuple(dilation - 1 for dilation in _numbers(operation, "base_dilations", rank)),
        _numbers(operation, "window_dilations", rank),
        low,
        high,
    )
    (block,) = operation.regions
    return reduce_windows(scope, block, operands[:half], operands[half:], windows)


def _numbers(operation: Operation, name: str, rank: int) -> tuple[int, ...]:
    return operation.ints(name) if operation.attributes.get(name) is not None else (1,) * rank


def _paddings(operation: Operation, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if operation.attributes.get("padding") is None:
        return (0,) * rank, (0,) * rank
    numbers = operation.ints("padding")
    return numbers[::2], numbers[1::2]


def _dynamic_reduce_window(
    scope: Scope, operation: Operation, operands: Sequence[Array]
) -> list[Array]:
    half = (len(operands) - 5) // 2
    rank = operands[0].rank
    vectors = [scope.sizes_of(vector, [None] * rank) for vector in operands[-5:-1]]
    sizes, strides, bases, dilations = vectors
    padding = operands[-1]
    numbers = padding.parts
    if numbers is None:
        flat = reshape(scope, padding, (2 * rank,))
        numbers = scope.sizes_of(flat, [None] * (2 * rank))
    holes = tuple(base - 1 for base in bases)
    windows = Windows(sizes, strides, holes, dilations, numbers[::2], numbers[1::2])
    block = called_block(scope, operation)
    return reduce_windows(scope, block, operands[:half], operands[half:-5], windows)


def reduce_windows(
    scope: Scope,
    block: Block,
    arrays: Sequence[Array],
    inits: Sequence[Array],
    windows: Windows,
) -> list[Array]:
    """Reduces the windows of arrays, from initial values, with a reducer's block."""
    sizes = windows.results(scope, arrays[0].sizes)
    if 0 in sizes:
        return [broadcast(scope, init, sizes, ()) for init in inits]
    combine = combining(block)
    direction = _running_direction(arrays[0], windows)
    matched = match_reducers(block)
    if direction is not None:
        axis, backwards = direction
        results = _running(scope, matched, combine, arrays, axis, backwards)
        is_done = _all_identities(scope, matched, inits)
        return results if is_done else _started(scope, combine, inits, results)
    if matched is None or len(arrays) > 1:
        return _any_windows(scope, combine, arrays, inits, windows)
    (reducer,), (array,), (init,) = matched, arrays, inits
    plain = _known_windows(scope, reducer, array, windows)
    if plain is None:
        neutral = Array(array.element, (), known=_neutral(reducer, array.element))
        plain = _combined(scope, combine, [array], [neutral], windows)[0]
    plain = sized(scope, plain, sizes)
    return (
        [plain] if is_identity(scope, reducer, init) else _started(scope, combine, inits, [plain])
    )


def _neutral(reducer: Reducer, element: str) -> np.ndarray[Any, Any]:
    return np.asarray(reducer.identity).astype(tf_dtype(element).as_numpy_dtype)


def _started(
    scope: Scope, combine: Combine, inits: Sequence[Array], arrays: Sequence[Array]
) -> list[Array]:
    """Combines initial values with results that were reduced without them."""
    sizes = arrays[0].sizes
    return combine(scope, [broadcast(scope, init, sizes, ()) for init in inits], arrays)


def _all_identities(scope: Scope, found: Sequence[Reducer] | None, inits: Sequence[Array]) -> bool:
    return found is not None and all(
        is_identity(scope, reducer, init) for reducer, init in zip(found, inits, strict=True)
    )


# Cumulative reductions.


def _running_direction(array: Array, windows: Windows) -> tuple[int, bool] | None:
    """Returns (axis, is_reversed) if windows have all elements up to each one; else None."""
    if len(windows.axes) != 1:
        return None
    (axis,) = windows.axes
    size, window = array.sizes[axis], windows.sizes[axis]
    reaches = window == size or (
        isinstance(window, int) and isinstance(size, int) and window >= size
    )
    if not reaches or windows.strides[axis] != 1 or windows.dilations[axis] != 1:
        return None
    if windows.holes[axis] != 0 or size == 1:
        return None
    match windows.low[axis] == window - 1, windows.high[axis] == window - 1:
        case True, False if windows.high[axis] == 0:
            return axis, False
        case False, True if windows.low[axis] == 0:
            return axis, True
    return None


def _running(
    scope: Scope,
    found: Sequence[Reducer] | None,
    combine: Combine,
    arrays: Sequence[Array],
    axis: int,
    backwards: bool,
) -> list[Array]:
    if found is not None and all(reducer.name == "add" for reducer in found):
        return [
            converted(
                scope,
                running_sum(scope, converted(scope, array, reducer.element), axis, backwards),
                array.element,
            )
            for reducer, array in zip(found, arrays, strict=True)
        ]
    return run_along(scope, combine, arrays, axis, backwards)


# Pools, and other forms of one or two operations.

_POOLED_AS = MappingProxyType({"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64"})
"""Maps element types to types in which means are exact enough to be used for sums."""
_POOLED_BY_MAX = frozenset({"f16", "bf16", "f32", "i8", "i16", "i32", "i64", "ui8", "ui16"})


def _known_windows(scope: Scope, reducer: Reducer, array: Array, windows: Windows) -> Array | None:
    """Reduces windows with TensorFlow's own operations; None if it has none for them."""
    axes = windows.axes
    if not axes:
        return array
    wide = _once_where_repeated(array, axes)
    if any(windows.holes[a] != 0 or windows.dilations[a] != 1 for a in axes):
        return None
    result = _of_whole_axes(scope, reducer, wide, windows)
    if result is None:
        result = _pooled(scope, reducer, wide, windows)
    if result is None:
        result = _tiled(scope, reducer, wide, windows)
    return result


def _once_where_repeated(array: Array, axes: Sequence[int]) -> Array:
    """Drops repeated elements along the other axes."""
    sizes = tuple(
        1 if axis not in axes and array.repeats(axis) else size
        for axis, size in enumerate(array.sizes)
    )
    return (
        array if sizes == array.sizes or array.parts else replace(array, sizes=sizes, source=None)
    )


def _of_whole_axes(scope: Scope, reducer: Reducer, array: Array, windows: Windows) -> Array | None:
    """Reduces axes that a single window covers, including padding with the identity."""
    axes = windows.axes
    padded = windows.padded(array.sizes)
    amounts = [windows.low[a] for a in axes] + [windows.high[a] for a in axes]
    if any(scope.bounds(amount)[0] < 0 for amount in amounts):
        return None
    if any(padded[a] != windows.sizes[a] for a in axes) or not has_reduction(reducer, array):
        return None
    result = reduced(scope, reducer, array, axes)
    sizes = tuple(1 if a in axes else size for a, size in enumerate(array.sizes))
    return broadcast(scope, result, sizes, [a for a in range(array.rank) if a not in axes])


def _pooled(scope: Scope, reducer: Reducer, array: Array, windows: Windows) -> Array | None:
    element = array.element
    pools = {
        "maximum": element in _POOLED_BY_MAX,
        "minimum": element in _POOLED_BY_MAX and array.row.kind == "float",
        "add": element in _POOLED_AS,
    }
    if not pools.get(reducer.name, False):
        return None
    axes = windows.axes
    if len(axes) > 2 or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    ints = [*(windows.sizes[a] for a in axes), *(windows.strides[a] for a in axes)]
    if not all(isinstance(number, int) for number in ints):
        return None
    if reducer.name != "add" and any(
        scope.bounds(amount)[1] >= windows.sizes[a]  # type: ignore[operator]
        for a in axes
        for amount in (windows.low[a], windows.high[a])
    ):
        # MaxPool returns a finite number for a window of padding only.
        return None
    mode, source = "VALID", array
    if reducer.name == "maximum" and _is_same(scope, array, windows):
        mode = "SAME"
    else:
        neutral = Array(element, (), known=_neutral(reducer, element))
        array = _padded(scope, array, neutral, windows)
    if reducer.name == "add":
        array = converted(scope, array, _POOLED_AS[element])
    counts = Windows(
        windows.sizes, windows.strides, windows.holes, windows.dilations, *((0,) * array.rank,) * 2
    )
    wanted = (windows if mode == "SAME" else counts).results(scope, array.sizes)
    if mode == "VALID":
        array = grown(scope, array, counts.extents)
    images = _Images.of(scope, array, axes)
    ksize, strides = images.numbers(windows.sizes), images.numbers(windows.strides)
    tensor = scope.tensor(images.array)
    if reducer.name == "add":
        means = tf.nn.avg_pool2d(tensor, ksize, strides, mode)
        pooled = means * tf.constant(math.prod(ksize), means.dtype)
    else:
        is_minimum = reducer.name == "minimum"

        def plain() -> tf.Tensor:
            greatest = tf.nn.max_pool2d(-tensor if is_minimum else tensor, ksize, strides, mode)
            return -greatest if is_minimum else greatest

        def exact() -> tf.Tensor:
            greatest = _exact_max_pool(-tensor if is_minimum else tensor, ksize, strides, mode)
            return -greatest if is_minimum else greatest

        pooled = _if_finite(scope, source, plain, exact)
    results = wanted if mode == "SAME" else counts.results(scope, array.sizes)
    result = cut(scope, images.back(scope, pooled, array.element, results), wanted)
    return converted(scope, result, element)


def _if_finite(
    scope: Scope, array: Array, plain: Callable[[], tf.Tensor], exact: Callable[[], tf.Tensor]
) -> tf.Tensor:
    """Chooses `plain` at run time if all numbers of `array` are finite, else `exact`.

    The check costs a fraction of a pool; the exact forms cost a multiple of it.
    """
    if array.row.kind != "float" or scope.is_for_any_converter:
        return plain()
    is_finite = tf.reduce_all(tf.math.is_finite(scope.compact(array)))
    return tf.cond(is_finite, plain, exact)


def _exact_max_pool(
    tensor: tf.Tensor, ksize: Sequence[int], strides: Sequence[int], mode: str
) -> tf.Tensor:
    """Returns the maximum of each window, where NaN exceeds all numbers."""
    nan, lowest = (constant_like(tensor, number) for number in (np.nan, -np.inf))
    rank = tf.where(
        tf.math.is_nan(tensor),
        constant_like(tensor, 2),
        tf.where(tf.equal(tensor, lowest), constant_like(tensor, 0), constant_like(tensor, 1)),
    )
    highest_rank = tf.nn.max_pool2d(rank, ksize, strides, mode)
    pooled = tf.nn.max_pool2d(tensor, ksize, strides, mode)
    pooled = tf.where(tf.equal(highest_rank, constant_like(rank, 0)), lowest, pooled)
    return tf.where(tf.equal(highest_rank, constant_like(rank, 2)), nan, pooled)


def _is_same(scope: Scope, array: Array, windows: Windows) -> bool:
    """Returns whether the padding is TensorFlow's SAME, and not zero."""
    result = False
    for axis in windows.axes:
        size, window, stride = array.sizes[axis], windows.sizes[axis], windows.strides[axis]
        total = (-(-size // stride) - 1) * stride + window - size
        if scope.bounds(total)[0] < 0:
            total = greatest(scope, total, 0)
        low = total // 2
        if (windows.low[axis], windows.high[axis]) != (low, total - low):
            return False
        result = result or total != 0
    return result


def _padded(scope: Scope, array: Array, value: Array, windows: Windows) -> Array:
    if all(amount == 0 for amount in (*windows.low, *windows.high, *windows.holes)):
        return array
    return pad(scope, array, value, windows.low, windows.high, windows.holes)


@dataclass(frozen=True)
class _Images:
    """Array as images, with the axes batch, height, width and channels.

    Attributes:
      array: the array with these four axes.
      axes: the axes of the original array that are the width, or height and width.
      order: the order of the original axes before the reshape.
      channels: the number of axes after the width.
    """

    array: Array
    axes: tuple[int, ...]
    order: tuple[int, ...]
    channels: int

    @staticmethod
    def of(scope: Scope, array: Array, axes: Sequence[int]) -> _Images:
        """Converts an array to images; `axes` are one or two adjacent axes."""
        before, behind = list(range(axes[0])), list(range(axes[-1] + 1, array.rank))
        if not behind and len(before) > 1:
            # Pools are fast along channels, and TensorFlow supports no other layout.
            behind.append(before.pop())
        order = (*before, *axes, *behind)
        moved = transpose(scope, array, order)
        height: tuple[Dim, ...] = (1,) if len(axes) == 1 else ()
        sizes = (
            product(array.sizes[a] for a in before),
            *height,
            *(array.sizes[a] for a in axes),
            product(array.sizes[a] for a in behind),
        )
        return _Images(_reshaped(scope, moved, sizes), tuple(axes), order, len(behind))

    def numbers(self, of_axes: Sequence[Dim]) -> list[int]:
        """Selects the numbers of height and width."""
        numbers = [number for number in (of_axes[a] for a in self.axes) if isinstance(number, int)]
        return numbers if len(numbers) == 2 else [1, *numbers]

    def back(self, scope: Scope, tensor: tf.Tensor, element: str, sizes: Sequence[Dim]) -> Array:
        """Converts images back to the axes of the original array, with these sizes."""
        moved = tuple(sizes[a] for a in self.order)
        split = len(moved) - self.channels
        first = split - len(self.axes)
        shape = (
            product(moved[:first]),
            *((1,) if len(self.axes) == 1 else ()),
            *moved[first:split],
            product(moved[split:]),
        )
        array = _reshaped(scope, scope.made(tensor, element, shape), moved)
        return transpose(scope, array, [self.order.index(a) for a in range(len(moved))])


def _reshaped(scope: Scope, array: Array, sizes: tuple[Dim, ...]) -> Array:
    """Reshapes an array; its tensor has all the sizes."""
    if array.sizes == sizes:
        return scope.full(array)
    tensor = tf.reshape(scope.tensor(array), scope.reshape_shape(sizes))
    return scope.made(tensor, array.element, sizes)


def _tiled(scope: Scope, reducer: Reducer, array: Array, windows: Windows) -> Array | None:
    """Reduces non-overlapping windows, each as an axis of its own."""
    axes = windows.axes
    if any(windows.sizes[a] != windows.strides[a] for a in axes):
        return None
    if not has_reduction(reducer, array) or any(windows.sizes[a] == 1 for a in axes):
        return None
    neutral = Array(array.element, (), known=_neutral(reducer, array.element))
    array = _padded(scope, array, neutral, windows)
    counts = [size // windows.sizes[a] if a in axes else size for a, size in enumerate(array.sizes)]
    limits = [
        counts[a] * windows.sizes[a] if a in axes else size for a, size in enumerate(array.sizes)
    ]
    if tuple(limits) != array.sizes:
        array = slice_array(scope, array, [0] * array.rank, limits, [1] * array.rank)
    sizes: list[Dim] = []
    places: list[int] = []
    for a, number in enumerate(counts):
        sizes.append(number)
        if a in axes:
            places.append(len(sizes))
            sizes.append(windows.sizes[a])
    return reduced(scope, reducer, _reshaped(scope, array, tuple(sizes)), places)


# Any reducer and any windows.

_MAX_UNROLLED_WINDOW = 6
"""Maximum length of a window whose elements are combined one by one."""


def _any_windows(
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
        results = _combined(scope, combine, arrays, inits, windows)
        return _started(scope, combine, inits, results)
    yes, no = (Array("i1", (), known=np.array(flag)) for flag in (True, False))
    mask = broadcast(scope, yes, arrays[0].sizes, ())
    flagged = _flagged(combine)
    results = _combined(scope, flagged, [*arrays, mask], [*inits, no], windows)
    return _started(scope, flagged, [*inits, yes], results)[:-1]


def _flagged(combine: Combine) -> Combine:
    def flagged(scope: Scope, left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        *ones, one_flag = left
        *others, other_flag = right
        has_one, has_other = scope.compact(one_flag), scope.compact(other_flag)
        both = tf.logical_and(has_one, has_other)
        combined = combine(scope, ones, others)
        output = [
            scope.made(
                tf.where(
                    both,
                    scope.compact(result),
                    tf.where(has_one, scope.compact(a), scope.compact(b)),
                ),
                result.element,
                result.sizes,
            )
            for result, a, b in zip(combined, ones, others, strict=True)
        ]
        either = tf.logical_or(has_one, has_other)
        return [*output, scope.made(either, "i1", combined[0].sizes)]

    return flagged


def _combined(
    scope: Scope,
    combine: Combine,
    arrays: Sequence[Array],
    neutrals: Sequence[Array],
    windows: Windows,
) -> list[Array]:
    """Reduces windows axis by axis, starting with the last axis, in the order of elements.

    `neutrals` are the values for padding.
    """
    padded = windows.padded(arrays[0].sizes)
    axes = windows.axes
    columns: list[Array] = []
    for array, neutral in zip(arrays, neutrals, strict=True):
        column = _padded(scope, _once_where_repeated(array, axes), neutral, windows)
        sizes = tuple(padded[a] if a in axes else array.sizes[a] for a in range(array.rank))
        least = [extent if a in axes else 0 for a, extent in enumerate(windows.extents)]
        columns.append(grown(scope, sized(scope, column, sizes), least))
    for axis in reversed(axes):
        columns = _along(scope, combine, columns, neutrals, windows, axis)
    wanted = windows.results(scope, arrays[0].sizes)
    return [
        cut(scope, column, [wanted[a] if a in axes else n for a, n in enumerate(column.sizes)])
        for column in columns
    ]


def _along(
    scope: Scope,
    combine: Combine,
    columns: Sequence[Array],
    neutrals: Sequence[Array],
    windows: Windows,
    axis: int,
) -> list[Array]:
    window, stride = windows.sizes[axis], windows.strides[axis]
    dilation = windows.dilations[axis]
    size = columns[0].sizes[axis]
    number = count(scope, size, window, stride, dilation)
    sizes = (*columns[0].sizes[:axis], number, *columns[0].sizes[axis + 1 :])

    def part(arrays: Sequence[Array], start: Dim, length: Dim, step: Dim) -> list[Array]:
        limit = start + (length - 1) * step + 1
        return [_part(scope, array, axis, start, limit, step, length) for array in arrays]

    if not isinstance(window, int):
        places = tf.range(scope.size(number)) * scope.size(stride)
        within = tf.range(scope.size(window)) * scope.size(dilation)
        index = places[:, tf.newaxis] + within
        wide = (*sizes[: axis + 1], window, *sizes[axis + 1 :])
        taken = [
            scope.made(tf.gather(scope.tensor(column), index, axis=axis), column.element, wide)
            for column in columns
        ]
        return reduce_by(scope, combine, taken, neutrals, [axis + 1])
    if window <= _MAX_UNROLLED_WINDOW:
        parts = [part(columns, k * dilation, number, stride) for k in range(window)]
        return functools.reduce(lambda a, b: combine(scope, a, b), parts)
    # Windows of 1, 2, 4, ... elements consist of two halves; some of them form the whole window.
    span = count(scope, size, window, 1, dilation)
    runs, length, place = list(columns), 1, 0
    result: list[Array] | None = None
    while True:
        if window & length:
            piece = part(runs, place * dilation, span, 1)
            result = piece if result is None else combine(scope, result, piece)
            place += length
        if place == window:
            break
        shift = length * dilation
        left = runs[0].sizes[axis] - shift
        runs = combine(scope, part(runs, 0, left, 1), part(runs, shift, left, 1))
        length *= 2
    assert result is not None, "a window has an element"
    return part(result, 0, number, stride)


def _part(
    scope: Scope, array: Array, axis: int, start: Dim, limit: Dim, step: Dim, length: Dim
) -> Array:
    def everywhere(value: Dim, others: Sequence[Dim]) -> list[Dim]:
        return [value if a == axis else other for a, other in enumerate(others)]

    ones, zeros = [1] * array.rank, [0] * array.rank
    result = slice_array(
        scope,
        array,
        everywhere(start, zeros),
        everywhere(limit, array.sizes),
        everywhere(step, ones),
    )
    return sized(scope, result, everywhere(length, array.sizes))


# The gradient of pools.


def _select_and_scatter(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    array, source, init = operands
    rank = array.rank
    low, high = _paddings(operation, rank)
    ones, zeros = (1,) * rank, (0,) * rank
    sizes = operation.ints("window_dimensions")
    strides = _numbers(operation, "window_strides", rank)
    windows = Windows(sizes, strides, zeros, ones, low, high)
    if 0 in array.sizes or 0 in source.sizes:
        return broadcast(scope, init, array.sizes, ())
    select, scatter = operation.regions
    extreme = match_selected_extreme(select)
    matched = match_reducers(scatter)
    reducer = None if matched is None else matched[0]

    def by_places(scope: Scope) -> Array:
        return _scattered_by_places(scope, operation, reducer, operands, windows)

    is_sum = reducer == Reducer("add", array.element) and scope.scalar(init) == 0
    if not (is_sum and _has_pool_gradient(extreme, array, windows)):
        return by_places(scope)
    assert extreme is not None, "_has_pool_gradient() is false for other selectors"

    def tensor(make: Callable[[Scope], Array]) -> Callable[[], tf.Tensor]:
        def branch() -> tf.Tensor:
            inner = scope.inner(other_graph=True)
            return inner.tensor(make(inner))

        return branch

    def by_pool(scope: Scope) -> Array:
        return _pool_gradient(scope, extreme, array, source, windows)

    for operand in (array, source):
        scope.compact(operand)  # computed here, so that both branches can use it
    result = _if_finite(scope, array, tensor(by_pool), tensor(by_places))
    return scope.made(result, array.element, array.sizes)


def _scattered_by_places(
    scope: Scope,
    operation: Operation,
    reducer: Reducer | None,
    operands: Sequence[Array],
    windows: Windows,
) -> Array:
    """Selects a position in each window, and scatters position by position, with any reducer."""
    array, source, init = operands
    select, scatter = operation.regions
    ones = (1,) * array.rank
    whole = grown(scope, source, ones)
    if whole is source:
        chosen = _selected(scope, select, array, source.sizes, windows)
        return _scattered(scope, scatter, reducer, chosen, array, source, init, windows)
    # Padding of the array and of the source is never selected, and dropped again.
    padded = windows.padded(array.sizes)
    more = [
        greatest(scope, extent - size, 0)
        for extent, size in zip(windows.extents, padded, strict=True)
    ]
    larger = grown(scope, array, [size + n for size, n in zip(array.sizes, more, strict=True)])
    chosen = _selected(scope, select, larger, whole.sizes, windows)
    no_windows = tf.equal(scope.size(product(source.sizes)), 0)
    chosen = tf.where(no_windows, -1, chosen)
    result = _scattered(scope, scatter, reducer, chosen, larger, whole, init, windows)
    return cut(scope, result, array.sizes)


def _has_pool_gradient(extreme: str | None, array: Array, windows: Windows) -> bool:
    """Returns whether MaxPoolGrad computes the operation for finite numbers."""
    axes = windows.axes
    if extreme is None or array.row.kind != "float" or not 1 <= len(axes) <= 2:
        return False
    return axes == list(range(axes[0], axes[-1] + 1)) and all(
        windows.low[a] == windows.high[a] == 0 for a in axes
    )


def _pool_gradient(
    scope: Scope, extreme: str, array: Array, source: Array, windows: Windows
) -> Array:
    axes = windows.axes
    sizes = array.sizes
    array = grown(scope, array, windows.extents)
    source = grown(scope, source, windows.results(scope, array.sizes))
    images, gradients = _Images.of(scope, array, axes), _Images.of(scope, source, axes)
    tensor = scope.tensor(images.array)
    if extreme == "minimum":
        tensor = -tensor
    ksize, strides = images.numbers(windows.sizes), images.numbers(windows.strides)
    result = tf.raw_ops.MaxPoolGrad(
        orig_input=tensor,
        orig_output=tf.nn.max_pool2d(tensor, ksize, strides, "VALID"),
        grad=scope.tensor(gradients.array),
        ksize=[1, *ksize, 1],
        strides=[1, *strides, 1],
        padding="VALID",
    )
    return cut(scope, images.back(scope, result, array.element, array.sizes), sizes)


def _places(windows: Windows) -> list[tuple[int, ...]]:
    """Lists the positions in a window in row-major order."""
    sizes = [size for size in windows.sizes if isinstance(size, int)]
    return list(itertools.product(*(range(size) for size in sizes)))


def _selected(
    scope: Scope, block: Block, array: Array, sizes: Sequence[Dim], windows: Windows
) -> tf.Tensor:
    """Returns the index of the selected position in each window; -1 for none."""
    no = Array("i1", (), known=np.array(False))
    neutral = Array(array.element, (), known=np.zeros((), array.tf_dtype.as_numpy_dtype))
    padded = _padded(scope, array, neutral, windows)
    mask = Array("i1", array.sizes, known=np.array(True))
    there = _padded(scope, mask, no, windows) if windows.has_padding else None
    best: Array | None = None
    chosen = tf.constant(-1)
    has_best: tf.Tensor | None = None
    for number, place in enumerate(_places(windows)):
        value = _at_place(scope, padded, place, windows, sizes)
        is_there = None
        if there is not None:
            is_there = scope.tensor(_at_place(scope, there, place, windows, sizes))
        if best is None:
            best, has_best = value, is_there
            chosen = tf.constant(0) if is_there is None else tf.where(is_there, 0, -1)
            continue
        (verdict,) = scope.inner().run(block, [best, value])
        keeps = scope.tensor(sized(scope, verdict, sizes))
        if is_there is not None and has_best is not None:
            keeps = tf.logical_or(tf.logical_and(has_best, keeps), tf.logical_not(is_there))
            has_best = tf.logical_or(has_best, is_there)
        tensor = tf.where(keeps, scope.tensor(best), scope.tensor(value))
        best = scope.made(tensor, array.element, sizes)
        chosen = tf.where(keeps, chosen, number)
    return chosen


def _at_place(
    scope: Scope, array: Array, place: Sequence[int], windows: Windows, sizes: Sequence[Dim]
) -> Array:
    limits = [
        at + (size - 1) * stride + 1
        for at, size, stride in zip(place, sizes, windows.strides, strict=True)
    ]
    return sized(scope, slice_array(scope, array, place, limits, windows.strides), sizes)


def _scattered(
    scope: Scope,
    block: Block,
    reducer: Reducer | None,
    chosen: tf.Tensor,
    array: Array,
    source: Array,
    init: Array,
    windows: Windows,
) -> Array:
    """Combines initial values with the source's values at the selected positions.

    Windows that share an element are combined in order: the element is nearer to the end of the
    first window.
    """
    combine = combining(block)
    neutral = init
    if reducer is not None:
        neutral = Array(array.element, (), known=_neutral(reducer, array.element))
    result = broadcast(scope, init, array.sizes, ())
    if reducer is not None and is_identity(scope, reducer, init):
        result = broadcast(scope, neutral, array.sizes, ())
    no = Array("i1", (), known=np.array(False))
    is_first = reducer is not None and is_identity(scope, reducer, init)
    for number, place in reversed(list(enumerate(_places(windows)))):
        is_here = tf.equal(chosen, number)
        here = scope.made(
            tf.where(is_here, scope.compact(source), scope.compact(neutral)),
            source.element,
            source.sizes,
        )
        spread = _spread(scope, here, neutral, array.sizes, place, windows)
        if is_first:
            result, is_first = spread, False
            continue
        (combined,) = combine(scope, [result], [spread])
        if reducer is None:
            flags = scope.made(is_here, "i1", source.sizes)
            touched = _spread(scope, flags, no, array.sizes, place, windows)
            tensor = tf.where(scope.tensor(touched), scope.compact(combined), scope.compact(result))
            combined = scope.made(tensor, array.element, array.sizes)
        result = combined
    return result


def _spread(
    scope: Scope,
    array: Array,
    value: Array,
    sizes: Sequence[Dim],
    place: Sequence[int],
    windows: Windows,
) -> Array:
    """Writes each window's value at one position of the window, in an array of the given sizes."""
    low = [at - before for at, before in zip(place, windows.low, strict=True)]
    holes = [stride - 1 for stride in windows.strides]
    high = [
        whole - (first + (size - 1) * stride + 1)
        for whole, first, size, stride in zip(sizes, low, array.sizes, windows.strides, strict=True)
    ]
    return sized(scope, pad(scope, array, value, low, high, holes), sizes)


TARGETS: Mapping[str, Emitter] = MappingProxyType(
    {"stablehlo.dynamic_reduce_window": _dynamic_reduce_window}
)
EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {"reduce_window": _reduce_window, "select_and_scatter": _select_and_scatter}
)
