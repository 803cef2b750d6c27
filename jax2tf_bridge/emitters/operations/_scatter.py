"""Scatter: writes or combines slices into an array at given indices."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from jax2tf_bridge.bytecode import Block, Operation
from jax2tf_bridge.emitters._array import Array, Arrays, Shape, zeros
from jax2tf_bridge.emitters._movement import (
    broadcast,
    iota,
    move,
    multiply_sizes,
    pad_to,
    reshape,
    select,
    take_first,
    transpose,
)
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.emitters.formulas import converter_forms
from jax2tf_bridge.emitters.formulas.floats import order_as_floats, total_order_key
from jax2tf_bridge.emitters.formulas.integers import constant_like, wrap
from jax2tf_bridge.emitters.operations._dynamic_slices import (
    Slices,
    clamp,
    combine_flags,
    flag_unchanged,
    flatten_indices,
    is_too_deep,
    slice_at,
    split_operands,
    stack_indices,
    update_at,
)
from jax2tf_bridge.emitters.operations._reductions import make_combine
from jax2tf_bridge.rewriting import Reducer, has_reduction, match_reducers
from shape_poly import Dim

_NAMES = (
    *("update_window_dims", "inserted_window_dims", "input_batching_dims"),
    *("scatter_indices_batching_dims", "scatter_dims_to_operand_dims"),
)


def scatter(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    """Converts a scatter; also of slices that an emitter makes itself."""
    arrays, indices, updates = split_operands(operation, operands)
    if 0 in arrays[0].sizes or 0 in updates[0].sizes:
        return list(arrays)
    slices = _read_slices(scope, operation, arrays[0], indices, updates[0])
    larger, updates = _pad(scope, slices, arrays, updates)
    if larger is arrays:
        return _update(scope, operation, slices, arrays, updates)
    slices = _read_slices(scope, operation, larger[0], indices, updates[0])
    results = _update(scope, operation, slices, larger, updates)
    pairs = zip(results, arrays, strict=True)
    return [take_first(scope, result, array.sizes) for result, array in pairs]


_scatter = emits("scatter")(scatter)


def _read_slices(
    scope: Scope, operation: Operation, array: Array, indices: Arrays, update: Array
) -> Slices:
    slices = Slices.read(operation, _NAMES, array.rank, indices[0].rank)
    batch = tuple(update.sizes[axis] for axis in slices.batch_axes)
    sizes = tuple(
        update.sizes[slices.window_axes[axis]] if axis in slices.window_axes else 1
        for axis in range(array.rank)
    )
    starts: dict[int, Array] = {}
    valid: list[Array | None] = []
    for axis, (own, size) in enumerate(zip(array.sizes, sizes, strict=True)):
        start = zeros("i32", batch)
        if axis in slices.index_map:
            index = slices.component(scope, indices, axis)
            start = clamp(scope, index, scope.sizes.maximum(own - size, 0))
            valid.append(flag_unchanged(scope, index, start))
            if scope.sizes.bounds(own - size)[0] < 0:
                fits = ops.greater_equal(scope.sizes.size(own - size), 0)
                valid.append(Array("i1", batch, ops.reshape(fits, [1] * len(batch))))
        if axis not in slices.batched and own != size:
            starts[axis] = start
    flags = combine_flags(scope, valid, batch)
    return replace(slices, sizes=sizes, batch=batch, starts=starts, valid=flags)


def _pad(scope: Scope, slices: Slices, arrays: Arrays, updates: Arrays) -> tuple[Arrays, Arrays]:
    """Pads arrays that may be empty or smaller than a window; returns others unchanged.

    Updates that span a whole axis of the arrays are padded along it too.
    """
    least: list[Dim] = [1] * arrays[0].rank
    least_of_updates: list[Dim] = [0] * updates[0].rank
    for axis, size in enumerate(slices.sizes):
        if size != arrays[0].sizes[axis]:
            least[axis] = size
        elif axis in slices.window_axes:
            least_of_updates[slices.window_axes[axis]] = 1
    larger = [pad_to(scope, array, least) for array in arrays]
    if larger[0].sizes == arrays[0].sizes:
        return arrays, updates
    return larger, [pad_to(scope, update, least_of_updates) for update in updates]


def _update(
    scope: Scope, operation: Operation, slices: Slices, arrays: Arrays, updates: Arrays
) -> Arrays:
    body = operation.regions[0]
    kinds = [_match_combination(scope, body, i, array) for i, array in enumerate(arrays)]
    if all(size == 1 for size in slices.batch):
        scalars = {axis: reshape(scope, start, ()) for axis, start in slices.starts.items()}
        valid = None if slices.valid is None else reshape(scope, slices.valid, ())
        windows = [_windows(scope, slices, update, ()) for update in updates]
        replaces = all(kind == "replace" for kind in kinds)
        return _update_once(scope, None if replaces else body, arrays, windows, scalars, valid)
    is_unique = operation.attributes.get("unique_indices") is True
    if None in kinds and not is_unique:
        return _update_each(scope, body, slices, arrays, updates)
    rows = _Rows(scope, slices, arrays[0])
    if None in kinds:
        return _update_unique(scope, body, rows, arrays, updates)
    return [
        _combine(scope, kind, rows, array, update)
        for kind, array, update in zip(kinds, arrays, updates, strict=True)
        if kind is not None
    ]


def _windows(scope: Scope, slices: Slices, update: Array, batch: Shape) -> Array:
    """Reshapes updates to the sizes of the batch, then those of a slice of the operand."""
    axes = (slices.window_axes[axis] for axis in sorted(slices.window_axes))
    moved = transpose(scope, update, [*slices.batch_axes, *axes])
    return reshape(scope, moved, (*batch, *slices.sizes))


# Recognition of the body.

_OF_FLAGS: Mapping[str, str] = MappingProxyType({"or": "maximum", "and": "minimum"})


def _match_combination(scope: Scope, body: Block, place: int, array: Array) -> str | None:
    """Returns the name of the body's combination, if there is a function for it; else None."""
    element = array.element
    count = len(body.arguments) // 2
    old, new = body.arguments[place], body.arguments[count + place]
    result = body.returned[place]
    if result is new:
        return "replace"
    if result is old:
        return "keep"
    reducers = match_reducers(body)
    if reducers is None or reducers[place].element != element or element.startswith("f8"):
        return None
    name = reducers[place].name
    # ONNX has no such function for complex numbers, and products in another order may overflow.
    is_ordered = scope.for_onnx and array.row.kind == "complex" and name == "multiply"
    is_combination = has_reduction(reducers[place], element) and name != "xor" and not is_ordered
    return _OF_FLAGS.get(name, name) if is_combination else None


