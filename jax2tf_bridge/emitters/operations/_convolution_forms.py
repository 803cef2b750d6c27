"""Convolutions of arrays in TensorFlow's layouts, one function per operation.

Images are [batch, *spatial, feature] and kernels [*spatial, in, out].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jax2tf_bridge.emitters._array import Array, Arrays, Shape, zeros
from jax2tf_bridge.emitters._movement import (
    pad,
    reshape,
    reshape_whole,
    resize,
    slice_array,
    transpose,
)
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.emitters.formulas.conversions import choose_exact_dtype
from jax2tf_bridge.emitters.operations._dot_general import contract, is_bytes
from jax2tf_bridge.emitters.operations._windows import count_windows, find_same_padding
from shape_poly import Dim

ELEMENTS = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "int8": "i8",
    "uint8": "ui8",
    "int32": "i32",
    "int64": "i64",
}
"""Element types in which convolutions are computed."""


@dataclass(frozen=True)
class Axis:
    """Spatial axis of a convolution.

    Attributes:
      size: the size of the image.
      window: the size of the kernel.
      stride: the stride of the window.
      low: the padding before the image; negative to drop elements.
      high: the padding after it.
      spread: the dilation of the image.
      dilation: the dilation of the kernel.
      result: the size of the result.
    """

    size: Dim
    window: Dim
    stride: int = 1
    low: Dim = 0
    high: Dim = 0
    spread: int = 1
    dilation: int = 1
    result: Dim = 1

    @property
    def extent(self) -> Dim:
        """Size of the dilated window."""
        return (self.window - 1) * self.dilation + 1


def find_result_size(scope: Scope, axis: Axis) -> Dim:
    """Computes the number of positions of a window."""
    spread = axis.size if axis.spread == 1 else (axis.size - 1) * axis.spread + 1
    if scope.sizes.bounds(spread)[0] < 0:
        spread = scope.sizes.maximum(spread, 0)
    padded = spread + axis.low + axis.high
    return count_windows(scope, padded, axis.window, axis.stride, axis.dilation)


def make_planar(
    scope: Scope, image: Array, kernel: Array, axes: Sequence[Axis]
) -> tuple[Array, Array, tuple[Axis, ...]]:
    """Adds a spatial axis of size 1 to a one-dimensional convolution."""
    if len(axes) != 1:
        return image, kernel, tuple(axes)
    return add_row(scope, image, 1), add_row(scope, kernel, 0), (Axis(1, 1), *axes)


def add_row(scope: Scope, array: Array, place: int) -> Array:
    return reshape_whole(scope, array, (*array.sizes[:place], 1, *array.sizes[place:]))


def convolve(scope: Scope, image: Array, kernel: Array, axes: Sequence[Axis], groups: int) -> Array:
    """Convolves over two or three axes with Conv2D, DepthwiseConv2dNative or Conv3D."""
    sizes = (image.sizes[0], *(axis.result for axis in axes), kernel.sizes[-1])
    # TensorFlow.js has either strides or dilations, and no groups.
    has_both = all(any(getattr(axis, name) > 1 for axis in axes) for name in ("stride", "dilation"))
    if len(axes) == 3 or (scope.for_frozen_graph and has_both):
        kernel, axes = _dilate_kernel(scope, kernel, axes)
    image, axes, padding = _pad(scope, image, axes)
    strides, dilations = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    x, w = scope.tensor(image), scope.tensor(kernel)
    is_deep = groups > 1 and kernel.sizes[-2] == 1 and max(dilations) == 1
    stride = _find_shared(axes, strides) if is_deep else None
    if len(axes) == 3:
        around = _around(strides)
        tensor = _by_groups(lambda a, b: ops.nn.conv3d(a, b, around, padding), x, w, groups)
    elif stride is not None:
        x = ops.cast(x, choose_exact_dtype(x.dtype))
        w = ops.cast(_deep_kernel(scope, kernel, groups), x.dtype)
        tensor = ops.nn.depthwise_conv2d(x, w, _around([stride, stride]), padding)
    else:
        around = _around(strides)

        def convolve_group(a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
            return ops.nn.conv2d(a, b, around, padding, dilations=_around(dilations))

        tensor = _by_groups(convolve_group, x, w, groups if scope.for_frozen_graph else 1)
    return _array(scope, image, tensor, sizes)


def convolve_in_onnx(
    scope: Scope, image: Array, kernel: Array, axes: Sequence[Axis], groups: int
) -> Array:
    """Convolves with ONNX's Conv, which has any number of axes, groups and uneven padding."""
    sizes = (image.sizes[0], *(axis.result for axis in axes), kernel.sizes[-1])
    amounts = [amount for axis in axes for amount in (axis.low, axis.high)]
    if any(axis.spread != 1 for axis in axes) or not all(
        isinstance(amount, int) and amount >= 0 for amount in amounts
    ):
        image = _pad_with_zeros(scope, image, axes)
        amounts = [0] * len(amounts)
    tensor = ops.convolution(
        scope.tensor(image),
        scope.tensor(kernel),
        strides=[axis.stride for axis in axes],
        dilations=[axis.dilation for axis in axes],
        low=amounts[::2],
        high=amounts[1::2],
        groups=groups,
    )
    return _array(scope, image, tensor, sizes)


