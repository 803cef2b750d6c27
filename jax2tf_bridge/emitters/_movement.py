"""Operations that move elements: broadcast, reshape, transpose, slice, pad, concatenate, iota."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jax2tf_bridge.emitters._array import Array, Arrays, Shape, graph_dtype, plain, zeros
from jax2tf_bridge.emitters._folding import to_element
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.emitters.formulas import converter_forms, integers
from shape_poly import Dim

_MAX_MOVED_ELEMENTS = 1 << 10
"""Maximum number of elements of a constant to move at graph time, which makes a copy."""
_MAX_SLICED_AXES = 5
"""Maximum rank of a tensor that LiteRT slices."""


def resize(array: Array, sizes: Shape) -> Array:
    """Changes the sizes of axes that repeat one element, without changing the compact form."""
    return dataclasses.replace(array, sizes=tuple(sizes), origin=None)


def move(function: Callable[..., ops.Tensor], *tensors: ops.Tensor) -> ops.Tensor:
    """Applies a function that only moves elements.

    8-bit floats, for which many such kernels are missing, are moved as 16-bit floats, without loss.
    """
    dtype = tensors[0].dtype
    if dtype.size > 1 or not dtype.is_floating:
        return function(*tensors)
    return ops.cast(function(*(ops.cast(tensor, ops.float16) for tensor in tensors)), dtype)


def _repeat(function: Callable[..., ops.Tensor], *tensors: ops.Tensor) -> ops.Tensor:
    """Applies a function that repeats or stacks tensors, in a dtype with a kernel of Tile."""
    return move(functools.partial(integers.repeat, function), *tensors)


def select(scope: Scope, flag: ops.Tensor, x: Array, y: Array) -> Array:
    """Takes the elements of x where a flag is set, and those of y elsewhere."""
    tensor = move(lambda a, b: scope.choose(flag, a, b), scope.compact(x), scope.compact(y))
    return scope.new_array(tensor, y.element, y.sizes)


def _note_reshape(array: Array, origin: Array) -> Array:
    if array is origin:
        return array
    return dataclasses.replace(array, origin=origin.origin or origin)


def multiply_sizes(sizes: Iterable[Dim]) -> Dim:
    total: Dim = 1
    for size in sizes:
        total = plain(total * size)
    return total


# Broadcasts and reshapes.


def broadcast(scope: Scope, array: Array, sizes: Shape, dimensions: Sequence[int]) -> Array:
    """Broadcasts an array; axis i becomes axis dimensions[i]. Needs no operation if possible.

    The compact form gets sizes of 1 for repeated axes, without leading ones.
    """
    sizes = tuple(map(plain, sizes))
    if sizes == array.sizes and list(dimensions) == list(range(array.rank)):
        return array
    if 0 in sizes:
        return zeros(array.element, sizes)
    if list(dimensions) != sorted(dimensions):
        order = sorted(range(array.rank), key=lambda i: dimensions[i])
        array, dimensions = transpose(scope, array, order), sorted(dimensions)
    result = _place(scope, array, sizes, dimensions)
    if all(size == 1 for axis, size in enumerate(sizes) if axis not in dimensions) and all(
        sizes[place] == size for place, size in zip(dimensions, array.sizes, strict=True)
    ):
        return _note_reshape(result, array)
    return result


def _place(scope: Scope, array: Array, sizes: tuple[Dim, ...], dimensions: Sequence[int]) -> Array:
    """Moves axes to positions in the same order; other axes repeat the elements."""
    own = find_compact_sizes(array)
    first = array.rank - len(own)
    live = [axis for axis in range(first, array.rank) if own[axis - first] != 1]
    start = dimensions[live[0]] if live else len(sizes)
    new_sizes: list[Dim] = [1] * (len(sizes) - start)
    for axis in live:
        new_sizes[dimensions[axis] - start] = own[axis - first]
    return _reshape_ones_of(scope, array, sizes, new_sizes)


def find_compact_sizes(array: Array) -> tuple[Dim, ...]:
    """Returns the sizes of the compact form of an array."""
    if array.known is not None:
        return tuple(array.known.shape)
    first = array.rank - len(array.compact_shape)
    return tuple(
        1 if array.repeats(axis) else array.sizes[axis] for axis in range(first, array.rank)
    )


def _reshape_ones_of(scope: Scope, array: Array, sizes: tuple[Dim, ...], new_sizes: Shape) -> Array:
    """Makes an array of the same elements, whose compact form differs by sizes of 1."""
    data = reshape_ones(scope, scope.data(array), find_compact_sizes(array), new_sizes)
    if isinstance(data, np.ndarray):
        return Array(array.element, sizes, known=data)
    return Array(array.element, sizes, data)


def reshape_ones(scope: Scope, tensor: Any, sizes: Shape, new_sizes: Shape) -> Any:
    """Reshapes a tensor or NumPy array to sizes that differ only by ones.

    It needs no arithmetic on sizes.
    """
    if tuple(sizes) == tuple(new_sizes):
        return tensor
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(tuple(new_sizes))
    # Sizes of 1 that were added before are dropped by using the original tensor.
    tensor, sizes = scope.cache.get_or_make(
        ("without ones", tensor.ref()), lambda: (tensor, tuple(sizes))
    )
    if tuple(sizes) == tuple(new_sizes):
        return tensor
    if sum(not isinstance(size, int) for size in new_sizes) <= 1 and 0 not in new_sizes:
        result = ops.reshape(tensor, scope.sizes.reshape_shape(new_sizes))
    else:
        drop, add = _compare_ones(sizes, new_sizes)
        result = ops.squeeze(tensor, drop) if drop else tensor
        for axis in add:
            result = ops.expand_dims(result, axis)
    scope.cache.get_or_make(("without ones", result.ref()), lambda: (tensor, sizes))
    return scope.set_shape(result, new_sizes)


def reshape_tensor(scope: Scope, tensor: ops.Tensor, sizes: Shape, new_sizes: Shape) -> ops.Tensor:
    """Reshapes a tensor, if possible without arithmetic on sizes."""
    if [size for size in sizes if size != 1] == [size for size in new_sizes if size != 1]:
        return reshape_ones(scope, tensor, sizes, new_sizes)
    return scope.set_shape(ops.reshape(tensor, scope.sizes.reshape_shape(new_sizes)), new_sizes)


def reshape_whole(scope: Scope, array: Array, sizes: Shape) -> Array:
    """Reshapes an array; its tensor has all the sizes."""
    tensor = reshape_tensor(scope, scope.tensor(array), array.sizes, sizes)
    return Array(array.element, tuple(sizes), tensor)


def _compare_ones(sizes: Shape, new_sizes: Shape) -> tuple[list[int], list[int]]:
    """Finds superfluous sizes of 1, and the positions of missing ones."""
    drop: list[int] = []
    add: list[int] = []
    at = 0
    for place, size in enumerate(new_sizes):
        while at < len(sizes) and sizes[at] == 1 != size:
            drop.append(at)
            at += 1
        if at < len(sizes) and sizes[at] == size:
            at += 1
        else:
            add.append(place)
    return drop + list(range(at, len(sizes))), add


def reshape(scope: Scope, array: Array, sizes: Shape) -> Array:
    sizes = tuple(map(plain, sizes))
    array = array.origin or array
    if sizes == array.sizes:
        return array
    return _note_reshape(_reshape_elements(scope, array, sizes), array)


def _reshape_elements(scope: Scope, array: Array, sizes: tuple[Dim, ...]) -> Array:
    if 0 in sizes or 0 in array.sizes:
        return zeros(array.element, sizes)
    groups = _match_axes(array.sizes, sizes)
    # An axis of the result is repeated if all its source axes are.
    repeated = [all(array.repeats(axis) for axis in own) for own, _ in groups]
    spread = [
        axis
        for (own, _), is_repeated in zip(groups, repeated, strict=True)
        if not is_repeated
        for axis in own
    ]
    new_sizes: list[Dim] = list(sizes)
    for (_, places), is_repeated in zip(groups, repeated, strict=True):
        for place in places if is_repeated else ():
            new_sizes[place] = 1
    while new_sizes and new_sizes[0] == 1:
        del new_sizes[0]
    numbers = [size for size in new_sizes if isinstance(size, int)]
    whole = _spread_known(array, spread)
    if whole is not None and len(numbers) == len(new_sizes):
        return Array(array.element, sizes, known=whole.reshape(numbers))
    if all(_differ_by_ones(array.sizes, sizes, group) for group in groups):
        return _reshape_ones_of(scope, array, sizes, new_sizes)
    tensor = _tile(scope, array, groups, len(new_sizes))
    if tensor is None:
        # Missing leading axes of size 1 would only make the broadcast larger, which LiteRT's
        # converter fails for at six axes.
        missing = array.sizes[: array.rank - len(array.compact_shape)]
        start = next((axis for axis, size in enumerate(missing) if size != 1), len(missing))
        array = resize(array, array.sizes[start:])
        tensor = broadcast_axes(scope, array, [axis - start for axis in spread if axis >= start])
        tensor = ops.reshape(tensor, scope.sizes.reshape_shape(new_sizes))
    return Array(array.element, sizes, scope.set_shape(tensor, new_sizes))


def _tile(
    scope: Scope, array: Array, groups: Sequence[tuple[list[int], list[int]]], rank: int
) -> ops.Tensor | None:
    """Makes a reshape of a broadcast array by Tile, if it only repeats whole axes."""
    counts: list[Dim] = []
    axes: list[int] = []
    for own, places in groups:
        live = [axis for axis in own if not array.repeats(axis)]
        if not live:
            counts += [1] * len(places)
            axes += [-1] * len(places)
            continue
        more = [axis for axis in own if axis not in live and array.sizes[axis] != 1]
        if len(places) != 1 or len(live) != 1 or any(axis > live[0] for axis in more):
            return None
        counts.append(multiply_sizes(array.sizes[axis] for axis in more))
        axes.append(live[0])
    skipped = len(axes) - rank
    new_sizes = [1 if axis < 0 else array.sizes[axis] for axis in axes[skipped:]]
    tensor = reshape_ones(scope, scope.compact(array), find_compact_sizes(array), new_sizes)
    multiples = scope.sizes.shape(counts[skipped:])
    return _repeat(lambda x: ops.tile(x, multiples), tensor)


def _differ_by_ones(sizes: Shape, new_sizes: Shape, group: tuple[list[int], list[int]]) -> bool:
    own, places = group
    return [sizes[axis] for axis in own if sizes[axis] != 1] == [
        new_sizes[place] for place in places if new_sizes[place] != 1
    ]


def _match_axes(sizes: Shape, new_sizes: Shape) -> list[tuple[list[int], list[int]]]:
    """Splits two shapes of equal size into corresponding groups of axes of equal size."""
    groups: list[tuple[list[int], list[int]]] = []
    totals: dict[Dim, int] = {}
    total: Dim = 1
    for axis, size in enumerate(sizes):
        total = plain(total * size)
        totals[total] = axis + 1
    begin = end = 0
    total = 1
    for place, size in enumerate(new_sizes):
        total = plain(total * size)
        end_of_own = totals.get(total, -1)
        if size != 1 and end_of_own > begin:
            groups.append((list(range(begin, end_of_own)), list(range(end, place + 1))))
            begin, end = end_of_own, place + 1
    rest = (list(range(begin, len(sizes))), list(range(end, len(new_sizes))))
    if not groups or multiply_sizes(sizes[axis] for axis in rest[0]) != 1:
        return [*groups, rest]
    # Sizes of 1 at the end belong to the last group.
    own, places = groups[-1]
    return [*groups[:-1], (own + rest[0], places + rest[1])]


def broadcast_axes(scope: Scope, array: Array, axes: Sequence[int]) -> ops.Tensor:
    """Returns the tensor of an array with all its axes; those not in `axes` have size 1.

    The axes not in `axes` must repeat one element.
    """
    if len(axes) == array.rank:
        return scope.tensor(array)
    own = find_compact_sizes(array)
    padded = [*(1 for _ in range(array.rank - len(own))), *own]
    new_sizes = [size if axis in axes else 1 for axis, size in enumerate(array.sizes)]
    # Broadcasting adds missing leading axes without an operation.
    compact = scope.compact(array)
    if padded == new_sizes:
        return reshape_ones(scope, compact, own, new_sizes)
    return scope.set_shape(ops.broadcast_to(compact, scope.sizes.shape(new_sizes)), new_sizes)


def transpose(scope: Scope, array: Array, order: Sequence[int]) -> Array:
    """Permutes the axes: axis i of the result is axis order[i] of the array."""
    if list(order) == list(range(array.rank)):
        return array
    sizes = tuple(array.sizes[axis] for axis in order)
    own = find_compact_sizes(array)
    padded = [*(1 for _ in range(array.rank - len(own))), *own]
    new_sizes = [padded[axis] for axis in order]
    live = [axis for axis in range(array.rank) if padded[axis] != 1]
    if [axis for axis in order if axis in live] == live:
        # Moving a size of 1 past others moves no elements.
        while new_sizes and new_sizes[0] == 1:
            del new_sizes[0]
        return _reshape_ones_of(scope, array, sizes, new_sizes)
    # Repeated leading axes that stay in front can be omitted.
    start = 0
    while order[start] == start and padded[start] == 1:
        start += 1
    places = [axis - start for axis in order[start:]]
    data = reshape_ones(scope, scope.data(array, _MAX_MOVED_ELEMENTS), own, padded[start:])
    if isinstance(data, np.ndarray):
        return Array(array.element, sizes, known=data.transpose(places))
    tensor = scope.set_shape(ops.transpose(data, places), new_sizes[start:])
    return Array(array.element, sizes, tensor)


# Slices.


def slice_array(scope: Scope, array: Array, starts: Shape, limits: Shape, steps: Shape) -> Array:
    """Takes every steps[i]-th element of axis i from starts[i] up to limits[i], exclusive."""
    sizes = tuple(
        own if start == 0 and limit == own and step == 1 else _count_slice(start, limit, step)
        for own, start, limit, step in zip(array.sizes, starts, limits, steps, strict=True)
    )
    if sizes == array.sizes:
        return array
    if 0 in sizes:
        return zeros(array.element, sizes)
    if len(array.compact_shape) > _MAX_SLICED_AXES and array.known is None:
        merged = _merge_whole_axes(array.sizes, starts, limits, steps)
        if len(merged) < array.rank:
            own, *bounds = zip(*merged, strict=True)
            return reshape(scope, slice_array(scope, reshape(scope, array, own), *bounds), sizes)
    first = array.rank - len(array.compact_shape)
    places: list[Any] = [
        slice(None)
        if array.repeats(axis)
        else _as_slice(scope, array.sizes[axis], starts[axis], limits[axis], steps[axis])
        for axis in range(first, array.rank)
    ]
    if all(place == slice(None) for place in places):
        return resize(array, sizes)
    numbers = [n for place in places for n in (place.start, place.stop, place.step)]
    are_numbers = all(n is None or isinstance(n, int) for n in numbers)
    data = scope.data(array, _MAX_MOVED_ELEMENTS if are_numbers else 0)
    if isinstance(data, np.ndarray):
        return Array(array.element, sizes, known=data[tuple(places)])
    # Drops leading axes of size 1 from the compact form.
    begin = first
    while begin < array.rank and sizes[begin] == 1:
        begin += 1
    for place in range(begin - first):
        places[place] = 0 if places[place].start is None else places[place].start
    new_sizes = [1 if array.repeats(axis) else sizes[axis] for axis in range(begin, array.rank)]
    return Array(array.element, sizes, scope.set_shape(data[tuple(places)], new_sizes))


def _merge_whole_axes(
    sizes: Shape, starts: Shape, limits: Shape, steps: Shape
) -> list[tuple[Dim, Dim, Dim, Dim]]:
    """Merges adjacent axes that a slice takes whole.

    Returns: size, start, limit and step of each axis.
    """
    merged: list[tuple[Dim, Dim, Dim, Dim]] = []
    was_whole = False
    for size, start, limit, step in zip(sizes, starts, limits, steps, strict=True):
        is_whole = start == 0 and limit == size and step == 1
        if is_whole and was_whole:
            size = limit = plain(merged.pop()[0] * size)
        merged.append((size, start, limit, step))
        was_whole = is_whole
    return merged


def _as_slice(scope: Scope, size: Dim, start: Dim, limit: Dim, step: Dim) -> slice:
    """Converts a slice to Python's form, counted from the end if that is a number."""
    begin = None if start == 0 else _count_from_end(scope, size, start)
    end = None if limit == size else _count_from_end(scope, size, limit)
    return slice(begin, end, None if step == 1 else scope.sizes.size(step))