# One window.


def _update_once(
    scope: Scope,
    body: Block | None,
    arrays: Arrays,
    windows: Arrays,
    starts: Mapping[int, Array],
    valid: Array | None,
) -> list[Array]:
    """Combines one window, whose starts are scalars; without a body, writes it."""
    news = list(windows)
    if body is not None or valid is not None:
        olds = [
            slice_at(scope, array, starts, window.sizes)
            for array, window in zip(arrays, windows, strict=True)
        ]
        if body is not None:
            news = make_combine(body)(scope, olds, news)
        if valid is not None:
            flag = scope.compact(valid)
            news = [select(scope, flag, new, old) for new, old in zip(news, olds, strict=True)]
    return [update_at(scope, array, new, starts) for array, new in zip(arrays, news, strict=True)]


# Many windows.


class _Rows:
    """Rows of an operand whose axes with an index come first, and the indices of updated rows.

    Attributes:
      grid: the sizes of the index; there is an updated row for each of its elements.
      leading: the sizes of the leading axes.
      rest: the sizes of a row.
      valid: which updated rows are within bounds; None for all.
    """

    def __init__(self, scope: Scope, slices: Slices, array: Array) -> None:
        """Lays out operands with the axes of `array`."""
        self._scope, self._slices = scope, slices
        self._axes = [*slices.batched, *slices.starts]
        self._rest_axes = [axis for axis in range(array.rank) if axis not in self._axes]
        self.grid = slices.grid
        # The operand gets a new leading axis if no axis has an index.
        self.leading = tuple(array.sizes[axis] for axis in self._axes) or (1,)
        self.rest = tuple(array.sizes[axis] for axis in self._rest_axes)
        self.valid = slices.valid
        if self.valid is not None:
            self.valid = broadcast(scope, self.valid, self.grid, range(len(slices.batch)))

    def of_operand(self, array: Array) -> Array:
        moved = transpose(self._scope, array, [*self._axes, *self._rest_axes])
        return moved if self._axes else reshape(self._scope, moved, (1, *moved.sizes))

    def to_operand(self, tensor: ops.Tensor, element: str) -> Array:
        """Converts rows, whose leading axes may be merged, to an operand."""
        sizes = (*self.leading, *self.rest)
        if tensor.shape.rank != len(sizes):
            tensor = ops.reshape(tensor, self._scope.sizes.reshape_shape(sizes))
        array = self._scope.new_array(tensor, element, sizes)
        if not self._axes:
            array = reshape(self._scope, array, self.rest)
        order = np.argsort([*self._axes, *self._rest_axes]).tolist()
        return transpose(self._scope, array, order)

    def of_updates(self, update: Array) -> Array:
        """Converts updates to rows, with the sizes of the grid first."""
        windows, spread = self._slices.window_axes, self._slices.spread
        rest = [axis for axis in self._rest_axes if axis in windows]
        single = [axis for axis in windows if axis in self._axes and axis not in spread]
        order = [*self._slices.grid_axes, *(windows[axis] for axis in [*rest, *single])]
        moved = transpose(self._scope, update, order)
        return reshape(self._scope, moved, (*self.grid, *self.rest))

    @property
    def count(self) -> Dim:
        return multiply_sizes(self.leading)

    @functools.cached_property
    def components(self) -> list[Array]:
        """Components of the index, one per leading axis."""
        if not self._axes:
            return [zeros("i32", self.grid)]
        return [self._slices.on_grid(self._scope, axis) for axis in self._axes]

    @functools.cached_property
    def flat_index(self) -> Array:
        return flatten_indices(self._scope, self.components, self.leading)

    @functools.cached_property
    def vectors(self) -> ops.Tensor:
        """Index vectors for `indexed`."""
        is_flat = is_too_deep(len(self.leading))
        return stack_indices(self._scope, [self.flat_index] if is_flat else self.components)

    def indexed(self, array: Array) -> ops.Tensor:
        """Returns rows; their leading axes are merged if vectors would have many components."""
        rows = self.of_operand(array)
        if is_too_deep(len(self.leading)):
            rows = reshape(self._scope, rows, (self.count, *self.rest))
        return self._scope.tensor(rows)

    def within_bounds(self, updates: Arrays) -> tuple[ops.Tensor, list[ops.Tensor]]:
        """Returns index vectors, and updates, of rows within bounds."""
        scope, vectors = self._scope, self.vectors
        updates = [self.of_updates(update) for update in updates]
        if self.valid is None:
            return vectors, [scope.tensor(update) for update in updates]
        total = (multiply_sizes(self.grid),)
        flags = scope.tensor(reshape(scope, scope.full(self.valid), total))
        chosen = ops.squeeze(ops.where(flags), [1])
        if len(self.grid) > 1:
            vectors = ops.reshape(vectors, [-1, vectors.shape[-1]])
        flat = [scope.tensor(reshape(scope, update, (*total, *self.rest))) for update in updates]
        return ops.gather(vectors, chosen), [ops.gather(tensor, chosen) for tensor in flat]

    def ids(self) -> ops.Tensor:
        """Returns the number of each updated row; `count` for those out of bounds."""
        scope, total = self._scope, (multiply_sizes(self.grid),)
        ids = scope.tensor(reshape(scope, scope.full(self.flat_index), total))
        if self.valid is None:
            return ids
        flags = scope.tensor(reshape(scope, scope.full(self.valid), total))
        return ops.where(flags, ids, scope.sizes.number(self.count, ids.dtype))

    def values(self, update: Array) -> ops.Tensor:
        """Returns the updated rows, whose numbers are `ids`."""
        sizes = (multiply_sizes(self.grid), *self.rest)
        return self._scope.tensor(reshape(self._scope, self.of_updates(update), sizes))

    def append_row(self, array: Array) -> ops.Tensor:
        """Returns all rows and an additional one, which receives updates out of bounds."""
        flat = reshape(self._scope, self.of_operand(array), (self.count, *self.rest))
        tensor = self._scope.tensor(flat)
        return ops.concat([tensor, tensor[:1]], 0)

    def remove_row(self, tensor: ops.Tensor) -> ops.Tensor:
        """Removes the additional row again."""
        return tensor[: self._scope.sizes.size(self.count)]

    def mask(self, update: Array, neutral: Any) -> ops.Tensor:
        """Replaces updates out of bounds by an identity element."""
        tensor = self._scope.tensor(self.of_updates(update))
        if self.valid is None:
            return tensor
        sizes = (*self.grid, *([1] * len(self.rest)))
        flags = broadcast(self._scope, self.valid, sizes, range(len(self.grid)))
        neutral = ops.constant(neutral, tensor.dtype)
        return self._scope.choose(self._scope.compact(flags), tensor, neutral)


