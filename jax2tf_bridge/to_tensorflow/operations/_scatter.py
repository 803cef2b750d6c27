"""Scatter: writes or combines slices into an array at given indices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.bytecode import Block, Operation
from jax2tf_bridge.to_tensorflow.operations import _converter_forms
from jax2tf_bridge.to_tensorflow.operations._array import Array
from jax2tf_bridge.to_tensorflow.operations._bodies import sized
from jax2tf_bridge.to_tensorflow.operations._dynamic_slices import slice_at, update_at
from jax2tf_bridge.to_tensorflow.operations._folding import greatest
from jax2tf_bridge.to_tensorflow.operations._indices import (
    all_of,
    clamped,
    component,
    flat_index,
    index_vectors,
    ints_or_none,
    is_too_deep,
    within,
)
from jax2tf_bridge.to_tensorflow.operations._scope import Emitter, Scope
from jax2tf_bridge.to_tensorflow.operations._shapes import (
    broadcast,
    cut,
    grown,
    iota,
    move,
    product,
    reshape,
    transpose,
)
from shape_poly import Dim


@dataclass(frozen=True)
class _Updates:
    """Positions of updates.

    Attributes:
      batch: the batch sizes of the indices.
      starts: maps axes of the operand to the clamped starts of windows; 0 for other axes.
      valid: which windows were within bounds before clamping; None for all.
      batched: maps batching axes of the operand to batch axes.
      windows: maps axes of the operand to window axes of the updates; other axes have size 1.
      batch_axes: the batch axes of the updates.
      sizes: the window size for each axis of the operand.
    """

    batch: tuple[Dim, ...]
    starts: Mapping[int, Array]
    valid: Array | None
    batched: Mapping[int, int]
    windows: Mapping[int, int]
    batch_axes: tuple[int, ...]
    sizes: tuple[Dim, ...]


def _scatter(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    count = len(operation.results)
    arrays, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    if 0 in arrays[0].sizes or 0 in updates[0].sizes:
        return list(arrays)
    places = _places(scope, operation, arrays[0], indices, updates[0])
    larger, updates = _larger(scope, places, arrays, updates)
    if larger is arrays:
        return _scattered(scope, operation, places, arrays, updates)
    places = _places(scope, operation, larger[0], indices, updates[0])
    result = _scattered(scope, operation, places, larger, updates)
    return [cut(scope, one, other.sizes) for one, other in zip(result, arrays, strict=True)]


def _larger(
    scope: Scope, places: _Updates, arrays: Sequence[Array], updates: Sequence[Array]
) -> tuple[Sequence[Array], Sequence[Array]]:
    """Pads arrays that may be empty or smaller than a window; returns others unchanged.

    Updates that span a whole axis of the arrays are padded along it too.
    """
    least: list[Dim] = [1] * arrays[0].rank
    of_updates: list[Dim] = [0] * updates[0].rank
    for axis, size in enumerate(places.sizes):
        if size != arrays[0].sizes[axis]:
            least[axis] = size
        elif axis in places.windows:
            of_updates[places.windows[axis]] = 1
    larger = [grown(scope, array, least) for array in arrays]
    if larger[0].sizes == arrays[0].sizes:
        return arrays, updates
    return larger, [grown(scope, update, of_updates) for update in updates]


def _scattered(
    scope: Scope,
    operation: Operation,
    places: _Updates,
    arrays: Sequence[Array],
    updates: Sequence[Array],
) -> Sequence[Array]:
    count = len(arrays)
    body = operation.regions[0]
    kinds = [_combination(body, i, arrays[i].element) for i in range(count)]
    if all(size == 1 for size in places.batch):
        scalars = {axis: reshape(scope, start, ()) for axis, start in places.starts.items()}
        valid = None if places.valid is None else reshape(scope, places.valid, ())
        windows = [_window(scope, places, update) for update in updates]
        return _update_once(scope, body, kinds, arrays, windows, scalars, valid)
    if all(kind is not None for kind in kinds):
        return [
            _combined(scope, places, kind, array, update)
            for kind, array, update in zip(kinds, arrays, updates, strict=True)
            if kind is not None
        ]
    if operation.attributes.get("unique_indices") is True:
        return _update_all(scope, body, places, arrays, updates)
    return _update_each(scope, body, kinds, places, arrays, updates)


def _places(
    scope: Scope, operation: Operation, array: Array, indices: Array, update: Array
) -> _Updates:
    vector_axis = operation.int("index_vector_dim")
    given = {
        axis: component(scope, indices, vector_axis, number)
        for number, axis in enumerate(operation.ints("scatter_dims_to_operand_dims"))
    }
    batching = ints_or_none(operation, "input_batching_dims")
    indices_batching = [
        axis - (axis > vector_axis)
        for axis in ints_or_none(operation, "scatter_indices_batching_dims")
    ]
    gone = {*operation.ints("inserted_window_dims"), *batching}
    window_axes = operation.ints("update_window_dims")
    kept = [axis for axis in range(array.rank) if axis not in gone]
    windows = dict(zip(kept, window_axes, strict=True))
    batch_axes = tuple(axis for axis in range(update.rank) if axis not in window_axes)
    batch = tuple(update.sizes[axis] for axis in batch_axes)
    sizes = tuple(
        update.sizes[windows[axis]] if axis in windows else 1 for axis in range(array.rank)
    )
    starts: dict[int, Array] = {}
    valid: list[Array | None] = []
    for axis, size in enumerate(sizes):
        if axis in given:
            limit = array.sizes[axis] - size
            start = clamped(scope, given[axis], greatest(scope, limit, 0))
            valid.append(within(scope, given[axis], start))
            if scope.bounds(limit)[0] < 0:
                fits = tf.greater_equal(scope.size(limit), 0)
                valid.append(Array("i1", batch, tf.reshape(fits, [1] * len(batch))))
            if array.sizes[axis] != size:
                starts[axis] = start
        elif axis not in batching and array.sizes[axis] != size:
            starts[axis] = Array("i32", batch, known=np.zeros((), np.int32))
    return _Updates(
        batch,
        starts,
        all_of(scope, valid, batch),
        dict(zip(batching, indices_batching, strict=True)),
        windows,
        batch_axes,
        sizes,
    )


# Recognition of the body.

_COMMON = frozenset({"add", "multiply", "maximum", "minimum", "and", "or"})
_OF_FLAGS = MappingProxyType(
    {
        "add": "maximum",
        "or": "maximum",
        "maximum": "maximum",
        "and": "minimum",
        "multiply": "minimum",
        "minimum": "minimum",
    }
)


def _combination(body: Block, place: int, element: str) -> str | None:
    """Returns the name of the body's combination, if TensorFlow has it; else None."""
    count = len(body.arguments) // 2
    old, new = body.arguments[place], body.arguments[count + place]
    result = body.returned[place]
    if result is new:
        return "replace"
    if result is old:
        return "keep"
    made = [operation for operation in body.operations if result in operation.results]
    if not made or made[0].name not in _COMMON or {*made[0].operands} != {old, new}:
        return None
    name = made[0].name
    if element == "i1":
        return _OF_FLAGS[name]
    if name in ("and", "or") or element.startswith("f8"):
        return None
    if name in ("maximum", "minimum") and element.startswith("complex"):
        return None
    return name