def convolve_transposed(
    scope: Scope, image: Array, kernel: Array, axes: Sequence[Axis], groups: int
) -> Array:
    """Convolves a dilated image, with TensorFlow's gradient of a strided convolution.

    That convolution has the reversed kernel [*spatial, out, in]. The axes have no strides and no
    dilation, and the groups are 1, or the number of input and output features.
    """
    batch, features = image.sizes[0], kernel.sizes[-2] if groups == 1 else groups
    sizes = (batch, *(axis.result for axis in axes), features)
    strides = [axis.spread for axis in axes]
    # The axes of the strided convolution, which maps the result to the image.
    others = [
        Axis(a.result, a.window, a.spread, a.window - 1 - a.low, a.window - 1 - a.high)
        for a in axes
    ]
    padding = _find_gradient_padding(others, remainder=True)
    if padding is None:
        spatial = [(axis.size - 1) * axis.spread + axis.window for axis in axes]
    else:
        spatial = [axis.result for axis in axes]
    full_sizes = (batch, *spatial, features)
    x, w = scope.tensor(image), scope.tensor(kernel)
    if groups > 1:
        function = ops.raw_ops.DepthwiseConv2dNativeBackpropInput
        stride = _find_shared(axes, strides)
        assert stride is not None, "the caller checked it"
        strides = [stride] * 2
        x = ops.cast(x, choose_exact_dtype(x.dtype))
        w = ops.cast(_deep_kernel(scope, kernel, groups), x.dtype)
    elif len(axes) == 2:
        function = ops.raw_ops.Conv2DBackpropInput
    else:
        function = ops.raw_ops.Conv3DBackpropInputV2
    tensor = function(
        input_sizes=scope.sizes.shape(full_sizes),
        filter=w,
        out_backprop=x,
        strides=_around(strides),
        padding=padding or "VALID",
    )
    result = _array(scope, image, tensor, full_sizes)
    if padding is not None:
        return result
    low = [0, *(axis.low - axis.window + 1 for axis in axes), 0]
    high = [0, *(axis.high - axis.window + 1 for axis in axes), 0]
    cut = pad(scope, result, zeros(result.element), low, high, [0] * result.rank)
    return resize(cut, sizes)