def _combine(scope: Scope, kind: str, rows: _Rows, array: Array, update: Array) -> Array:
    """Combines updates of many windows by TensorFlow's own combinations."""
    if kind == "keep":
        return array
    is_sum = kind == "add" and len(rows.leading) == 1 and _is_zero(array)
    if scope.for_onnx and rows.valid is not None:
        is_sum = False  # an index of -1, which TensorFlow's segments leave out, is the last row
    if scope.for_converters and kind in ("maximum", "minimum", "multiply"):
        tensor = _combine_runs(scope, rows, kind, array, update)
    elif scope.for_onnx and kind == "multiply":
        new = rows.mask(update, 1)
        tensor = ops.tensor_scatter_nd_multiply(rows.indexed(array), rows.vectors, new)
    # tf2onnx pads all segments of a sum to the longest one.
    elif kind == "multiply" or (is_sum and not scope.for_converters):
        tensor = _combine_segments(scope, rows, kind, array, update)
    elif kind == "replace" and scope.for_frozen_graph and rows.valid is not None:
        # TensorFlow.js and Core ML have no operation whose result has an unknown size.
        ids, new = rows.ids()[:, None], rows.values(update)
        tensor = rows.remove_row(_replace(rows.append_row(array), ids, new))
    elif kind == "replace":
        vectors, (new,) = rows.within_bounds([update])
        tensor = _replace(rows.indexed(array), vectors, new)
    elif kind == "add":
        # -0.0 + 0.0 is 0.0.
        neutral = {"complex": complex(-0.0, -0.0), "float": -0.0}.get(array.row.kind, 0)
        tensor = ops.tensor_scatter_nd_add(
            rows.indexed(array), rows.vectors, rows.mask(update, neutral)
        )
    else:
        new = rows.mask(update, Reducer(kind, array.element).identity)
        tensor = _extreme(scope, rows.indexed(array), rows.vectors, new, kind)
    return rows.to_operand(wrap(array.element, tensor), array.element)