# One window.


def _window(scope: Scope, places: _Updates, update: Array) -> Array:
    """Returns the only update, as a slice of the operand."""
    order = [*places.batch_axes, *(places.windows[axis] for axis in sorted(places.windows))]
    moved = transpose(scope, update, order)
    return reshape(scope, moved, places.sizes)


def _update_once(
    scope: Scope,
    body: Block,
    kinds: Sequence[str | None],
    arrays: Sequence[Array],
    windows: Sequence[Array],
    starts: Mapping[int, Array],
    valid: Array | None,
) -> list[Array]:
    """Combines one window, whose starts are scalars."""
    replaces = all(kind == "replace" for kind in kinds)
    if replaces and valid is None:
        news = list(windows)
    else:
        olds = [
            slice_at(scope, array, starts, window.sizes)
            for array, window in zip(arrays, windows, strict=True)
        ]
        news = list(windows)
        if not replaces:
            result = scope.inner().run(body, [*olds, *windows])
            news = [sized(scope, new, old.sizes) for new, old in zip(result, olds, strict=True)]
        if valid is not None:
            flag = scope.compact(valid)
            news = [_chosen(scope, flag, new, old) for new, old in zip(news, olds, strict=True)]
    return [update_at(scope, array, new, starts) for array, new in zip(arrays, news, strict=True)]


