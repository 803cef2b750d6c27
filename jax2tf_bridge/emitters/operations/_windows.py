"""Reductions of windows: pools, cumulative sums, and any other reducer over any windows.

TensorFlow's pools are fast, and LiteRT supports them. But MaxPool skips NaN, and returns the lowest
finite number for a window of -inf only. So a pool first checks whether all numbers are finite, and
otherwise uses a slower exact form. Converters of TensorFlow's graphs get only MaxPool.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from jax2tf_bridge.bytecode import Attribute, Block, Operation
from jax2tf_bridge.emitters._array import Array, Arrays, Shape, graph_dtype, zeros
from jax2tf_bridge.emitters._folding import convert_array
from jax2tf_bridge.emitters._movement import (
    broadcast,
    fit_sizes,
    iota,
    multiply_sizes,
    pad,
    pad_to,
    reshape,
    reshape_whole,
    select,
    slice_array,
    take_first,
    transpose,
)
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.emitters.formulas.integers import constant_like
from jax2tf_bridge.emitters.operations._dynamic_slices import shrink_repeated, slice_axis
from jax2tf_bridge.emitters.operations._reductions import (
    Combine,
    make_combine,
    reduce_along,
    reduce_axes,
    reduce_by,
    sum_along,
)
from jax2tf_bridge.emitters.operations._scatter import scatter
from jax2tf_bridge.rewriting import Reducer, has_reduction, match_reducers, match_selected_extreme
from shape_poly import Dim


@dataclass(frozen=True)
class Windows:
    """Windows over an array, with a number per axis.

    Attributes:
      sizes: the sizes of a window.
      strides: the strides of windows.
      dilations: the dilations of a window.
      holes: the numbers of elements inserted between two elements of the array.
      low: the padding before the array; negative to drop elements.
      high: the padding after the array.
    """

    sizes: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    dilations: tuple[Dim, ...]
    holes: tuple[Dim, ...]
    low: tuple[Dim, ...]
    high: tuple[Dim, ...]

    @property
    def axes(self) -> list[int]:
        """Axes along which windows are not single elements."""
        numbers = zip(self.sizes, self.strides, self.holes, self.low, self.high, strict=True)
        return [axis for axis, own in enumerate(numbers) if own != (1, 1, 0, 0, 0)]

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

    @property
    def without_padding(self) -> Windows:
        """The windows over an array that `pad` returned."""
        zeros = (0,) * len(self.sizes)
        return replace(self, holes=zeros, low=zeros, high=zeros)

    def padded_sizes(self, sizes: Shape) -> tuple[Dim, ...]:
        """Returns the sizes of an array with padding and inserted elements."""
        return tuple(
            size + (size - 1) * hole + low + high if hole != 0 else size + low + high
            for size, hole, low, high in zip(sizes, self.holes, self.low, self.high, strict=True)
        )

    def pad(self, scope: Scope, array: Array, value: Array) -> Array:
        if all(amount == 0 for amount in (*self.low, *self.high, *self.holes)):
            return array
        result = pad(scope, array, value, self.low, self.high, self.holes)
        return fit_sizes(scope, result, self.padded_sizes(array.sizes))

    def counts(self, scope: Scope, sizes: Shape) -> tuple[Dim, ...]:
        """Returns the number of windows along each axis."""
        return tuple(
            count_windows(scope, size, window, stride, dilation)
            for size, window, stride, dilation in zip(
                self.padded_sizes(sizes), self.sizes, self.strides, self.dilations, strict=True
            )
        )


def count_windows(scope: Scope, size: Dim, window: Dim, stride: Dim, dilation: Dim) -> Dim:
    """Returns the number of windows along a padded axis."""
    span = size - (window - 1) * dilation
    if scope.sizes.bounds(span)[0] < 0:
        span = scope.sizes.maximum(span, 0)
    return span if stride == 1 else (span + stride - 1) // stride


def find_same_padding(scope: Scope, size: Dim, window: Dim, stride: Dim) -> tuple[Dim, Dim]:
    """Returns TensorFlow's SAME padding before and after an axis."""
    total = scope.sizes.maximum((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


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
def _reduce_window(scope: Scope, operation: Operation, operands: Arrays) -> list[Array]:
    half = len(operands) // 2
    windows = _read_windows(operation, operands[0].rank)
    (block,) = operation.regions
    return _reduce(scope, block, operands[:half], operands[half:], windows)


@emits("stablehlo.dynamic_reduce_window")
def _dynamic_reduce_window(scope: Scope, operation: Operation, operands: Arrays) -> list[Array]:
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
    block = scope.called_block(operation)
    return _reduce(scope, block, arrays[:half], arrays[half:], windows)


def _reduce(
    scope: Scope, block: Block, arrays: Arrays, inits: Arrays, windows: Windows
) -> list[Array]:
    """Reduces the windows of arrays, from initial values, with a reducer's block."""
    sizes = windows.counts(scope, arrays[0].sizes)
    if 0 in sizes:
        return [broadcast(scope, init, sizes, ()) for init in inits]
    combine = make_combine(block)
    reducers = match_reducers(block)
    direction = _find_running_direction(arrays[0], windows)
    if direction is not None:
        results = _reduce_running(scope, reducers, combine, arrays, *direction)
    elif reducers is None or len(arrays) > 1:
        return _reduce_without_identity(scope, combine, arrays, inits, windows)
    else:
        results = [_reduce_from_identity(scope, reducers[0], combine, arrays[0], windows)]
        results = [fit_sizes(scope, result, sizes) for result in results]
    if reducers is not None and all(map(_is_identity, reducers, inits)):
        return results
    return _combine_inits(scope, combine, inits, results)


def _is_identity(reducer: Reducer, init: Array) -> bool:
    # 0 and -0 are both identities of sums; they differ only for a sum of -0, which XLA makes 0.
    return init.scalar is not None and bool(init.scalar == reducer.identity)


def _combine_inits(scope: Scope, combine: Combine, inits: Arrays, arrays: Arrays) -> list[Array]:
    sizes = arrays[0].sizes
    return combine(scope, [broadcast(scope, init, sizes, ()) for init in inits], arrays)


# TensorFlow's pools.


def _make_neutral_element(reducer: Reducer, element: str) -> Array:
    """Returns the identity of a reducer as a scalar of an element type."""
    number = np.asarray(reducer.identity).astype(graph_dtype(element).as_numpy_dtype)
    return Array(element, (), known=number)


@dataclass(frozen=True)
class _Images:
    """Layout of an array as images.

    Attributes:
      groups: the axes of the array that are the batch, height, width and channels; the height may
        have no axis.
    """

    groups: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]

    @staticmethod
    def of(axes: Sequence[int], rank: int) -> _Images:
        """Chooses a layout in which `axes`, one or two adjacent ones, are height and width."""
        before, behind = list(range(axes[0])), list(range(axes[-1] + 1, rank))
        if not behind and len(before) > 1:
            # Pools are fast along channels, and TensorFlow supports no other layout.
            behind.append(before.pop())
        return _Images((before, axes[:-1], axes[-1:], behind))

    @property
    def order(self) -> list[int]:
        """Axes of the array in the order of the images' axes."""
        return [axis for group in self.groups for axis in group]

    def shape(self, sizes: Shape) -> tuple[Dim, ...]:
        """Multiplies numbers per axis of the array to numbers per axis of the images."""
        return tuple(multiply_sizes(sizes[axis] for axis in group) for group in self.groups)

    def tensor(self, scope: Scope, array: Array) -> ops.Tensor:
        moved = transpose(scope, array, self.order)
        return scope.tensor(reshape_whole(scope, moved, self.shape(array.sizes)))

    def array(self, scope: Scope, images: ops.Tensor, element: str, sizes: Shape) -> Array:
        array = scope.new_array(images, element, self.shape(sizes))
        moved = reshape_whole(scope, array, tuple(sizes[axis] for axis in self.order))
        return transpose(scope, moved, np.argsort(self.order).tolist())


_POOLED_AS = MappingProxyType({"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64"})
"""Maps element types to types in which means are exact enough to be used for sums."""
_POOLED: Mapping[str, Collection[str]] = MappingProxyType(
    {
        "add": _POOLED_AS.keys(),
        "maximum": ("f16", "bf16", "f32", "i8", "i16", "i32", "i64", "ui8", "ui16"),
        "minimum": ("f16", "bf16", "f32"),
    }
)
_POOLED_IN_ONNX = frozenset({"f16", "f32"})
"""Element types for which ONNX Runtime has pools; it lacks them for most others."""


def _reduce_by_pool(scope: Scope, reducer: Reducer, array: Array, windows: Windows) -> Array | None:
    """Reduces windows with a pool; returns None if there is none for them."""
    if not _has_pool(scope, reducer, array, windows):
        return None
    element, source = array.element, array
    counts = sizes = windows.counts(scope, array.sizes)
    mode = "SAME" if reducer.name == "maximum" and _is_same(scope, array, windows) else "VALID"
    if mode == "VALID":
        array = windows.pad(scope, array, _make_neutral_element(reducer, element))
    if reducer.name == "add":
        array = convert_array(scope, array, _POOLED_AS[element])
    if mode == "VALID":
        array = pad_to(scope, array, windows.extents)
        sizes = windows.without_padding.counts(scope, array.sizes)
    images = _Images.of(windows.axes, array.rank)
    tensor = images.tensor(scope, array)
    ksize, strides = images.shape(windows.sizes), images.shape(windows.strides)
    if reducer.name == "add":
        means = ops.nn.avg_pool2d(tensor, ksize, strides, mode)
        pooled = means * ops.constant(math.prod(ksize), means.dtype)
    else:
        pooled = _max_pool(scope, reducer.name, source, tensor, ksize, strides, mode)
    result = images.array(scope, pooled, array.element, sizes)
    return convert_array(scope, take_first(scope, result, counts), element)


def _has_pool(scope: Scope, reducer: Reducer, array: Array, windows: Windows) -> bool:
    has_pool = array.element in _POOLED.get(reducer.name, ())
    if scope.for_onnx:
        has_pool = has_pool and array.element in _POOLED_IN_ONNX
    axes = windows.axes
    numbers = [n for axis in axes for n in (windows.sizes[axis], windows.strides[axis])]
    if not has_pool or not _are_images(axes) or not all(isinstance(n, int) for n in numbers):
        return False
    # MaxPool returns a finite number for a window of padding only.
    return reducer.name == "add" or all(
        scope.sizes.bounds(amount)[1] < windows.sizes[axis]  # type: ignore[operator]
        for axis in axes
        for amount in (windows.low[axis], windows.high[axis])
    )


def _are_images(axes: Sequence[int]) -> bool:
    return len(axes) == 1 or (len(axes) == 2 and axes[1] == axes[0] + 1)


def _is_same(scope: Scope, array: Array, windows: Windows) -> bool:
    """Returns whether the padding is TensorFlow's SAME, and not zero."""
    amounts = [
        find_same_padding(scope, array.sizes[axis], windows.sizes[axis], windows.strides[axis])
        for axis in windows.axes
    ]
    own = [(windows.low[axis], windows.high[axis]) for axis in windows.axes]
    return own == amounts and any(amount != (0, 0) for amount in amounts)


def _max_pool(
    scope: Scope, name: str, source: Array, tensor: ops.Tensor, *options: Any
) -> ops.Tensor:
    """Returns the maximum or minimum of each window; images of `source` are in `tensor`."""

    def pool(function: Callable[..., ops.Tensor]) -> ops.Tensor:
        if name == "minimum":
            return -function(-tensor, *options)
        return function(tensor, *options)

    return _if_finite(scope, source, lambda: pool(ops.nn.max_pool2d), lambda: pool(_exact_max_pool))


def _if_finite(
    scope: Scope, array: Array, plain: Callable[[], ops.Tensor], exact: Callable[[], ops.Tensor]
) -> ops.Tensor:
    """Chooses `plain` at run time if all numbers of `array` are finite, else `exact`.

    The check costs a fraction of a pool; the exact forms cost a multiple of it.
    """
    if array.row.kind != "float" or scope.is_for_any_converter:
        return plain()
    is_finite = ops.reduce_all(ops.math.is_finite(scope.compact(array)))
    return ops.cond(is_finite, plain, exact)


def _exact_max_pool(tensor: ops.Tensor, *options: Any) -> ops.Tensor:
    """Returns the maximum of each window, where NaN exceeds all numbers."""
    nan, lowest = (constant_like(tensor, number) for number in (np.nan, -np.inf))
    rank = ops.where(
        ops.math.is_nan(tensor),
        constant_like(tensor, 2),
        ops.where(ops.equal(tensor, lowest), constant_like(tensor, 0), constant_like(tensor, 1)),
    )
    highest_rank = ops.nn.max_pool2d(rank, *options)
    pooled = ops.nn.max_pool2d(tensor, *options)
    pooled = ops.where(ops.equal(highest_rank, constant_like(rank, 0)), lowest, pooled)
    return ops.where(ops.equal(highest_rank, constant_like(rank, 2)), nan, pooled)


# Cumulative reductions.


def _find_running_direction(array: Array, windows: Windows) -> tuple[int, bool] | None:
    """Recognizes windows of cumulative reductions; returns (axis, is_reversed), or None."""
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
    arrays: Arrays,
    axis: int,
    backwards: bool,
) -> list[Array]:
    if reducers is None or any(reducer.name != "add" for reducer in reducers):
        return reduce_along(scope, combine, arrays, axis, backwards)
    results: list[Array] = []
    for reducer, array in zip(reducers, arrays, strict=True):
        wide = convert_array(scope, array, reducer.element)
        total = sum_along(scope, wide, axis, backwards)
        results.append(convert_array(scope, total, array.element))
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
        for strategy in (_reduce_whole_axes, _reduce_by_pool, _reduce_tiles):
            result = result or strategy(scope, reducer, compact, windows)
    if result is None:
        neutral = _make_neutral_element(reducer, array.element)
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
    array = windows.pad(scope, array, _make_neutral_element(reducer, array.element))
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
    scope: Scope, combine: Combine, arrays: Arrays, inits: Arrays, windows: Windows
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

    def combine_flagged(scope: Scope, left: Arrays, right: Arrays) -> list[Array]:
        left_flag, right_flag = scope.compact(left[-1]), scope.compact(right[-1])
        both = left_flag & right_flag
        combined = combine(scope, left[:-1], right[:-1])
        results = [
            select(scope, both, result, select(scope, left_flag, a, b))
            for result, a, b in zip(combined, left[:-1], right[:-1], strict=True)
        ]
        return [*results, scope.new_array(left_flag | right_flag, "i1", results[0].sizes)]

    return combine_flagged