def _is_zero(array: Array) -> bool:
    # -0.0 is excluded, because adding an empty sum changes it.
    return array.numbers is not None and not any(array.numbers.tobytes())


_NARROW = frozenset({"float16", "bfloat16", "float32", "complex64"})


def _combine_segments(
    scope: Scope, rows: _Rows, kind: str, array: Array, update: Array
) -> ops.Tensor:
    """Adds or multiplies updates of the same row first; rows without updates do not change."""
    old, updates = rows.of_operand(array), scope.tensor(rows.of_updates(update))
    ids = scope.tensor(rows.flat_index)
    if rows.valid is not None:
        ids = ops.where(scope.tensor(rows.valid), ids, ops.constant(-1, ids.dtype))
    number = scope.sizes.size(rows.count)
    if kind == "add":
        return ops.math.unsorted_segment_sum(updates, ids, number)
    # The dtype is wide enough that a product of several updates does not overflow too early.
    # LiteRT has no arithmetic in float64.
    own = old.graph_dtype
    wide = {2: ops.float64, 4: ops.float64, 8: ops.complex128}
    dtype = wide[own.size] if own in _NARROW and not scope.is_for_any_converter else own
    result = ops.math.unsorted_segment_prod(ops.cast(updates, dtype), ids, number)
    result = ops.reshape(result, scope.sizes.reshape_shape(old.sizes))
    return ops.cast(ops.cast(scope.tensor(old), dtype) * result, own)


def _combine_runs(scope: Scope, rows: _Rows, kind: str, array: Array, update: Array) -> ops.Tensor:
    """Combines updates with operations that converters support.

    Sorts the updates by rows, and combines neighbours of the same row. Each step doubles the number
    of combined neighbours, so the last update of a row gets the total.
    """
    combine = converter_forms.choose_combination(kind, array.element)
    ids, values = rows.ids(), rows.values(update)
    count = ops.shape(ids)[0]
    order = ops.math.top_k(ops.negative(ids), count).indices
    ids, values = ops.gather(ids, order), ops.gather(values, order)
    place = ops.range(count)

    def step(width: ops.Tensor, result: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor]:
        before = ops.maximum(place - width, 0)
        is_same = ops.logical_and(ops.equal(ops.gather(ids, before), ids), place >= width)
        others = combine(result, ops.gather(result, before))
        chosen = ops.reshape(is_same, [-1] + [1] * len(rows.rest))
        return width * 2, converter_forms.choose(chosen, others, result)

    _, values = ops.while_loop(
        lambda width, _: width < count,
        step,
        (ops.constant(1), values),
        shape_invariants=(ops.TensorShape([]), values.shape),
    )
    following = ops.gather(ids, ops.minimum(place + 1, count - 1))
    is_last = ops.logical_or(ops.not_equal(following, ids), ops.equal(place, count - 1))
    flat = rows.append_row(array)
    target = ops.where(is_last, ids, scope.sizes.number(rows.count, ids.dtype))
    values = combine(ops.gather(flat, ids), values)
    return rows.remove_row(ops.tensor_scatter_nd_update(flat, target[:, None], values))


