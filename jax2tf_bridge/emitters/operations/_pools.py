"""Windows over arrays, and TensorFlow's pools, which reduce them.

The pools are fast, and LiteRT supports them. But MaxPool skips NaN, and returns the lowest finite
number for a window of -inf only. So a pool first checks whether all numbers are finite, and
otherwise uses a slower exact form. Converters of TensorFlow's graphs get only MaxPool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from jax2tf_bridge.emitters._array import Array, Shape, graph_dtype
from jax2tf_bridge.emitters._folding import convert_array
from jax2tf_bridge.emitters._movement import (
    fit_sizes,
    multiply_sizes,
    pad,
    pad_to,
    reshape_whole,
    take_first,
    transpose,
)
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.emitters.formulas.integers import constant_like
from jax2tf_bridge.rewriting import Reducer
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


def make_neutral_element(reducer: Reducer, element: str) -> Array:
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


def reduce_by_pool(scope: Scope, reducer: Reducer, array: Array, windows: Windows) -> Array | None:
    """Reduces windows with a pool; returns None if there is none for them."""
    if not _has_pool(scope, reducer, array, windows):
        return None
    element, source = array.element, array
    counts = sizes = windows.counts(scope, array.sizes)
    mode = "SAME" if reducer.name == "maximum" and _is_same(scope, array, windows) else "VALID"
    if mode == "VALID":
        array = windows.pad(scope, array, make_neutral_element(reducer, element))
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

    return if_finite(scope, source, lambda: pool(ops.nn.max_pool2d), lambda: pool(_exact_max_pool))


def if_finite(
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


# The gradient of MaxPool.


def has_pool_gradient(extreme: str | None, array: Array, windows: Windows) -> bool:
    """Returns whether `pool_gradient` supports windows and a selector for finite numbers."""
    if extreme is None or array.row.kind != "float" or not _are_images(windows.axes):
        return False
    return not any((*windows.low, *windows.high))


def pool_gradient(
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