def _reduce_by_axis(
    scope: Scope, combine: Combine, arrays: Arrays, neutrals: Arrays, windows: Windows
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
    scope: Scope, combine: Combine, columns: Arrays, neutrals: Arrays, windows: Windows, axis: int
) -> list[Array]:
    window, stride = windows.sizes[axis], windows.strides[axis]
    dilation = windows.dilations[axis]
    sizes = columns[0].sizes
    count = count_windows(scope, sizes[axis], window, stride, dilation)

    def part(arrays: Arrays, start: Dim, length: Dim, step: Dim) -> list[Array]:
        return [slice_axis(scope, array, axis, start, length, step) for array in arrays]

    if not isinstance(window, int):
        starts = ops.range(scope.sizes.size(count)) * scope.sizes.size(stride)
        within = ops.range(scope.sizes.size(window)) * scope.sizes.size(dilation)
        index = starts[:, ops.newaxis] + within
        wide = (*sizes[:axis], count, window, *sizes[axis + 1 :])
        tensors = (ops.gather(scope.tensor(column), index, axis=axis) for column in columns)
        apart = scope.new_arrays(tensors, columns, wide)
        return reduce_by(scope, combine, apart, neutrals, [axis + 1])
    if window <= _MAX_UNROLLED_WINDOW:
        parts = [part(columns, k * dilation, count, stride) for k in range(window)]
        return functools.reduce(lambda a, b: combine(scope, a, b), parts)
    # Windows of 1, 2, 4, ... elements consist of two halves; some of them form the whole window.
    span = count_windows(scope, sizes[axis], window, 1, dilation)
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