def _replace(tensor: ops.Tensor, index: ops.Tensor, updates: ops.Tensor) -> ops.Tensor:
    return move(lambda x, new: ops.tensor_scatter_nd_update(x, index, new), tensor, updates)


def _extreme(
    scope: Scope, tensor: ops.Tensor, index: ops.Tensor, updates: ops.Tensor, kind: str
) -> ops.Tensor:
    dtype = tensor.dtype
    if dtype == ops.bool:
        as_numbers = [ops.cast(x, ops.int8) for x in (tensor, updates)]
        return ops.cast(_extreme(scope, as_numbers[0], index, as_numbers[1], kind), dtype)
    if dtype.is_floating and not scope.for_onnx:
        # TensorFlow's kernels lose NaN, so floats become integers in the same order, NaN last.
        keys = [_make_keys(x, kind == "maximum") for x in (tensor, updates)]
        extreme = _extreme(scope, keys[0], index, keys[1], kind)
        return ops.bitcast(order_as_floats(extreme), dtype)
    if kind == "maximum":
        return ops.tensor_scatter_nd_max(tensor, index, updates)
    return ops.tensor_scatter_nd_min(tensor, index, updates)


def _make_keys(tensor: ops.Tensor, nan_is_greatest: bool) -> ops.Tensor:
    """Converts floats to integers in the same order; NaN is the greatest or the least."""
    keys = total_order_key(tensor)
    nan = constant_like(keys, keys.dtype.max if nan_is_greatest else keys.dtype.min)
    return ops.where(ops.math.is_nan(tensor), nan, keys)


# Any body.


def _update_unique(
    scope: Scope, body: Block, rows: _Rows, arrays: Arrays, updates: Arrays
) -> list[Array]:
    """Combines updates of many non-overlapping windows at once."""
    tensors = [rows.indexed(array) for array in arrays]
    index, windows = rows.within_bounds(updates)
    grid = (
        rows.grid if rows.valid is None else (scope.sizes.new_size(ops.shape(index)[0], least=0),)
    )
    sizes = (*grid, *rows.rest)
    olds = scope.new_arrays((ops.gather_nd(x, index) for x in tensors), arrays, sizes)
    news = scope.new_arrays(windows, arrays, sizes)
    results = make_combine(body)(scope, olds, news)
    return [
        rows.to_operand(_replace(tensor, index, scope.tensor(result)), result.element)
        for tensor, result in zip(tensors, results, strict=True)
    ]


def _update_each(
    scope: Scope, body: Block, slices: Slices, arrays: Arrays, updates: Arrays
) -> list[Array]:
    total = multiply_sizes(slices.batch)

    def flatten(array: Array) -> ops.Tensor:
        return scope.tensor(reshape(scope, array, (total,)))

    starts = dict(slices.starts)
    for axis, place in slices.batched.items():
        starts[axis] = iota(scope, "i32", slices.batch, place)
    flat = {axis: flatten(start) for axis, start in starts.items()}
    flags = None if slices.valid is None else flatten(slices.valid)
    windows = [scope.carry(_windows(scope, slices, update, (total,))) for update in updates]

    def step(inner: Scope, i: ops.Tensor, olds: Arrays) -> tuple[ops.Tensor, list[Array]]:
        news = inner.new_arrays((ops.gather(w, i) for w in windows), updates, slices.sizes)
        at = {axis: Array(starts[axis].element, (), start[i]) for axis, start in flat.items()}
        valid = None if flags is None else Array("i1", (), flags[i])
        return i + 1, _update_once(inner, body, olds, news, at, valid)

    number = scope.sizes.size(total)
    tensors = scope.loop(ops.constant(0), lambda i: i < number, step, arrays)
    return scope.new_arrays(tensors, arrays)