def correlate(
    scope: Scope, image: Array, cotangent: Array, axes: Sequence[Axis], groups: int
) -> Array:
    """Convolves with a large window, with TensorFlow's gradient with respect to a kernel.

    The window is the cotangent [batch, *spatial, out], and the result [*spatial, in / groups, out].
    The axes have no strides and no image dilation.
    """
    window = [axis.result for axis in axes]
    features, out = image.sizes[-1], cotangent.sizes[-1]
    strides = [axis.dilation for axis in axes]
    others = [Axis(axis.size, axis.result, axis.dilation, axis.low, axis.high) for axis in axes]
    padding = _find_gradient_padding(others, remainder=False)
    if padding is None:
        padding = "VALID"
        image = _pad_with_zeros(scope, image, axes)
    sizes = (*window, features if groups == 1 else features // groups, out)
    x, y = scope.tensor(image), scope.tensor(cotangent)
    is_deep = 1 < groups == features and len(axes) == 2
    stride = _find_shared(axes, strides) if is_deep else None
    kernel_sizes = (*sizes[:-1], out if groups == 1 else out // groups)
    if stride is not None:
        function = ops.raw_ops.DepthwiseConv2dNativeBackpropFilter
        kernel_sizes, strides = (*window, features, out // groups), [stride] * 2
        x, y = (ops.cast(tensor, choose_exact_dtype(tensor.dtype)) for tensor in (x, y))
    elif len(axes) == 2:
        function = ops.raw_ops.Conv2DBackpropFilter
    else:
        function = ops.raw_ops.Conv3DBackpropFilterV2
    shape = scope.sizes.shape(kernel_sizes)

    def apply(a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
        around = _around(strides)
        return function(
            input=a, filter_sizes=shape, out_backprop=b, strides=around, padding=padding
        )

    if stride is not None:
        return reshape_whole(scope, _array(scope, image, apply(x, y), kernel_sizes), sizes)
    return _array(scope, image, _by_groups(apply, x, y, groups), sizes)


def convolve_by_positions(
    scope: Scope, image: Array, kernel: Array, axes: Sequence[Axis], groups: int
) -> Array:
    """Convolves in any dtype over any number of axes, with one product per window element.

    The spatial sizes of the kernel must be known.
    """
    sizes = (image.sizes[0], *(axis.result for axis in axes), kernel.sizes[-1])
    in_bytes = is_bytes(scope.tensor(image))
    exact = "i32" if in_bytes else ELEMENTS[choose_exact_dtype(image.graph_dtype).name]
    padded = _pad_with_zeros(scope, image, axes)
    places = [range(axis.window) if isinstance(axis.window, int) else () for axis in axes]
    strides = [1, *(axis.stride for axis in axes), 1]
    parts, kernels = [], []
    for place in itertools.product(*places):
        starts = [0, *(i * axis.dilation for i, axis in zip(place, axes, strict=True)), 0]
        lengths = [(axis.result - 1) * axis.stride + 1 for axis in axes]
        limits = [
            padded.sizes[0],
            *(a + b for a, b in zip(starts[1:-1], lengths, strict=True)),
            padded.sizes[-1],
        ]
        part = slice_array(scope, padded, starts, limits, strides)
        parts.append(resize(part, (*sizes[:-1], padded.sizes[-1])))
        kernels.append(Array(kernel.element, kernel.sizes[-2:], scope.tensor(kernel)[place]))
    if in_bytes:  # one product of all positions needs no sums
        *inner, out = kernel.sizes
        kernels = [reshape(scope, kernel, (math.prod(inner), out))]
        parts = [_join(scope, parts, groups)]
    tensors = [
        scope.tensor(_grouped_product(scope, part, weights, exact, groups))
        for part, weights in zip(parts, kernels, strict=True)
    ]
    tensor = tensors[0] if len(tensors) == 1 else ops.add_n(tensors)
    return _array(scope, image, tensor, sizes)


def _join(scope: Scope, parts: Arrays, groups: int) -> Array:
    """Joins the features of images, group by group."""
    *outer, features = parts[0].sizes
    if groups > 1:
        outer, features = [*outer, groups], features // groups
        parts = [reshape(scope, part, (*outer, features)) for part in parts]
    joined = ops.concat([scope.tensor(part) for part in parts], -1)
    array = scope.new_array(joined, parts[0].element, (*outer, len(parts) * features))
    if groups == 1:
        return array
    return reshape(scope, array, (*outer[:-1], groups * len(parts) * features))


def _grouped_product(
    scope: Scope, image: Array, weights: Array, element: str, groups: int
) -> Array:
    last = image.rank - 1
    if groups == 1:
        return contract(scope, image, weights, element, batch=((), ()), contracting=((last,), (0,)))
    inner, out = weights.sizes
    left = reshape(scope, image, (*image.sizes[:-1], groups, inner))
    right = reshape(scope, weights, (inner, groups, out // groups))
    product = contract(
        scope, left, right, element, batch=((last,), (1,)), contracting=((last + 1,), (0,))
    )
    moved = transpose(scope, product, (*range(1, last + 1), 0, last + 1))
    return reshape(scope, moved, (*image.sizes[:-1], out))


def _by_groups(
    function: Callable[[ops.Tensor, ops.Tensor], ops.Tensor],
    left: ops.Tensor,
    right: ops.Tensor,
    groups: int,
) -> ops.Tensor:
    """Applies a function to each group of the last axes, because no operation has groups."""
    if groups == 1:
        return function(left, right)
    pairs = zip(ops.split(left, groups, -1), ops.split(right, groups, -1), strict=True)
    return ops.concat([function(x, y) for x, y in pairs], -1)


def _find_shared(axes: Sequence[Axis], strides: Sequence[int]) -> int | None:
    """Returns the common stride of all axes, which depthwise convolutions require; None without."""
    distinct = {
        stride
        for axis, stride in zip(axes, strides, strict=True)
        if not (axis.size == axis.window == axis.result == 1)
    }
    return None if len(distinct) > 1 else next(iter(distinct), 1)


def _deep_kernel(scope: Scope, kernel: Array, groups: int) -> ops.Tensor:
    """Reshapes a kernel of groups with one input feature to [*spatial, in, multiplier]."""
    each = math.prod(kernel.sizes[-2:]) // groups
    return scope.tensor(reshape_whole(scope, kernel, (*kernel.sizes[:-2], groups, each)))


def _dilate_kernel(
    scope: Scope, kernel: Array, axes: Sequence[Axis]
) -> tuple[Array, tuple[Axis, ...]]:
    """Dilates a kernel, because TensorFlow's Conv3D on CPUs does not support dilation."""
    if all(axis.dilation == 1 for axis in axes):
        return kernel, tuple(axes)
    nothing = [0] * kernel.rank
    holes = [*(axis.dilation - 1 for axis in axes), 0, 0]
    spaced = pad(scope, kernel, zeros(kernel.element), nothing, nothing, holes)
    return spaced, tuple(replace(axis, window=axis.extent, dilation=1) for axis in axes)


def _pad(scope: Scope, image: Array, axes: Sequence[Axis]) -> tuple[Array, tuple[Axis, ...], str]:
    """Pads an image; returns it unchanged if the padding is VALID or SAME, with that name."""
    if all(axis.spread == 1 for axis in axes):
        padding = _find_padding_name(scope, axes)
        if padding is not None:
            return image, tuple(axes), padding
    padded = _pad_with_zeros(scope, image, axes)
    rest = tuple(
        replace(axis, size=size, low=0, high=0, spread=1)
        for axis, size in zip(axes, padded.sizes[1:-1], strict=True)
    )
    return padded, rest, "VALID"


def _pad_with_zeros(scope: Scope, image: Array, axes: Sequence[Axis]) -> Array:
    low, high = [0, *(axis.low for axis in axes), 0], [0, *(axis.high for axis in axes), 0]
    holes = [0, *(axis.spread - 1 for axis in axes), 0]
    # oneDNN's kernels of 16-bit floats for AMX may end the process if they pad a window that has no
    # element of the image.
    may_fuse = scope.is_for_any_converter or not (
        image.element in ("f16", "bf16")
        and any(
            scope.sizes.bounds(amount - axis.extent)[1] >= 0
            for axis in axes
            for amount in (axis.low, axis.high)
        )
    )
    return pad(scope, image, zeros(image.element), low, high, holes, may_fuse=may_fuse)


def _find_padding_name(scope: Scope, axes: Sequence[Axis]) -> str | None:
    if all(axis.low == 0 and axis.high == 0 for axis in axes):
        return "VALID"
    is_same = all(
        (axis.low, axis.high) == find_same_padding(scope, axis.size, axis.extent, axis.stride)
        for axis in axes
    )
    return "SAME" if is_same else None


def _find_gradient_padding(axes: Sequence[Axis], *, remainder: bool) -> str | None:
    """Recognizes the padding of a convolution from that of its gradient.

    In the gradient, the last window ends with the padding.

    Args:
      axes: the axes of the convolution.
      remainder: whether elements after the last window are allowed.
    """
    if all(
        axis.low == 0
        and isinstance(axis.high, int)
        and (-axis.stride < axis.high <= 0 if remainder else axis.high == 0)
        for axis in axes
    ):
        return "VALID"
    for axis in axes:
        low, high, window = axis.low, axis.high, axis.window
        if not (isinstance(low, int) and isinstance(high, int) and isinstance(window, int)):
            return None
        total = low + high
        if low < 0 or low != total // 2 or not 1 <= window - total <= axis.stride:
            return None
    return "SAME"


def _around(numbers: Sequence[int]) -> list[int]:
    return [1, *numbers, 1]


def _array(scope: Scope, like: Array, tensor: ops.Tensor, sizes: Shape) -> Array:
    """Makes an array with the element type of another one; of int32 for products of bytes."""
    if not is_bytes(scope.tensor(like)):
        tensor = ops.cast(tensor, like.graph_dtype)
    return Array(ELEMENTS[tensor.dtype.name], tuple(sizes), scope.set_shape(tensor, sizes))
