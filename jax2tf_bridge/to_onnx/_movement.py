"""Functions that move elements: shapes, slices, gathers, scatters and padding."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jax2tf_bridge.emitters import NoOperationError
from jax2tf_bridge.to_onnx._arithmetic import choose, widen_sizes
from jax2tf_bridge.to_onnx._functions import (
    as_sizes,
    cast,
    compute,
    find_kernel,
    function,
    make_indices,
    read_sizes,
    to_tensor,
    to_tensors,
)
from jax2tf_bridge.to_onnx._graph import DTYPES, ComplexTensor, OnnxDType, OnnxGraph, Shape, Tensor

_INT32, _INT64, _BOOL = DTYPES["int32"], DTYPES["int64"], DTYPES["bool"]


# Sizes.


@function("shape")
def _shape(graph: OnnxGraph, x: Any, dtype: OnnxDType | None = None) -> Tensor:
    x = to_tensor(graph, x)
    if isinstance(x, ComplexTensor):
        # A constant part may have a smaller shape.
        x = x.real if x.real.shape == x.shape else x.imag
    if x.shape.is_fully_defined():
        sizes = np.array(x.shape, np.int64)
        wide = graph.constant(sizes)
        narrow = graph.constant(sizes.astype(np.int32))
    else:
        wide = graph.add("Shape", [x], _INT64, (x.shape.rank,))
        narrow = _narrow(graph, wide)
    return wide if dtype is _INT64 else narrow


def _narrow(graph: OnnxGraph, wide: Tensor) -> Tensor:
    narrow = graph.add("Cast", [wide], _INT32, wide.shape, to=_INT32)
    narrow.wide = wide
    return narrow


@function("size")
def _size(graph: OnnxGraph, x: Tensor, out_type: OnnxDType | None = None) -> Tensor:
    wide = graph.add("Size", [x], _INT64, ())
    return wide if out_type is _INT64 else _narrow(graph, wide)


def _fill(graph: OnnxGraph, shape: Any, dtype: OnnxDType | None = None, *, number: int) -> Tensor:
    dtype = dtype or DTYPES["float32"]
    scalar = graph.constant(np.array(number, dtype.as_numpy_dtype))
    return graph.make("broadcast_to", scalar, shape)


@function("range")
def _range(graph: OnnxGraph, *limits: Any) -> Tensor:
    start, limit, step = {1: (0, *limits, 1), 2: (*limits, 1), 3: limits}[len(limits)]
    if not any(isinstance(x, Tensor) for x in (start, limit, step)):
        return graph.constant(np.arange(start, limit, step, dtype=np.int32))
    operands = to_tensors(graph, start, limit, step)
    return compute(graph, "Range", operands, (None,))


# Reshapes.

_MAX_COPIED = 64
"""Maximum number of elements of a weight that is stored in another form."""


def _can_copy(graph: OnnxGraph, x: Tensor) -> bool:
    """Returns whether a constant may be replaced by one in another form.

    Large weights keep their names and are stored once; a runtime moves their elements when it loads
    the model.
    """
    if x.value is None:
        return False
    return x.name in graph.own_constants or x.value.size <= _MAX_COPIED


def _read_value(x: Tensor) -> np.ndarray[Any, Any]:
    assert x.value is not None, "it is a constant"
    return x.value


def _move(
    graph: OnnxGraph,
    operation: str,
    x: Tensor,
    operands: Sequence[Tensor],
    shape: Sequence[int | None],
    **attributes: Any,
) -> Tensor:
    """Adds an operation that moves elements; sizes are moved as int64 as well."""
    result = graph.add(operation, [x, *operands], x.dtype, shape, **attributes)
    if x.wide is not None:
        result.wide = graph.add(operation, [x.wide, *operands], _INT64, shape, **attributes)
    return result


@function("reshape")
def reshape(graph: OnnxGraph, x: Any, shape: Any) -> Tensor:
    """Reshapes a tensor; one size may be -1."""
    x = to_tensor(graph, x)
    sizes = read_sizes(shape)
    assert sizes is not None, "the rank of a shape is known"
    if _can_copy(graph, x) and None not in sizes:
        return graph.constant(_read_value(x).reshape(sizes))
    result = [None if size == -1 else size for size in sizes]
    if result.count(None) == 1 and -1 in sizes and x.shape.is_fully_defined():
        total = math.prod(x.shape)
        rest = math.prod(size for size in result if size is not None)
        result = [total // rest if size is None and rest else size for size in result]
    # A size of 0 means 0, and not the size of the operand.
    return _move(graph, "Reshape", x, [as_sizes(graph, shape)], result, allowzero=1)


@function("expand_dims")
def expand_dims(graph: OnnxGraph, x: Any, axis: int) -> Tensor:
    """Adds an axis of size 1."""
    x = to_tensor(graph, x)
    place = axis if axis >= 0 else x.shape.rank + 1 + axis
    sizes = [*x.shape[:place], 1, *x.shape[place:]]
    if _can_copy(graph, x):
        return graph.constant(np.expand_dims(_read_value(x), place))
    return _move(graph, "Unsqueeze", x, [make_indices(graph, place)], sizes)


@function("squeeze")
def squeeze(graph: OnnxGraph, x: Tensor, axis: Any = None) -> Tensor:
    """Drops axes of size 1."""
    rank = x.shape.rank
    if axis is None:
        axis = [i for i, size in enumerate(x.shape) if size == 1]
    axes = sorted(a % rank for a in ([axis] if isinstance(axis, int) else axis))
    if not axes:
        return x
    sizes = [size for i, size in enumerate(x.shape) if i not in axes]
    if _can_copy(graph, x):
        return graph.constant(np.squeeze(_read_value(x), tuple(axes)))
    return _move(graph, "Squeeze", x, [make_indices(graph, *axes)], sizes)


@function("transpose")
def transpose(graph: OnnxGraph, x: Tensor, perm: Sequence[int]) -> Tensor:
    """Permutes axes; a transpose of a transpose becomes one."""
    order = tuple(int(axis) for axis in perm)
    if x.order is not None:
        x, before = x.order
        order = tuple(before[axis] for axis in order)
    if order == tuple(range(len(order))):
        return x
    if _can_copy(graph, x):
        return graph.constant(np.ascontiguousarray(_read_value(x).transpose(order)))
    sizes = [x.shape[axis] for axis in order]
    result = graph.add("Transpose", [x], x.dtype, sizes, perm=list(order))
    result.order = x, order
    return result


@function("linalg.matrix_transpose", "linalg.adjoint")
def matrix_transpose(graph: OnnxGraph, x: Tensor) -> Tensor:
    """Swaps the last two axes."""
    rank = x.shape.rank
    return transpose(graph, x, [*range(rank - 2), rank - 1, rank - 2])


@function("broadcast_to")
def broadcast_to(graph: OnnxGraph, value: Any, shape: Any) -> Tensor:
    """Repeats elements along axes of size 1 and new leading axes."""
    x = to_tensor(graph, value)
    sizes = read_sizes(shape)
    assert sizes is not None, "the rank of a shape is known"
    if sizes == x.shape and sizes.is_fully_defined():
        return x
    own = [None] * (len(sizes) - x.shape.rank) + x.shape.as_list()
    result = [
        old if size is None and old != 1 else size for size, old in zip(sizes, own, strict=True)
    ]
    return graph.add("Expand", [x, as_sizes(graph, shape)], x.dtype, result)


@function("tile")
def _tile(graph: OnnxGraph, x: Tensor, multiples: Any) -> Tensor:
    counts = read_sizes(multiples)
    assert counts is not None, "the rank of a shape is known"
    sizes = [
        None if size is None or count is None else size * count
        for size, count in zip(x.shape, counts, strict=True)
    ]
    return graph.add("Tile", [x, as_sizes(graph, multiples)], x.dtype, sizes)


@function("concat")
def concat(graph: OnnxGraph, values: Sequence[Any], axis: int) -> Tensor:
    """Joins tensors along an axis."""
    tensors = to_tensors(graph, *values)
    axis %= tensors[0].shape.rank
    if len(tensors) == 1:
        return tensors[0]
    if all(_can_copy(graph, x) for x in tensors):
        return graph.constant(np.concatenate([_read_value(x) for x in tensors], axis))
    sizes = list(tensors[0].shape)
    for i in range(len(sizes)):
        column = [x.shape[i] for x in tensors]
        numbers = [size for size in column if size is not None]
        if i == axis:
            sizes[i] = sum(numbers) if len(numbers) == len(column) else None
        else:
            sizes[i] = numbers[0] if numbers else None
    result = graph.add("Concat", tensors, tensors[0].dtype, sizes, axis=axis)
    return widen_sizes(
        graph,
        result,
        tensors,
        lambda *wide: graph.add("Concat", wide, _INT64, sizes, axis=axis),
    )


@function("stack")
def _stack(graph: OnnxGraph, values: Sequence[Any], axis: int = 0) -> Tensor:
    tensors = to_tensors(graph, *values)
    place = axis if axis >= 0 else tensors[0].shape.rank + 1 + axis
    return concat(graph, [expand_dims(graph, x, place) for x in tensors], place)


@function("unstack")
def _unstack(graph: OnnxGraph, x: Tensor) -> list[Tensor]:
    count = x.shape[0]
    assert count is not None, "the number of parts is known"
    return [getitem(graph, x, i) for i in range(count)]


@function("split")
def _split(graph: OnnxGraph, x: Tensor, count: int, axis: int) -> list[Tensor]:
    axis %= x.shape.rank
    size = x.shape[axis]
    sizes = [*x.shape[:axis], None if size is None else size // count, *x.shape[axis + 1 :]]
    results = [(x.dtype, sizes)] * count
    return graph.add_several("Split", [x], results, axis=axis, num_outputs=count)


# Slices.

_MAX_INT64, _MIN_INT64 = np.iinfo(np.int64).max, np.iinfo(np.int64).min


class _Cut(NamedTuple):
    """Slice of an axis, of numbers and scalars.

    Attributes:
      axis: the axis.
      begin: the first index.
      end: the index after the last one; the least integer stands for the place before the first.
      step: the step.
    """

    axis: int
    begin: Any
    end: Any
    step: Any = 1

    def as_slice(self) -> slice | None:
        """Returns a slice; None if a number is known at run time only."""
        if not all(isinstance(n, (int, np.integer)) for n in (self.begin, self.end, self.step)):
            return None
        stop = None if self.end == _MIN_INT64 else int(self.end)
        return slice(int(self.begin), stop, int(self.step))


@function("getitem")
def getitem(graph: OnnxGraph, x: Tensor, key: Any) -> Tensor:
    """Returns x[key]; the key has integers, scalars, slices, None and an ellipsis."""
    keys = list(key) if isinstance(key, tuple) else [key]
    n_used = sum(each is not None and each is not Ellipsis for each in keys)
    if not any(each is Ellipsis for each in keys):
        keys.append(Ellipsis)
    rest = [slice(None)] * (x.shape.rank - n_used)
    place = next(i for i, each in enumerate(keys) if each is Ellipsis)
    keys[place : place + 1] = rest
    cuts: list[_Cut] = []
    dropped: list[int] = []
    for axis, each in enumerate(each for each in keys if each is not None):
        if not isinstance(each, slice):
            # The element after -1 is the end.
            is_last = isinstance(each, int) and each == -1
            cuts.append(_Cut(axis, each, _MAX_INT64 if is_last else each + 1))
            dropped.append(axis)
        elif each != slice(None):
            step = 1 if each.step is None else each.step
            first, last = (0, _MAX_INT64) if step > 0 else (_MAX_INT64, _MIN_INT64)
            begin = first if each.start is None else each.start
            cuts.append(_Cut(axis, begin, last if each.stop is None else each.stop, step))
    if len(dropped) == 1 == len(cuts):
        result = _take_one(graph, x, cuts[0].begin, dropped[0])
    else:
        result = squeeze(graph, _slice_axes(graph, x, cuts), dropped)
    place = 0
    for each in keys:
        if each is None:
            result = expand_dims(graph, result, place)
        place += each is None or isinstance(each, slice)
    return result


def _take_one(graph: OnnxGraph, x: Tensor, place: Any, axis: int) -> Tensor:
    if x.value is not None and isinstance(place, int):
        return graph.constant(np.take(x.value, place, axis))
    at = place if isinstance(place, Tensor) else graph.constant(np.array(place, np.int64))
    return gather(graph, x, at, axis)


def _slice_axes(graph: OnnxGraph, x: Tensor, cuts: Sequence[_Cut]) -> Tensor:
    if not cuts:
        return x
    sizes = list(x.shape)
    slices = [slice(None)] * x.shape.rank
    for cut in cuts:
        known = cut.as_slice()
        size = sizes[cut.axis]
        sizes[cut.axis] = None if size is None or known is None else len(range(size)[known])
        slices[cut.axis] = known or slice(None)
    if x.value is not None and None not in [cut.as_slice() for cut in cuts]:
        return graph.constant(x.value[tuple(slices)])
    axes, begins, ends, steps = zip(*cuts, strict=True)
    operands = [_vector(graph, begins), _vector(graph, ends)]
    operands += [make_indices(graph, *axes), make_indices(graph, *steps)]
    return _move(graph, "Slice", x, operands, sizes)


def _vector(graph: OnnxGraph, numbers: Sequence[Any]) -> Tensor:
    """Makes a vector of int64 of numbers and scalars."""
    parts = [
        cast(graph, x, _INT64) if isinstance(x, Tensor) else graph.constant(np.array(x, np.int64))
        for x in numbers
    ]
    return concat(graph, [expand_dims(graph, part, 0) for part in parts], 0)


@function("strided_slice")
def _strided_slice(graph: OnnxGraph, x: Tensor, begin: Any, end: Any, strides: Any) -> Tensor:
    rank = x.shape.rank
    begins, ends, steps = (_split_vector(graph, v) for v in (begin, end, strides))
    if any(isinstance(step, Tensor) for step in steps):
        vectors = [_vector(graph, v) for v in (begins, ends, range(rank), steps)]
        return graph.add("Slice", [x, *vectors], x.dtype, [None] * rank)
    return _slice_axes(graph, x, [*map(_Cut, range(rank), begins, ends, steps)])


def _split_vector(graph: OnnxGraph, vector: Any) -> list[Any]:
    """Splits a vector into numbers and scalars."""
    if not isinstance(vector, Tensor):
        return list(vector)
    if vector.value is not None:
        return list(vector.value.tolist())
    return [getitem(graph, vector, i) for i in range(vector.shape[0] or 0)]


@function("slice")
def _slice(graph: OnnxGraph, x: Tensor, begin: Any, size: Any) -> Tensor:
    cuts: list[_Cut] = []
    sizes: list[int | None] = []
    numbers = zip(_split_vector(graph, begin), _split_vector(graph, size), x.shape, strict=True)
    for axis, (first, length, own) in enumerate(numbers):
        if isinstance(length, int) and length == -1:  # the rest
            cuts.append(_Cut(axis, first, _MAX_INT64))
            sizes.append(own if isinstance(first, int) and first == 0 else None)
        else:
            cuts.append(_Cut(axis, first, first + length))
            sizes.append(length if isinstance(length, int) else None)
    result = _slice_axes(graph, x, cuts)
    result.set_shape(sizes)
    return result


@function("reverse")
def _reverse(graph: OnnxGraph, x: Tensor, axis: Sequence[int]) -> Tensor:
    every = tuple(slice(None, None, -1 if i in axis else None) for i in range(x.shape.rank))
    return getitem(graph, x, every)


@function("linalg.diag_part")
def _diag_part(graph: OnnxGraph, x: Tensor) -> Tensor:
    rows, columns = x.shape[-2:]
    count = None if rows is None or columns is None else min(rows, columns)
    shape = graph.make("shape", x)
    length = graph.make("minimum", getitem(graph, shape, -2), getitem(graph, shape, -1))
    place = graph.make("range", length)
    flat = reshape(graph, x, concat(graph, [shape[:-2], [-1]], 0))
    step = getitem(graph, shape, -1) + 1
    result = gather(graph, flat, place * step, axis=-1)
    result.set_shape([*x.shape[:-2], count])
    return result


@function("linalg.set_diag")
def _set_diag(graph: OnnxGraph, x: Tensor, diagonal: Tensor) -> Tensor:
    shape = graph.make("shape", x)
    rows = graph.make("range", getitem(graph, shape, -2))
    columns = graph.make("range", getitem(graph, shape, -1))
    is_diagonal = expand_dims(graph, rows, -1) == columns
    filled = expand_dims(graph, diagonal, -1)
    return choose(graph, is_diagonal, filled, x)


@function("linalg.band_part")
def _band_part(graph: OnnxGraph, x: Tensor, lower: int, upper: int) -> Tensor:
    if (lower, upper) == (-1, 0):
        return compute(graph, "Trilu", [x], x.shape, upper=0)
    if (lower, upper) == (0, -1):
        return compute(graph, "Trilu", [x], x.shape, upper=1)
    raise NoOperationError("ONNX has triangles only")


# Gathers.


@function("gather")
def gather(
    graph: OnnxGraph, params: Any, index: Any, axis: int | None = None, batch_dims: int = 0
) -> Tensor:
    """Takes elements along an axis; both tensors share their first `batch_dims` axes."""
    x, at = to_tensor(graph, params), to_tensor(graph, index)
    place = batch_dims if axis is None else axis % x.shape.rank
    if batch_dims:
        return _gather_in_batches(graph, x, at, place, batch_dims)
    sizes = [*x.shape[:place], *at.shape, *x.shape[place + 1 :]]
    return _move(graph, "Gather", x, [_as_index(graph, at)], sizes, axis=place)


def _as_index(graph: OnnxGraph, index: Tensor) -> Tensor:
    if index.dtype in (_INT32, _INT64):
        return index
    return cast(graph, index, _INT64)


def _gather_in_batches(graph: OnnxGraph, x: Tensor, index: Tensor, axis: int, batch: int) -> Tensor:
    """Gathers within each batch, as rows of one large axis."""
    between = list(range(batch, axis))
    if between:
        # The gathered axis comes first, then the axes before it.
        order = [*range(batch), axis, *between, *range(axis + 1, x.shape.rank)]
        rows = _gather_in_batches(graph, transpose(graph, x, order), index, batch, batch)
        n_new = index.shape.rank - batch
        n_between = len(between)
        back = [
            *range(batch),
            *range(batch + n_new, batch + n_new + n_between),
            *range(batch, batch + n_new),
            *range(batch + n_new + n_between, rows.shape.rank),
        ]
        return transpose(graph, rows, back)
    inner = graph.make("shape", x)[batch + 1 :]
    shape = graph.make("shape", index)
    rows = reshape(graph, x, concat(graph, [[-1], inner], 0))
    count = graph.make("shape", x)[batch]
    # The number of each batch, times the size of the axis, is where its rows begin.
    total = functools.reduce(
        lambda a, b: a * b, (shape[i] for i in range(batch)), to_tensor(graph, 1)
    )
    starts = graph.make("range", total) * count
    ones = [[1] for _ in range(index.shape.rank - batch)]
    starts = reshape(graph, starts, concat(graph, [shape[:batch], *ones], 0))
    sizes = [*index.shape, *x.shape[batch + 1 :]]
    index = cast(graph, index, _INT32) if index.dtype is not _INT64 else index
    places = starts + index if index.dtype is _INT32 else cast(graph, starts, _INT64) + index
    result = gather(graph, rows, places, axis=0)
    result.set_shape(sizes)
    return result


@function("gather_nd")
def _gather_nd(graph: OnnxGraph, x: Tensor, index: Tensor) -> Tensor:
    depth = index.shape[-1]
    assert depth is not None, "the number of components is known"
    sizes = [*index.shape[:-1], *x.shape[depth:]]
    return graph.add("GatherND", [x, cast(graph, index, _INT64)], x.dtype, sizes)


@function("searchsorted")
def _searchsorted(graph: OnnxGraph, numbers: Any, values: Tensor) -> Tensor:
    """Counts the numbers that are less than each value."""
    row = to_tensor(graph, numbers, values.dtype)
    is_less = expand_dims(graph, values, -1) > row
    return graph.make("reduce_sum", cast(graph, is_less, _INT32), -1)


# Scatters.


def _scatter_extreme(
    graph: OnnxGraph, x: Tensor, index: Any, updates: Any, *, reduction: str
) -> Tensor:
    new = to_tensor(graph, updates, x.dtype)
    result = _scatter(graph, x, index, new, reduction=reduction)
    if not x.dtype.is_floating:
        return result
    # ONNX Runtime's maxima leave out NaN; the sum of these has it where there was one.
    nan, nothing = (np.array(value, x.dtype.as_numpy_dtype) for value in (np.nan, -0.0))
    old, new = (graph.make("where", graph.make("math.is_nan", v), nan, nothing) for v in (x, new))
    return result + _scatter(graph, old, index, new, reduction="add")


def _scatter(graph: OnnxGraph, x: Tensor, index: Any, updates: Any, *, reduction: str) -> Tensor:
    at = cast(graph, to_tensor(graph, index), _INT64)
    new = to_tensor(graph, updates, x.dtype)
    is_narrow = reduction != "none" and x.dtype.is_floating and x.dtype.size == 2
    within = DTYPES["float32"] if is_narrow else x.dtype  # ONNX Runtime has no sums of float16
    operands = [cast(graph, x, within), at, cast(graph, new, within)]
    result = graph.add("ScatterND", operands, within, x.shape, reduction=reduction)
    return cast(graph, result, x.dtype)


def _combine_segments(
    graph: OnnxGraph, updates: Tensor, ids: Tensor, count: Any, *, initial: int, reduction: str
) -> Tensor:
    rank = ids.shape.rank
    total = expand_dims(graph, to_tensor(graph, count), 0)
    shape = concat(graph, [total, graph.make("shape", updates)[rank:]], 0)
    rows = _fill(graph, shape, updates.dtype, number=initial)
    rows.set_shape([count if isinstance(count, int) else None, *updates.shape[rank:]])
    return _scatter(graph, rows, expand_dims(graph, ids, -1), updates, reduction=reduction)


# Padding.


@function("pad")
def _pad(graph: OnnxGraph, x: Tensor, paddings: Any, constant_values: Any = 0) -> Tensor:
    filler = to_tensor(graph, constant_values, x.dtype)
    pairs = _split_pairs(graph, paddings)
    sizes = [
        size + low + high
        if isinstance(low, int) and isinstance(high, int) and size is not None
        else None
        for size, (low, high) in zip(x.shape, pairs, strict=True)
    ]
    amounts = _vector(graph, [*(low for low, _ in pairs), *(high for _, high in pairs)])
    within = find_kernel("Pad", x.dtype, keeps_bits=True)
    operands = [cast(graph, x, within), amounts, cast(graph, filler, within)]
    return cast(graph, graph.add("Pad", operands, within, sizes), x.dtype)


@function("raw_ops.PadV2")
def _pad_v2(graph: OnnxGraph, *, input: Tensor, paddings: Any, constant_values: Any) -> Tensor:
    return _pad(graph, input, paddings, constant_values)


def _split_pairs(graph: OnnxGraph, paddings: Any) -> list[tuple[Any, Any]]:
    if isinstance(paddings, Tensor):
        if paddings.value is not None:
            return [(int(low), int(high)) for low, high in paddings.value]
        rows = range(paddings.shape[0] or 0)
        return [(getitem(graph, paddings, (i, 0)), getitem(graph, paddings, (i, 1))) for i in rows]
    return [tuple(_split_vector(graph, pair)) for pair in paddings]


FUNCTIONS = (
    function("TensorShape")(lambda graph, sizes: Shape(sizes)),
    function("zeros")(functools.partial(_fill, number=0)),
    function("ones")(functools.partial(_fill, number=1)),
    function("tensor_scatter_nd_update")(functools.partial(_scatter, reduction="none")),
    function("tensor_scatter_nd_add")(functools.partial(_scatter, reduction="add")),
    # TensorFlow has no such function.
    function("tensor_scatter_nd_multiply")(functools.partial(_scatter, reduction="mul")),
    function("tensor_scatter_nd_max")(functools.partial(_scatter_extreme, reduction="max")),
    function("tensor_scatter_nd_min")(functools.partial(_scatter_extreme, reduction="min")),
    function("math.unsorted_segment_sum")(
        functools.partial(_combine_segments, initial=0, reduction="add")
    ),
    function("math.unsorted_segment_prod")(
        functools.partial(_combine_segments, initial=1, reduction="mul")
    ),
)