# The gradient of MaxPool.


def _has_pool_gradient(extreme: str | None, array: Array, windows: Windows) -> bool:
    """Returns whether `_pool_gradient` supports windows and a selector for finite numbers."""
    if extreme is None or array.row.kind != "float" or not _are_images(windows.axes):
        return False
    return not any((*windows.low, *windows.high))


def _pool_gradient(
    scope: Scope, extreme: str, array: Array, source: Array, windows: Windows
) -> Array:
    """Adds values of `source` at the extreme of each window of `array`, with MaxPoolGrad."""
    larger = pad_to(scope, array, windows.extents)
    source = pad_to(scope, source, windows.counts(scope, larger.sizes))
    images = _Images.of(windows.axes, array.rank)
    tensor = images.tensor(scope, larger)
    if extreme == "minimum":
        tensor = -tensor
    ksize, strides = images.shape(windows.sizes), images.shape(windows.strides)
    result = ops.raw_ops.MaxPoolGrad(
        orig_input=tensor,
        orig_output=ops.nn.max_pool2d(tensor, ksize, strides, "VALID"),
        grad=images.tensor(scope, source),
        ksize=ksize,
        strides=strides,
        padding="VALID",
    )
    return take_first(scope, images.array(scope, result, array.element, larger.sizes), array.sizes)