def _chosen(scope: Scope, flag: tf.Tensor, new: Array, old: Array) -> Array:
    def choose(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        return tf.where(flag, left, right)

    tensor = move(choose, scope.compact(new), scope.compact(old))
    return Array(old.element, old.sizes, tensor)


# Many windows.


@dataclass(frozen=True)
class _Rows:
    """Updates as rows at positions of the operand's leading axes.

    Attributes:
      order: the axes of the operand, those with an index first.
      components: the components of the index, one per leading axis, with the sizes `grid`.
      grid: the sizes of the index.
      rest: the sizes of the operand after the leading axes.
      valid: which rows are within bounds; None for all.
      own: whether the operand gets a new leading axis, because no axis has an index.
    """

    order: tuple[int, ...]
    components: tuple[Array, ...]
    grid: tuple[Dim, ...]
    rest: tuple[Dim, ...]
    valid: Array | None
    own: bool

    def rows(self, scope: Scope, array: Array) -> Array:
        """Transposes the operand: axes with an index come first."""
        moved = transpose(scope, array, self.order)
        return reshape(scope, moved, (1, *moved.sizes)) if self.own else moved

    def back(self, scope: Scope, array: Array, sizes: Sequence[Dim]) -> Array:
        """Reverses `rows`."""
        moved = reshape(scope, array, array.sizes[1:]) if self.own else array
        return transpose(scope, moved, np.argsort(self.order).tolist())


def _rows(scope: Scope, places: _Updates, array: Array) -> _Rows:
    batch = len(places.batch)
    leading = [*places.batched, *places.starts]
    spread = [axis for axis in places.starts if places.sizes[axis] != 1]
    grid = (*places.batch, *(places.sizes[axis] for axis in spread))
    components: list[Array] = []
    for axis in leading:
        if axis in places.batched:
            components.append(iota(scope, "i32", grid, places.batched[axis]))
            continue
        start = broadcast(scope, places.starts[axis], grid, range(batch))
        if axis in spread:
            counted = iota(scope, start.element, grid, batch + spread.index(axis))
            if start.known is not None and counted.known is not None:
                start = Array(start.element, grid, known=start.known + counted.known)
            else:
                tensor = scope.compact(start) + scope.compact(counted)
                start = Array(start.element, grid, tensor)
        components.append(start)
    own = not leading
    if own:
        components = [Array("i32", grid, known=np.zeros((), np.int32))]
    rest = [axis for axis in range(array.rank) if axis not in leading]
    valid = places.valid
    return _Rows(
        (*leading, *rest),
        tuple(components),
        grid,
        tuple(array.sizes[axis] for axis in rest),
        None if valid is None else broadcast(scope, valid, grid, range(batch)),
        own,
    )


def _row_updates(scope: Scope, places: _Updates, rows: _Rows, update: Array) -> Array:
    """Transposes updates: the axes of the index come first, then those of the rows."""
    spread = [axis for axis in places.starts if places.sizes[axis] != 1]
    leading = {*places.batched, *places.starts}
    rest = [axis for axis in sorted(places.windows) if axis not in leading]
    single = [axis for axis in places.windows if axis in leading and axis not in spread]
    order = [
        *places.batch_axes,
        *(places.windows[axis] for axis in [*spread, *rest, *single]),
    ]
    return reshape(scope, transpose(scope, update, order), (*rows.grid, *rows.rest))


def _combined(scope: Scope, places: _Updates, kind: str, array: Array, update: Array) -> Array:
    """Combines updates of many windows by TensorFlow's own combinations."""
    if kind == "keep" or 0 in array.sizes or 0 in update.sizes:
        return array
    rows = _rows(scope, places, array)
    old = rows.rows(scope, array)
    new = _row_updates(scope, places, rows, update)
    is_sum = kind == "add" and len(rows.components) == 1 and _is_zero(array)
    if scope.for_converters and kind in _EXTREMES_AND_PRODUCTS:
        tensor = _by_runs(scope, rows, kind, old, new)
    # tf2onnx pads all segments of a sum to the longest one.
    elif kind == "multiply" or (is_sum and not scope.for_converters):
        tensor = _segments(scope, rows, kind, old, new)
    else:
        flat = _flat_rows(scope, rows, old)
        if kind == "replace":
            vectors, (kept,) = _kept(scope, rows, old, [new])
            tensor = _replace(scope.tensor(flat), vectors, kept)
        else:
            vectors = _vectors(scope, rows, old)
            valid = None if rows.valid is None else _on_rows(scope, rows, rows.valid)
            tensor = _KERNELS[kind](scope.tensor(flat), vectors, scope.tensor(new), valid)
        if flat is not old:
            tensor = tf.reshape(tensor, scope.reshape_shape(old.sizes))
    made = scope.made(_wrapped(array.element, tensor), array.element, old.sizes)
    return rows.back(scope, made, array.sizes)


def _is_zero(array: Array) -> bool:
    # -0.0 is excluded, because adding an empty sum changes it.
    return array.known is not None and not any(array.known.tobytes())


def _wrapped(element: str, tensor: tf.Tensor) -> tf.Tensor:
    """Wraps around 4-bit integers, which are stored in 8 bits."""
    if element == "ui4":
        return tf.bitwise.bitwise_and(tensor, tf.constant(15, tf.uint8))
    if element == "i4":
        four = tf.constant(4, tf.int8)
        return tf.bitwise.right_shift(tf.bitwise.left_shift(tensor, four), four)
    return tensor


def _flat_rows(scope: Scope, rows: _Rows, old: Array) -> Array:
    """Merges the leading axes if an index would have too many components."""
    if not is_too_deep(len(rows.components)):
        return old
    return reshape(scope, old, (_leading_size(rows, old), *rows.rest))


def _leading_size(rows: _Rows, old: Array) -> Dim:
    return product(old.sizes[: len(rows.components)])


def _vectors(scope: Scope, rows: _Rows, old: Array) -> tf.Tensor:
    components = list(rows.components)
    if is_too_deep(len(components)):
        components = [flat_index(scope, components, old.sizes[: len(components)])]
    return index_vectors(scope, components)


def _on_rows(scope: Scope, rows: _Rows, flags: Array) -> tf.Tensor:
    """Reshapes flags of the rows to broadcast to the updates."""
    sizes = (*rows.grid, *([1] * len(rows.rest)))
    return scope.compact(broadcast(scope, flags, sizes, range(len(rows.grid))))


def _kept(
    scope: Scope, rows: _Rows, old: Array, updates: Sequence[Array]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns index vectors and updates of the rows within bounds."""
    vectors = _vectors(scope, rows, old)
    if rows.valid is None:
        return vectors, [scope.tensor(update) for update in updates]
    total = (product(rows.grid),)
    flags = scope.tensor(reshape(scope, scope.full(rows.valid), total))
    chosen = tf.squeeze(tf.where(flags), [1])
    if len(rows.grid) > 1:
        vectors = tf.reshape(vectors, [-1, vectors.shape[-1]])
    flat = [reshape(scope, update, (*total, *rows.rest)) for update in updates]
    return tf.gather(vectors, chosen), [tf.gather(scope.tensor(new), chosen) for new in flat]


def _segments(scope: Scope, rows: _Rows, kind: str, old: Array, new: Array) -> tf.Tensor:
    """Adds or multiplies updates of the same row first; rows without updates do not change."""
    index = flat_index(scope, rows.components, old.sizes[: len(rows.components)])
    ids = scope.tensor(index)
    if rows.valid is not None:
        ids = tf.where(scope.tensor(rows.valid), ids, tf.constant(-1, ids.dtype))
    number = scope.size(_leading_size(rows, old))
    shape = scope.reshape_shape(old.sizes)
    updates = scope.tensor(new)
    if kind == "add":
        result = tf.math.unsorted_segment_sum(updates, ids, number)
        return result if len(rows.components) == 1 else tf.reshape(result, shape)
    # The dtype is wide enough that a product of several updates does not overflow too early.
    own = old.tf_dtype
    wide = {2: tf.float64, 4: tf.float64, 8: tf.complex128}
    dtype = wide[own.size] if own in _NARROW else own
    result = tf.math.unsorted_segment_prod(tf.cast(updates, dtype), ids, number)
    return tf.cast(tf.cast(scope.tensor(old), dtype) * tf.reshape(result, shape), own)


_EXTREMES_AND_PRODUCTS = frozenset({"maximum", "minimum", "multiply"})


def _by_runs(scope: Scope, rows: _Rows, kind: str, old: Array, new: Array) -> tf.Tensor:
    """Combines updates with operations that converters support: sorted by rows, then by runs.

    Each step doubles the number of combined neighbours; the last element of a run has the total.
    """
    combine = _converter_forms.combination(kind, old.element)
    total = (product(rows.grid),)
    index = flat_index(scope, rows.components, old.sizes[: len(rows.components)])
    end = scope.size(_leading_size(rows, old))
    ids = scope.tensor(reshape(scope, scope.full(index), total))
    if rows.valid is not None:
        flags = scope.tensor(reshape(scope, scope.full(rows.valid), total))
        ids = tf.where(flags, ids, tf.cast(end, ids.dtype))
    values = tf.reshape(scope.tensor(new), scope.reshape_shape((*total, *rows.rest)))
    count = tf.shape(ids)[0]
    order = tf.math.top_k(tf.negative(ids), count).indices
    ids, values = tf.gather(ids, order), tf.gather(values, order)
    place = tf.range(count)

    def step(width: tf.Tensor, result: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        before = tf.maximum(place - width, 0)
        is_same = tf.logical_and(tf.equal(tf.gather(ids, before), ids), place >= width)
        others = combine(result, tf.gather(result, before))
        chosen = tf.reshape(is_same, [-1] + [1] * len(rows.rest))
        return width * 2, _converter_forms.chosen(chosen, others, result)

    _, values = tf.while_loop(
        lambda width, _: width < count,
        step,
        (tf.constant(1), values),
        shape_invariants=(tf.TensorShape([]), values.shape),
    )
    following = tf.gather(ids, tf.minimum(place + 1, count - 1))
    is_last = tf.logical_or(tf.not_equal(following, ids), tf.equal(place, count - 1))
    # An additional row receives updates out of bounds.
    flat = tf.reshape(
        scope.tensor(old), scope.reshape_shape((_leading_size(rows, old), *rows.rest))
    )
    flat = tf.concat([flat, flat[:1]], 0)
    target = tf.where(is_last, ids, tf.cast(end, ids.dtype))
    values = combine(tf.gather(flat, ids), values)
    result = tf.tensor_scatter_nd_update(flat, target[:, None], values)[:end]
    return tf.reshape(result, scope.reshape_shape(old.sizes))


_NARROW = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.complex64})


def _replace(tensor: tf.Tensor, index: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    return move(lambda x, new: tf.tensor_scatter_nd_update(x, index, new), tensor, updates)


def _masked(updates: tf.Tensor, valid: tf.Tensor | None, neutral: Any) -> tf.Tensor:
    """Replaces updates out of bounds by the identity element."""
    if valid is None:
        return updates
    return tf.where(valid, updates, tf.constant(neutral, updates.dtype))


def _add(
    tensor: tf.Tensor, index: tf.Tensor, updates: tf.Tensor, valid: tf.Tensor | None
) -> tf.Tensor:
    dtype = tensor.dtype
    # -0.0 + 0.0 is 0.0.
    neutral = complex(-0.0, -0.0) if dtype.is_complex else -0.0 if dtype.is_floating else 0
    return tf.tensor_scatter_nd_add(tensor, index, _masked(updates, valid, neutral))


def _extreme(
    tensor: tf.Tensor,
    index: tf.Tensor,
    updates: tf.Tensor,
    valid: tf.Tensor | None,
    *,
    is_maximum: bool,
) -> tf.Tensor:
    dtype = tensor.dtype
    again = functools.partial(_extreme, is_maximum=is_maximum)
    if dtype == tf.bool:
        as_numbers = [tf.cast(x, tf.int8) for x in (tensor, updates)]
        return tf.cast(again(as_numbers[0], index, as_numbers[1], valid), dtype)
    if dtype.is_floating:
        # TensorFlow's kernels lose NaN, so floats become integers in the same order, NaN last.
        keys = [_keys(x, is_maximum) for x in (tensor, updates)]
        return tf.bitcast(_ordered_bits(again(keys[0], index, keys[1], valid)), dtype)
    ends = (dtype.min, dtype.max)
    scatter = tf.tensor_scatter_nd_max if is_maximum else tf.tensor_scatter_nd_min
    return scatter(tensor, index, _masked(updates, valid, ends[0 if is_maximum else 1]))


_BITS = MappingProxyType({2: tf.int16, 4: tf.int32, 8: tf.int64})


def _keys(tensor: tf.Tensor, nan_is_greatest: bool) -> tf.Tensor:
    """Converts floats to integers in the same order; NaN is the greatest or the least."""
    dtype = _BITS[tensor.dtype.size]
    keys = _ordered_bits(tf.bitcast(tensor, dtype))
    nan = tf.constant(dtype.max if nan_is_greatest else dtype.min, dtype)
    return tf.where(tf.math.is_nan(tensor), nan, keys)


def _ordered_bits(bits: tf.Tensor) -> tf.Tensor:
    """Reverses the order of negative numbers; applying it twice restores the bits."""
    dtype = bits.dtype
    sign = tf.bitwise.right_shift(bits, tf.constant(8 * dtype.size - 1, dtype))
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.bitwise_and(sign, tf.constant(dtype.max, dtype)))


_Kernel: TypeAlias = "Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None], tf.Tensor]"
_KERNELS: Mapping[str, _Kernel] = MappingProxyType(
    {
        "add": _add,
        "maximum": functools.partial(_extreme, is_maximum=True),
        "minimum": functools.partial(_extreme, is_maximum=False),
    }
)

# Any body.


def _update_all(
    scope: Scope,
    body: Block,
    places: _Updates,
    arrays: Sequence[Array],
    updates: Sequence[Array],
) -> list[Array]:
    """Combines updates of many non-overlapping windows at once."""
    if 0 in arrays[0].sizes or 0 in updates[0].sizes:
        return list(arrays)
    rows = _rows(scope, places, arrays[0])
    olds = [rows.rows(scope, array) for array in arrays]
    flats = [scope.tensor(_flat_rows(scope, rows, old)) for old in olds]
    vectors, kept = _kept(
        scope, rows, olds[0], [_row_updates(scope, places, rows, update) for update in updates]
    )
    grid = rows.grid if rows.valid is None else (scope.new_size(tf.shape(vectors)[0], least=0),)
    sizes = (*grid, *rows.rest)
    taken = [
        scope.made(tf.gather_nd(flat, vectors), old.element, sizes)
        for flat, old in zip(flats, olds, strict=True)
    ]
    news = [scope.made(new, old.element, sizes) for new, old in zip(kept, olds, strict=True)]
    combined = [sized(scope, new, sizes) for new in scope.inner().run(body, [*taken, *news])]
    results: list[Array] = []
    for array, old, flat, new in zip(arrays, olds, flats, combined, strict=True):
        tensor = _replace(flat, vectors, scope.tensor(new))
        if tensor.shape.rank != old.rank:
            tensor = tf.reshape(tensor, scope.reshape_shape(old.sizes))
        made = scope.made(tensor, array.element, old.sizes)
        results.append(rows.back(scope, made, array.sizes))
    return results


def _update_each(
    scope: Scope,
    body: Block,
    kinds: Sequence[str | None],
    places: _Updates,
    arrays: Sequence[Array],
    updates: Sequence[Array],
) -> list[Array]:
    """Combines updates in sequence."""
    total = product(places.batch)
    starts = dict(places.starts)
    for axis, place in places.batched.items():
        starts[axis] = iota(scope, "i32", places.batch, place)
    firsts = {axis: scope.tensor(reshape(scope, a, (total,))) for axis, a in starts.items()}
    valid = None if places.valid is None else scope.tensor(reshape(scope, places.valid, (total,)))
    windows: list[tf.Tensor] = []
    for update in updates:
        order = [*places.batch_axes, *(places.windows[axis] for axis in sorted(places.windows))]
        moved = transpose(scope, update, order)
        windows.append(scope.tensor(reshape(scope, moved, (total, *places.sizes))))

    def step(i: tf.Tensor, *tensors: tf.Tensor) -> list[Any]:
        inner = scope.inner(other_graph=True)
        result = _update_once(
            inner,
            body,
            kinds,
            [inner.made(x, a.element, a.sizes) for x, a in zip(tensors, arrays, strict=True)],
            [
                inner.made(tf.gather(w, i), u.element, places.sizes)
                for w, u in zip(windows, updates, strict=True)
            ],
            {axis: Array(starts[axis].element, (), first[i]) for axis, first in firsts.items()},
            None if valid is None else Array("i1", (), valid[i]),
        )
        return [i + 1, *(inner.tensor(array) for array in result)]

    number = scope.size(total)
    _, *results = tf.while_loop(
        lambda i, *_: i < number,
        step,
        [tf.constant(0), *(scope.tensor(array) for array in arrays)],
    )
    return [
        scope.made(tensor, array.element, array.sizes)
        for tensor, array in zip(results, arrays, strict=True)
    ]


EMITTERS: Mapping[str, Emitter] = MappingProxyType({"scatter": _scatter})
