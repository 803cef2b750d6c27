"""Convolutions with any dimension numbers, strides, dilations, groups and dtypes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays, Shape, zeros
from jax2tf_bridge.emitters._movement import (
    pad_to,
    reshape,
    reshape_ones,
    reshape_whole,
    reverse_axes,
    take_first,
    transpose,
)
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.emitters._sizes import MIN_COMPUTED_AMOUNT, fill_sizes
from jax2tf_bridge.emitters.formulas.conversions import (
    choose_accumulation_dtype,
    from_accumulation,
    to_accumulation,
)
from jax2tf_bridge.emitters.operations._convolution_forms import (
    ELEMENTS,
    Axis,
    add_row,
    convolve,
    convolve_by_positions,
    convolve_in_onnx,
    convolve_transposed,
    correlate,
    find_result_size,
    make_planar,
)
from jax2tf_bridge.emitters.operations._dot_general import multiplies_bytes
from shape_poly import Dim

_MAX_POSITIONS = 4096
"""Maximum number of window elements for convolution by one product per element."""
_MAX_SEPARATE_GROUPS = 64
"""Maximum number of groups with one operation each, if another form exists."""


@dataclass(frozen=True)
class _Numbers:
    """Dimension numbers: the axes of each array.

    Attributes:
      image: the axes (batch, *spatial, feature) of the image.
      kernel: the axes (*spatial, in, out) of the kernel.
      result: the axes (batch, *spatial, feature) of the result.
    """

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]


@dataclass(frozen=True)
class _Convolution:
    """Convolution of real numbers or integers, in the layouts of the operands.

    Attributes:
      image: the left operand.
      kernel: the right operand, before reversal.
      backwards: the axes along which the kernel must be reversed.
      numbers: the dimension numbers.
      axes: the spatial axes.
      groups: the number of feature groups.
      batch_groups: the number of batch groups.
    """

    image: Array
    kernel: Array
    backwards: frozenset[int]
    numbers: _Numbers
    axes: tuple[Axis, ...]
    groups: int
    batch_groups: int

    @property
    def is_float(self) -> bool:
        """Returns whether TensorFlow has all forms of convolutions for the dtype."""
        return self.image.row.kind == "float"


@emits("convolution", "dynamic_conv")
def _convolution(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    left, right, *padding = operands
    element = operation.result_type.element
    numbers = _read_numbers(operation)
    amounts = _read_padding(scope, operation, padding)
    axes = _read_axes(scope, operation, numbers, left, right, amounts)
    batch_groups = operation.int("batch_group_count")
    groups = operation.int("feature_group_count")

    def find_result_sizes() -> tuple[Dim, ...]:
        batch = left.sizes[numbers.image[0]]
        batch = batch if batch_groups == 1 else batch // batch_groups
        return (batch, *(axis.result for axis in axes), right.sizes[numbers.kernel[-1]])

    known = operation.result_type.shape
    rows = fill_sizes([known[axis] for axis in numbers.result], find_result_sizes())
    axes = tuple(replace(a, result=n) for a, n in zip(axes, rows[1:-1], strict=True))
    sizes = tuple(rows[numbers.result.index(axis)] for axis in range(len(rows)))
    if 0 in (*rows, *left.sizes, *right.sizes):
        return zeros(element, sizes)
    left, right, axes = _pad_for_windows(scope, numbers, left, right, axes, (groups, batch_groups))

    def convolve_parts(image: ops.Tensor, kernel: ops.Tensor) -> ops.Tensor:
        flags = operation.flags("window_reversal")
        backwards = {axis for axis, flag in zip(numbers.kernel, flags, strict=False) if flag}
        whole = _Convolution(
            Array(ELEMENTS[image.dtype.name], left.sizes, image),
            Array(ELEMENTS[kernel.dtype.name], right.sizes, kernel),
            frozenset(axis for axis in backwards if right.sizes[axis] != 1),
            numbers,
            axes,
            groups,
            batch_groups,
        )
        return scope.tensor(_convolve(scope, operation, whole))

    dtype = choose_accumulation_dtype(left.element, right.element, element)
    image, kernel = (scope.tensor(array) for array in (left, right))
    if not multiplies_bytes(scope, left.element, right.element, element):
        image, kernel = (to_accumulation(x, dtype) for x in (image, kernel))
    if dtype.is_complex:
        (a, b), (c, d) = ((ops.math.real(x), ops.math.imag(x)) for x in (image, kernel))
        real = ops.subtract(convolve_parts(a, c), convolve_parts(b, d))
        tensor = ops.complex(real, ops.add(convolve_parts(a, d), convolve_parts(b, c)))
    else:
        tensor = convolve_parts(image, kernel)
    padded = find_result_sizes()
    whole = [padded[numbers.result.index(axis)] for axis in range(len(padded))]
    array = scope.new_array(from_accumulation(tensor, element), element, whole)
    return take_first(scope, array, sizes)


def _pad_for_windows(
    scope: Scope,
    numbers: _Numbers,
    left: Array,
    right: Array,
    axes: Sequence[Axis],
    groups: tuple[int, int],
) -> tuple[Array, Array, tuple[Axis, ...]]:
    """Pads arrays that may be empty, or smaller than a window, so that there is a result.

    Zeros are appended, so the first elements of the result do not change.
    """
    of_image, of_kernel = [1] * left.rank, [1] * right.rank
    least: list[Dim] = list(of_image)
    least[numbers.image[0]], least[numbers.image[-1]] = groups[1], groups[0]
    of_kernel[numbers.kernel[-1]] = math.prod(groups)
    right = pad_to(scope, right, of_kernel)
    new_axes: list[Axis] = []
    for axis, place, window in zip(axes, numbers.image[1:-1], numbers.kernel[:-2], strict=True):
        wide = replace(axis, window=right.sizes[window])
        if wide.window != axis.window:
            # Image and window are padded equally, so the result does not change.
            more = -((axis.extent - wide.extent) // axis.spread)
            wide = replace(wide, size=axis.size + more)
        if min(scope.sizes.bounds(size)[0] for size in (wide.size, axis.result)) < 1:
            # The size at which the window fits into the image once.
            needed = 1 - (axis.low + axis.high + 1 - wide.extent) // axis.spread
            size = scope.sizes.maximum(wide.size, scope.sizes.maximum(needed, 1))
            wide = replace(wide, size=size, result=1)
            wide = replace(wide, result=find_result_size(scope, wide))
        least[place] = wide.size
        new_axes.append(wide)
    return pad_to(scope, left, least), right, tuple(new_axes)


def _read_numbers(operation: Operation) -> _Numbers:
    def number(name: str) -> int:
        return operation.int(f"{name}_dimension")

    def spatial(name: str) -> tuple[int, ...]:
        return operation.ints(f"{name}_spatial_dimensions")

    return _Numbers(
        (number("input_batch"), *spatial("input"), number("input_feature")),
        (*spatial("kernel"), number("kernel_input_feature"), number("kernel_output_feature")),
        (number("output_batch"), *spatial("output"), number("output_feature")),
    )


def _read_padding(scope: Scope, operation: Operation, operands: Arrays) -> Shape:
    if not operands:
        return operation.ints("padding")
    n = 2 * len(operation.ints("input_spatial_dimensions"))
    flat = reshape(scope, operands[0], (n,))
    return scope.sizes_of(flat, [None] * n, least=MIN_COMPUTED_AMOUNT)


def _read_axes(
    scope: Scope, operation: Operation, numbers: _Numbers, left: Array, right: Array, padding: Shape
) -> tuple[Axis, ...]:
    columns = zip(
        [left.sizes[axis] for axis in numbers.image[1:-1]],
        [right.sizes[axis] for axis in numbers.kernel[:-2]],
        operation.ints("window_strides"),
        padding[::2],
        padding[1::2],
        operation.ints("lhs_dilation"),
        operation.ints("rhs_dilation"),
        strict=True,
    )
    new_axes = []
    for size, window, stride, low, high, spread, dilation in columns:
        # A single element has no spacing.
        spread, dilation = 1 if size == 1 else spread, 1 if window == 1 else dilation
        axis = Axis(size, window, stride, low, high, spread, dilation)
        new_axes.append(replace(axis, result=find_result_size(scope, axis)))
    return tuple(new_axes)


def _convolve(scope: Scope, operation: Operation, whole: _Convolution) -> Array:
    """Chooses an operation of TensorFlow; the result has the layout of the dimension numbers."""
    if _misreads_rows(whole):
        whole = _swap_spatial_axes(whole)
    numbers, axes = whole.numbers, whole.axes
    n = len(axes)
    if _is_gradient_for_kernel(whole) and not scope.for_onnx:
        return _gradient_for_kernel(scope, whole)
    image = _order_axes(scope, whole.image, numbers.image)
    groups = whole.groups
    if whole.batch_groups > 1:
        image, groups = _groups_to_features(scope, image, whole.batch_groups), whole.batch_groups
    if _is_transposed(whole, image, groups) and not scope.for_onnx:
        # TensorFlow's operation expects the reversed kernel.
        places = [i for i in range(n) if axes[i].window != 1]
        reverse = [i for i in places if numbers.kernel[i] not in whole.backwards]
        *spatial, inner, out = numbers.kernel
        order = (*spatial, out, inner) if groups == 1 else numbers.kernel
        kernel = _order_axes(scope, whole.kernel, order, reverse)
        planes = make_planar(scope, image, kernel, axes)
        result = convolve_transposed(scope, *planes, groups)
    else:
        reverse = [i for i in range(n) if numbers.kernel[i] in whole.backwards]
        kernel = _order_axes(scope, whole.kernel, numbers.kernel, reverse)
        is_flat = (whole.is_float and 1 <= n <= 3) or (
            image.element == "i32" and 1 <= n <= 2 and groups == 1
        )
        if scope.for_onnx:
            is_flat = image.element in ("f16", "f32", "i8", "ui8") and n > 0
        if is_flat and scope.for_onnx:
            result = convolve_in_onnx(scope, image, kernel, axes, groups)
        elif is_flat:
            result = convolve(scope, *make_planar(scope, image, kernel, axes), groups)
        else:
            windows = [axis.window for axis in axes]
            count = math.prod(windows)
            if not isinstance(count, int) or count > _MAX_POSITIONS:
                scope.fail(
                    operation,
                    f"a window of {' x '.join(map(str, windows))} over {n} axes of {image.element}",
                )
            result = convolve_by_positions(scope, image, kernel, axes, groups)
    if n == 1 and result.rank == 4:
        result = reshape_whole(scope, result, (result.sizes[0], *result.sizes[2:]))
    return _order_result(scope, result, range(n + 2), numbers)


def _misreads_rows(whole: _Convolution) -> bool:
    """Returns whether oneDNN's kernel in TensorFlow 2.21 may compute with the wrong elements.

    It does if the stride is larger in rows than between them, each group has one channel, and
    rows of the result have one element.
    """
    if len(whole.axes) != 2 or whole.kernel.sizes[whole.numbers.kernel[-2]] != 1:
        return False
    between, within = whole.axes
    may_be_one = within.result == 1 or not isinstance(within.result, int)
    return between.stride < within.stride and may_be_one


def _swap_spatial_axes(whole: _Convolution) -> _Convolution:
    numbers = whole.numbers
    (batch, i, j, feature), (m, n, *features) = numbers.image, numbers.kernel
    first, u, v, last = numbers.result
    swapped = _Numbers((batch, j, i, feature), (n, m, *features), (first, v, u, last))
    return replace(whole, numbers=swapped, axes=whole.axes[::-1])


def _order_result(scope: Scope, result: Array, layout: Sequence[int], numbers: _Numbers) -> Array:
    """Reorders the axes of a result; axis i is number layout[i] of (batch, *spatial, feature)."""
    places = [numbers.result[i] for i in layout]
    return transpose(scope, result, [places.index(axis) for axis in range(len(places))])


def _is_transposed(whole: _Convolution, image: Array, groups: int) -> bool:
    """Returns whether TensorFlow can compute a convolution as a transposed one."""
    axes, numbers = whole.axes, whole.numbers
    if not whole.is_float or not 1 <= len(axes) <= 3:
        return False
    if any(axis.stride != 1 or axis.dilation != 1 for axis in axes):
        return False
    spread = {axis.spread for axis in axes if not axis.size == axis.window == axis.result == 1}
    if groups > 1:
        out = whole.kernel.sizes[numbers.kernel[-1]]
        is_deep = groups == image.sizes[-1] == out and len(axes) <= 2
        return is_deep and len(spread) == 1 and spread != {1}
    if spread - {1}:
        return True
    # The transposed form is as fast, and avoids transposing and reversing the kernel.
    live = {axis for axis in numbers.kernel[:-2] if whole.kernel.sizes[axis] != 1}
    swapped = (*numbers.kernel[:-2], numbers.kernel[-1], numbers.kernel[-2])
    is_reversed = bool(live) and whole.backwards == live
    return is_reversed and _is_sorted(whole.kernel.sizes, swapped)


def _is_gradient_for_kernel(whole: _Convolution) -> bool:
    """Returns whether a convolution has a large window, like gradients with respect to kernels."""
    axes, groups = whole.axes, whole.batch_groups
    if not whole.is_float or not 1 <= len(axes) <= 3 or whole.groups > 1 or whole.backwards:
        return False
    if any(axis.stride != 1 or axis.spread != 1 for axis in axes):
        return False
    if whole.numbers.image[-1] > whole.numbers.image[0]:
        return False
    if groups > 1 and not (
        groups <= _MAX_SEPARATE_GROUPS
        or (groups == whole.image.sizes[whole.numbers.image[0]] and len(axes) <= 2)
    ):
        return False
    windows = math.prod(axis.extent for axis in axes)
    results = math.prod(axis.result for axis in axes)
    if isinstance(windows, int) and isinstance(results, int):
        return windows > results
    return isinstance(results, int)


def _gradient_for_kernel(scope: Scope, whole: _Convolution) -> Array:
    n = len(whole.axes)
    batch, *spatial, feature = whole.numbers.image
    *window, inner, out = whole.numbers.kernel
    # The summed axis is the batch of the convolution whose gradient this is.
    image = _order_axes(scope, whole.image, (feature, *spatial, batch))
    cotangent = _order_axes(scope, whole.kernel, (inner, *window, out))
    axes = whole.axes
    if n == 1:
        image, cotangent = add_row(scope, image, 1), add_row(scope, cotangent, 1)
        axes = (Axis(1, 1), *axes)
    result = correlate(scope, image, cotangent, axes, whole.batch_groups)
    if n == 1:
        result = reshape_whole(scope, result, result.sizes[1:])
    return _order_result(scope, result, (*range(1, n + 1), 0, n + 1), whole.numbers)


def _groups_to_features(scope: Scope, image: Array, groups: int) -> Array:
    """Moves batch groups to the features: group i becomes the i-th part of the features."""
    batch, *spatial, features = image.sizes
    each = batch // groups
    apart = reshape(scope, image, (groups, each, *spatial, features))
    last = apart.rank - 1
    moved = transpose(scope, apart, (*range(1, last), 0, last))
    return reshape(scope, moved, (each, *spatial, features * groups))


def _is_sorted(sizes: Shape, order: Sequence[int]) -> bool:
    """Returns whether axes are already in an order, apart from those with one element."""
    live = [axis for axis in order if sizes[axis] != 1]
    return live == sorted(live)


def _order_axes(
    scope: Scope, array: Array, order: Sequence[int], reverse: Sequence[int] = ()
) -> Array:
    """Transposes an array to an order of axes, then reverses some of them."""
    tensor, sizes = scope.tensor(array), tuple(array.sizes[axis] for axis in order)
    if _is_sorted(array.sizes, order):
        tensor = reshape_ones(scope, tensor, array.sizes, sizes)
    else:
        tensor = ops.transpose(tensor, order)
    if reverse:
        tensor = reverse_axes(scope, tensor, reverse)
    return Array(array.element, sizes, scope.set_shape(tensor, sizes))