def _count_from_end(scope: Scope, size: Dim, place: Dim) -> Any:
    behind = plain(place - size)
    if not isinstance(place, int) and isinstance(behind, int) and behind < 0:
        return behind
    return scope.sizes.size(place)


def _count_slice(start: Dim, limit: Dim, step: Dim) -> Dim:
    span = limit - start
    return plain(span if step == 1 else (span + step - 1) // step)


# Several arrays in one.


def concatenate(scope: Scope, arrays: Arrays, axis: int) -> Array:
    parts = [array for array in arrays if array.sizes[axis] != 0] or list(arrays[:1])
    if len(parts) == 1:
        return parts[0]
    element = parts[0].element
    total: Dim = 0
    for array in parts:
        total = plain(total + array.sizes[axis])
    sizes = (*parts[0].sizes[:axis], total, *parts[0].sizes[axis + 1 :])
    if 0 in sizes:
        return zeros(element, sizes)
    # Axes that all arrays repeat are repeated afterwards.
    spread = [
        i for i in range(len(sizes)) if i == axis or not all(array.repeats(i) for array in parts)
    ]
    if all(array.known is not None for array in parts):
        wholes = [_spread_known(array, spread) for array in parts]
        numbers = [whole for whole in wholes if whole is not None]
        if len(numbers) == len(parts) and sum(n.size for n in numbers) <= _MAX_MOVED_ELEMENTS:
            if any(array.numbers is None for array in parts):
                numbers = [array.astype(object) for array in numbers]
            return Array(element, sizes, known=np.concatenate(numbers, axis))
    tensor = _stack(scope, parts, axis, spread)
    if tensor is None:
        tensor = ops.concat([broadcast_axes(scope, array, spread) for array in parts], axis)
    new_sizes = [size if i in spread else 1 for i, size in enumerate(sizes)]
    return Array(element, sizes, scope.set_shape(tensor, new_sizes))


def _stack(scope: Scope, arrays: Arrays, axis: int, spread: Sequence[int]) -> ops.Tensor | None:
    """Stacks arrays whose axis was only added for the concatenation."""
    origins = [array.origin or array for array in arrays]
    if any(
        origin.sizes != (*array.sizes[:axis], *array.sizes[axis + 1 :])
        for origin, array in zip(origins, arrays, strict=True)
    ):
        return None
    axes = [i - (i > axis) for i in spread if i != axis]
    tensors = [broadcast_axes(scope, origin, axes) for origin in origins]
    return _repeat(lambda *pieces: ops.stack(pieces, axis), *tensors)


def _spread_known(array: Array, axes: Sequence[int]) -> np.ndarray[Any, Any] | None:
    """Returns known elements with all sizes along `axes`, and 1 along others.

    None if they are unknown, or too many to be copied.
    """
    sizes = [size if axis in axes else 1 for axis, size in enumerate(array.sizes)]
    numbers = [size for size in sizes if isinstance(size, int)]
    if array.known is None or len(numbers) < len(sizes):
        return None
    if math.prod(numbers) > max(_MAX_MOVED_ELEMENTS, array.known.size):
        return None
    return np.broadcast_to(array.known, numbers)


def iota(scope: Scope, element: str, sizes: Shape, axis: int) -> Array:
    """Counts along an axis from 0; the other axes repeat it."""
    if 0 in sizes:
        return zeros(element, sizes)
    size, dtype = sizes[axis], graph_dtype(element)
    trailing = (1,) * (len(sizes) - axis - 1)
    if isinstance(size, int) and size <= _MAX_MOVED_ELEMENTS:
        known = to_element(element, np.arange(size)).reshape((size, *trailing))
        return Array(element, tuple(sizes), known=known)
    numbers = scope.cache.get_or_make(("range", size), lambda: ops.range(scope.sizes.size(size)))
    numbers = integers.wrap(element, numbers if dtype == ops.int32 else ops.cast(numbers, dtype))
    if trailing:
        numbers = ops.reshape(numbers, [-1, *trailing])
    return Array(element, tuple(sizes), numbers)


def reverse(scope: Scope, array: Array, axes: Sequence[int]) -> Array:
    """Reverses the order of elements along axes."""
    first = array.rank - len(array.compact_shape)
    places = [axis - first for axis in axes if not array.repeats(axis)]
    if not places or 0 in array.sizes:
        return array
    data = scope.data(array, _MAX_MOVED_ELEMENTS)
    if isinstance(data, np.ndarray):
        return Array(array.element, array.sizes, known=np.flip(data, tuple(places)))
    tensor = move(lambda x: reverse_axes(scope, x, places), data)
    return Array(array.element, array.sizes, tensor)


def reverse_axes(scope: Scope, tensor: ops.Tensor, axes: Sequence[int]) -> ops.Tensor:
    reverse = converter_forms.reverse if scope.for_converters else ops.reverse
    return reverse(tensor, list(axes))


# Padding.


def pad(
    scope: Scope,
    array: Array,
    value: Array,
    low: Shape,
    high: Shape,
    interior: Shape,
    *,
    may_fuse: bool = True,
) -> Array:
    """Pads with a value before, after and between the elements; negative amounts drop elements.

    PadV2 replaces Pad unless `may_fuse`, because convolutions of oneDNN fuse Pad.
    """
    for axis, amount in enumerate(interior):
        if amount != 0 and array.sizes[axis] != 1:
            array = _pad_between(scope, array, value, axis, amount)
    before = [_clip_at_zero(scope, amount) for amount in low]
    behind = [_clip_at_zero(scope, amount) for amount in high]
    sizes = tuple(
        plain(size + left + right)
        for size, left, right in zip(array.sizes, before, behind, strict=True)
    )
    if sizes != array.sizes:
        array = _pad_around(scope, array, value, before, behind, sizes, may_fuse=may_fuse)
    # Negative padding drops elements of the padded array.
    starts = [plain(left - amount) for left, amount in zip(before, low, strict=True)]
    limits = [
        plain(size - (right - amount))
        for size, right, amount in zip(sizes, behind, high, strict=True)
    ]
    return slice_array(scope, array, starts, limits, [1] * array.rank)


def _pad_around(
    scope: Scope,
    array: Array,
    value: Array,
    before: Shape,
    behind: Shape,
    sizes: tuple[Dim, ...],
    *,
    may_fuse: bool,
) -> Array:
    if 0 in array.sizes or _repeats_value(array, value):
        return broadcast(scope, value, sizes, ())
    # Axes that repeat one element, and are not padded with another, are repeated afterwards.
    spread = [
        axis
        for axis in range(array.rank)
        if before[axis] != 0 or behind[axis] != 0 or not array.repeats(axis)
    ]
    tensor = broadcast_axes(scope, array, spread)
    paddings = [
        [scope.sizes.size(a), scope.sizes.size(b)] for a, b in zip(before, behind, strict=True)
    ]
    if value.numbers is not None and may_fuse and not any(value.numbers.tobytes()):
        padded = move(lambda x: ops.pad(x, paddings), tensor)
    elif value.numbers is not None:
        padded = move(
            lambda x, filler: ops.pad(x, paddings, constant_values=filler),
            tensor,
            scope.tensor(reshape(scope, value, ())),
        )
    else:  # PadV2 has no gradient for the value
        inside = ops.pad(ops.ones(ops.shape(tensor), ops.bool), paddings)
        filler = scope.tensor(reshape(scope, value, ()))
        padded = move(lambda x, v: scope.choose(inside, ops.pad(x, paddings), v), tensor, filler)
    new_sizes = [size if axis in spread else 1 for axis, size in enumerate(sizes)]
    return Array(array.element, sizes, scope.set_shape(padded, new_sizes))


def pad_to(scope: Scope, array: Array, least: Shape) -> Array:
    """Pads axes with zeros at the end if their open sizes may be less than `least`.

    TensorFlow's kernels fail, or worse, if an array is empty or smaller than a window. If no
    padding is necessary, nothing is copied: Pad with zero amounts returns its operand.
    """
    sizes = tuple(
        plain(scope.sizes.maximum(size, number))
        for size, number in zip(array.sizes, least, strict=True)
    )
    if sizes == array.sizes:
        return array
    zero = zeros(array.element)
    if _repeats_value(array, zero):
        return broadcast(scope, zero, sizes, ())
    behind = [plain(size - own) for size, own in zip(sizes, array.sizes, strict=True)]
    amounts = [[0, scope.sizes.size(amount)] for amount in behind]
    filler = scope.compact(zero)
    # Pad is avoided: oneDNN's convolutions fuse it, but ignore padding of the batch.
    tensor = move(
        lambda x: ops.raw_ops.PadV2(
            input=x, paddings=amounts, constant_values=ops.cast(filler, x.dtype)
        ),
        scope.tensor(array),
    )
    return Array(array.element, sizes, scope.set_shape(tensor, sizes))


def take_first(scope: Scope, array: Array, sizes: Shape) -> Array:
    """Takes the first `sizes` elements of each axis; reverses `pad_to`."""
    return slice_array(scope, array, [0] * array.rank, sizes, [1] * array.rank)


def _repeats_value(array: Array, value: Array) -> bool:
    """Returns whether all elements of an array are a value, bit by bit."""
    if array.numbers is None or value.numbers is None or array.numbers.size != 1:
        return False
    return array.numbers.tobytes() == value.numbers.tobytes()


def _clip_at_zero(scope: Scope, amount: Dim) -> Dim:
    return plain(scope.sizes.maximum(amount, 0))


def _pad_between(scope: Scope, array: Array, value: Array, axis: int, amount: Dim) -> Array:
    """Inserts an amount of values between the elements along an axis."""
    size = array.sizes[axis]
    # Each element gets padding after it; that of the last element is dropped.
    apart = reshape(scope, array, (*array.sizes[: axis + 1], 1, *array.sizes[axis + 1 :]))
    none: list[Dim] = [0] * apart.rank
    behind = [amount if i == axis + 1 else 0 for i in range(apart.rank)]
    filled = pad(scope, apart, value, none, behind, none)
    joined = (*array.sizes[:axis], size * (amount + 1), *array.sizes[axis + 1 :])
    whole = reshape(scope, filled, joined)
    # An empty axis stays empty.
    limits = list(joined)
    limits[axis] = _clip_at_zero(scope, size * (amount + 1) - amount)
    return take_first(scope, whole, limits)


def fit_sizes(scope: Scope, array: Array, sizes: Shape) -> Array:
    """Broadcasts a result of a body to the sizes of the operands, if it does not depend on them."""
    if array.sizes == tuple(sizes):
        return array
    if array.rank != len(sizes):
        return broadcast(scope, array, sizes, ())
    return resize(array, sizes)