# select_and_scatter, of which the gradient of a pool is one.


@emits("select_and_scatter")
def _select_and_scatter(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    array, source, init = operands
    windows = _read_windows(operation, array.rank)
    if 0 in array.sizes or 0 in source.sizes:
        return broadcast(scope, init, array.sizes, ())
    selector, body = operation.regions
    extreme = match_selected_extreme(selector)

    def by_index(scope: Scope) -> Array:
        return _scatter_by_index(scope, operation, operands, windows)

    is_sum = match_reducers(body) == [Reducer("add", array.element)] and init.scalar == 0
    # No converter of graphs knows MaxPoolGrad.
    has_pool = is_sum and _has_pool_gradient(extreme, array, windows)
    if scope.is_for_any_converter or not has_pool:
        return by_index(scope)
    assert extreme is not None, "_has_pool_gradient() is false for other selectors"

    def by_pool(scope: Scope) -> Array:
        return _pool_gradient(scope, extreme, array, source, windows)

    def branch(function: Callable[[Scope], Array]) -> ops.Tensor:
        inner = scope.new_region(other_graph=True)
        return inner.tensor(function(inner))

    for operand in (array, source):
        scope.compact(operand)  # computed here, so that both branches can use it
    result = _if_finite(scope, array, lambda: branch(by_pool), lambda: branch(by_index))
    return scope.new_array(result, array.element, array.sizes)


def _scatter_by_index(
    scope: Scope, operation: Operation, operands: Arrays, windows: Windows
) -> Array:
    """Finds the index of the selected element of each window, and scatters to these indices."""
    array, source, init = operands
    total, count = multiply_sizes(array.sizes), multiply_sizes(source.sizes)
    may_be_long = not isinstance(total, int) or total > ops.int32.max
    element = "i64" if may_be_long and not scope.is_for_any_converter else "i32"
    index = iota(scope, element, (total,), 0)
    none = Array(element, (), known=np.array(-1, index.graph_dtype.as_numpy_dtype))
    indices = _select_indices(
        scope, operation.regions[0], array, reshape(scope, index, array.sizes), none, windows
    )
    attributes: dict[str, Attribute] = {
        **{"index_vector_dim": 1, "update_window_dims": ()},
        **{"inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,)},
    }
    body = operation.regions[1:]
    (result,) = scatter(
        scope,
        Operation("scatter", (), operation.results, attributes, body, operation.source),
        [
            broadcast(scope, init, (total,), ()),
            reshape(scope, take_first(scope, indices, source.sizes), (count, 1)),
            reshape(scope, source, (count,)),
        ],
    )
    return reshape(scope, result, array.sizes)


def _select_indices(
    scope: Scope, selector: Block, array: Array, index: Array, none: Array, windows: Windows
) -> Array:
    """Returns the index of the selected element of each window; `none` for padding alone."""

    def choose(scope: Scope, left: Arrays, right: Arrays) -> list[Array]:
        (verdict,) = scope.new_region().run(selector, [left[0], right[0]])
        keeps = scope.compact(fit_sizes(scope, verdict, sizes))
        return [select(scope, keeps, a, b) for a, b in zip(left, right, strict=True)]

    columns = [(array, zeros(array.element)), (index, none)]
    if windows.has_padding:
        columns.append((Array("i1", array.sizes, known=np.array(True)), zeros("i1")))
    padded = [
        pad_to(scope, windows.pad(scope, column, filler), windows.extents)
        for column, filler in columns
    ]
    sizes = windows.without_padding.counts(scope, padded[0].sizes)

    def at(array: Array, place: Sequence[int]) -> Array:
        limits = [
            first + (size - 1) * stride + 1
            for first, size, stride in zip(place, sizes, windows.strides, strict=True)
        ]
        return fit_sizes(scope, slice_array(scope, array, place, limits, windows.strides), sizes)

    # In row-major order, because comparisons with NaN are not associative.
    places = itertools.product(*(range(n) for n in windows.sizes if isinstance(n, int)))
    elements = [[at(column, place) for column in padded] for place in places]
    combine = _skip_unflagged(choose) if windows.has_padding else choose
    return functools.reduce(functools.partial(combine, scope), elements)[1]
