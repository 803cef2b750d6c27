"""Contractions: dot_general, dot and einsum, as MatMul if possible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays
from jax2tf_bridge.emitters._movement import reshape_ones, reshape_tensor
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.emitters.formulas.conversions import (
    choose_accumulation_dtype,
    choose_exact_dtype,
    from_accumulation,
    to_accumulation,
)
from shape_poly import Dim

_MIN_ROWS = 8
"""Number of rows per matrix below which one product of all rows is faster than a batch."""


@dataclass(frozen=True)
class _Labelled:
    """Tensor with labelled axes.

    Attributes:
      labels: a letter for each axis; shared by both operands for batch and contracting axes.
      sizes: the sizes of the axes; 1 for a repeated axis.
    """

    tensor: ops.Tensor
    labels: tuple[str, ...]
    sizes: tuple[Dim, ...]

    def size(self, label: str) -> Dim:
        """Returns the size of a label's axis; 1 if the tensor has no such axis."""
        return self.sizes[self.labels.index(label)] if label in self.labels else 1

    @property
    def live(self) -> tuple[str, ...]:
        """Labels of the axes with more than one element."""
        return tuple(
            label for label, size in zip(self.labels, self.sizes, strict=True) if size != 1
        )

    def live_of(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Selects the labels of axes with more than one element."""
        return tuple(label for label in labels if self.size(label) != 1)


@emits("dot_general")
def _dot_general(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    left, right = operands
    batch, contracting = (
        [operation.ints(f"{side}_{kind}_dimensions") for side in ("lhs", "rhs")]
        for kind in ("batching", "contracting")
    )
    element = operation.result_type.element
    return contract(scope, left, right, element, batch=batch, contracting=contracting)


def contract(
    scope: Scope,
    left: Array,
    right: Array,
    element: str,
    *,
    batch: Sequence[Sequence[int]],
    contracting: Sequence[Sequence[int]],
) -> Array:
    """Multiplies arrays and sums along axes, like StableHLO's dot_general.

    The result has the batch axes, then the free axes of the left operand, then of the right one.

    Args:
      scope: the scope of the operation.
      left: the left operand.
      right: the right operand.
      element: the element type of the result; sums are at least as wide.
      batch: the batch axes of each operand.
      contracting: the contracting axes of each operand.
    """
    dtype: ops.DType | None = choose_accumulation_dtype(left.element, right.element, element)
    if multiplies_bytes(scope, left.element, right.element, element):
        dtype = None
    letters = iter(map(chr, range(ord("a"), 0x10FFFF)))
    batch_labels = [next(letters) for _ in batch[0]]
    sum_labels = [next(letters) for _ in contracting[0]]
    axes: list[list[str]] = []
    free: list[list[str]] = []
    sizes: dict[str, Dim] = {}
    for i, array in enumerate((left, right)):
        named = dict(zip(batch[i], batch_labels, strict=True))
        named |= dict(zip(contracting[i], sum_labels, strict=True))
        axes.append([named[axis] if axis in named else next(letters) for axis in range(array.rank)])
        free.append([label for axis, label in enumerate(axes[i]) if axis not in named])
        for label, size in zip(axes[i], array.sizes, strict=True):
            sizes[label] = _choose_known(sizes.get(label, size), size)
    sides = [
        _label(scope, array, labels, sizes, sum_labels, dtype)
        for array, labels in zip((left, right), axes, strict=True)
    ]
    product = _product(scope, sides[0], sides[1], batch_labels, free[0], free[1], sum_labels)
    result_labels = [*batch_labels, *free[0], *free[1]]
    while result_labels and product.size(result_labels[0]) == 1 and sizes[result_labels[0]] != 1:
        del result_labels[0]  # the compact form omits repeated leading axes
    tensor = _lay_out(scope, product, result_labels)
    result = tuple(sizes[label] for label in (*batch_labels, *free[0], *free[1]))
    return scope.new_array(from_accumulation(tensor, element), element, result)


def _label(
    scope: Scope,
    array: Array,
    labels: Sequence[str],
    sizes: Mapping[str, Dim],
    summed: Sequence[str],
    dtype: ops.DType | None,
) -> _Labelled:
    """Returns an operand in compact form, but whole along contracting axes.

    `dtype` is that of the product; None to keep the operand's.
    """
    places = dict(zip(labels, range(array.rank), strict=True))
    if any(array.repeats(places[x]) and sizes[x] != 1 for x in summed):
        array = scope.full(array)
    tensor = scope.compact(array)
    tensor = tensor if dtype is None else to_accumulation(tensor, dtype)
    labels = tuple(labels[array.rank - tensor.shape.rank :])
    result = tuple(1 if array.repeats(places[x]) else sizes[x] for x in labels)
    return _Labelled(tensor, labels, result)


def _product(
    scope: Scope,
    left: _Labelled,
    right: _Labelled,
    batch: Sequence[str],
    left_free: Sequence[str],
    right_free: Sequence[str],
    summed: Sequence[str],
) -> _Labelled:
    """Multiplies and sums; the result may lack axes of a single element."""
    both = tuple(x for x in batch if left.size(x) != 1 and right.size(x) != 1)
    left_alone = left.live_of((*(x for x in batch if right.size(x) == 1), *left_free))
    right_alone = right.live_of((*(x for x in batch if left.size(x) == 1), *right_free))
    sums = left.live_of(summed)
    if not sums or not (left_alone or right_alone):
        if is_bytes(left.tensor):
            left, right = (replace(x, tensor=ops.cast(x.tensor, ops.int32)) for x in (left, right))
        return _by_element(scope, left, right, (*both, *left_alone, *right_alone), sums)
    if left.tensor.dtype == ops.float16 and not (left_alone and right_alone):
        # For a vector, MatMul of TensorFlow 2.15 adds 16-bit floats in 16 bits.
        left, right = (replace(x, tensor=ops.cast(x.tensor, ops.float32)) for x in (left, right))
        product = _product(scope, left, right, batch, left_free, right_free, summed)
        return replace(product, tensor=ops.cast(product.tensor, ops.float16))
    sums = _order_sums(left, right, both, left_alone, right_alone, sums)
    left_flipped = _is_flipped(left, both, left_alone, sums)
    right_flipped = _is_flipped(right, both, sums, right_alone)
    left = _move(left, (*both, *(sums + left_alone if left_flipped else left_alone + sums)))
    right = _move(right, (*both, *(right_alone + sums if right_flipped else sums + right_alone)))
    rows: tuple[str, ...] = left_alone
    batches: tuple[str, ...] = ()
    if not both and not left_flipped and len(sums) == 1 and len(left_alone) > 1:
        few = left.size(left_alone[-1])
        if not (isinstance(few, int) and few < _MIN_ROWS):
            batches, rows = left_alone[:-1], left_alone[-1:]
    left_groups = [sums, rows] if left_flipped else [rows, sums]
    right_groups = [right_alone, sums] if right_flipped else [sums, right_alone]
    tensor = multiply_matrices(
        scope,
        _group(scope, left, (*both, *batches), left_groups),
        _group(scope, right, both, right_groups),
        transpose_a=left_flipped,
        transpose_b=right_flipped,
    )
    labels = (*both, *left_alone, *right_alone)
    sizes = {x: _find_common_size(left, right, x) for x in labels}
    new_sizes = tuple(sizes[x] for x in labels)
    outer = tuple(sizes[x] for x in (*both, *batches))
    result = (*outer, math.prod(sizes[x] for x in rows), math.prod(sizes[x] for x in right_alone))
    return _Labelled(reshape_tensor(scope, tensor, result, new_sizes), labels, new_sizes)


def _choose_known(left: Dim, right: Dim) -> Dim:
    """Returns the common size of two operands along an axis; a number is preferred."""
    return right if isinstance(right, int) else left


def _find_common_size(left: _Labelled, right: _Labelled, label: str) -> Dim:
    """Returns the size of the result along an axis; one of the operands may be repeated."""
    size = left.size(label)
    return right.size(label) if size == 1 else size


def _by_element(
    scope: Scope, left: _Labelled, right: _Labelled, outer: Sequence[str], sums: Sequence[str]
) -> _Labelled:
    labels = (*outer, *sums)
    dtype = left.tensor.dtype
    exact = choose_exact_dtype(dtype) if sums else dtype
    factors = [
        ops.cast(_lay_out(scope, side, labels, leading=False), exact) for side in (left, right)
    ]
    product = ops.multiply(*factors)
    if sums:
        product = ops.cast(ops.reduce_sum(product, list(range(len(outer), len(labels)))), dtype)
    sizes = tuple(_find_common_size(left, right, x) for x in outer)
    return _Labelled(product, tuple(outer), sizes)


def _order_sums(
    left: _Labelled,
    right: _Labelled,
    both: tuple[str, ...],
    left_alone: tuple[str, ...],
    right_alone: tuple[str, ...],
    sums: tuple[str, ...],
) -> tuple[str, ...]:
    """Chooses the order of contracting axes with fewer transposes."""
    orders = [tuple(x for x in side.labels if x in sums) for side in (left, right)]

    def count_moves(order: tuple[str, ...]) -> int:
        return sum(
            side.live not in ((*both, *alone, *order), (*both, *order, *alone))
            for side, alone in ((left, left_alone), (right, right_alone))
        )

    return min(orders, key=count_moves)


def _is_flipped(
    side: _Labelled, both: tuple[str, ...], rows: tuple[str, ...], columns: tuple[str, ...]
) -> bool:
    """Returns whether it is better to keep the columns before the rows."""
    if side.live == (*both, *rows, *columns):
        return False
    # A transpose that keeps the last axis moves whole blocks, which is fast.
    return side.live == (*both, *columns, *rows) or side.live[-1:] == rows[-1:]


def _move(side: _Labelled, order: Sequence[str]) -> _Labelled:
    """Transposes a tensor if its axes with more than one element are in another order."""
    if side.live == tuple(order):
        return side
    labels = (*(x for x in side.labels if x not in order), *order)
    tensor = ops.transpose(side.tensor, [side.labels.index(x) for x in labels])
    return _Labelled(tensor, labels, tuple(side.size(x) for x in labels))


def _lay_out(
    scope: Scope, side: _Labelled, labels: Sequence[str], *, leading: bool = True
) -> ops.Tensor:
    """Reshapes a tensor to one axis per label, optionally without leading axes of size 1."""
    side = _move(side, side.live_of(labels))
    new_sizes = [side.size(x) for x in labels]
    while not leading and new_sizes and new_sizes[0] == 1:
        del new_sizes[0]
    return reshape_ones(scope, side.tensor, side.sizes, new_sizes)


def _group(
    scope: Scope, side: _Labelled, outer: Sequence[str], groups: Sequence[Sequence[str]]
) -> ops.Tensor:
    sizes = [side.size(x) for x in outer]
    sizes += [math.prod(side.size(x) for x in group) for group in groups]
    return reshape_tensor(scope, side.tensor, side.sizes, sizes)


@emits("einsum", "unary_einsum")
def _einsum(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    element = operation.result_type.element
    dtype = choose_accumulation_dtype(operands[0].element, operands[-1].element, element)
    dtype = choose_exact_dtype(dtype)
    tensors = [to_accumulation(scope.tensor(array), dtype) for array in operands]
    equation = operation.text("einsum_config")
    named = _sizes_of_equation(scope, operation, equation, operands)
    tensor = from_accumulation(ops.einsum(equation, *tensors), element)
    return scope.result(operation, tensor, named)


def _sizes_of_equation(
    scope: Scope, operation: Operation, equation: str, operands: Arrays
) -> tuple[Dim, ...]:
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if "." in equation or len(terms) != len(operands):
        scope.fail(operation, f"its equation {equation!r} does not have a letter for each axis")
    sizes: dict[str, Dim] = {}
    for term, array in zip(terms, operands, strict=True):
        for letter, size in zip(term, array.sizes, strict=True):
            sizes[letter] = _choose_known(sizes.get(letter, size), size)
    return tuple(sizes[letter] for letter in output)


# Products of int8 and uint8 with sums in int32, for runtimes that have operations for them.

_BYTES = frozenset({"i8", "ui8"})


def multiplies_bytes(scope: Scope, left: str, right: str, result: str) -> bool:
    """Returns whether the runtime multiplies two element types without widening them.

    LiteRT multiplies int8 by int8, ONNX Runtime each of int8 and uint8 by each. TensorFlow's own
    product of bytes, and that of the other converters, is not faster than that of int32.
    """
    if result != "i32" or not {left, right} <= _BYTES:
        return False
    return scope.for_onnx or (scope.for_litert and left == right == "i8")


def is_bytes(tensor: ops.Tensor) -> bool:
    """Returns whether a tensor is one of `multiplies_bytes`."""
    return tensor.dtype in (ops.int8, ops.uint8)


def multiply_matrices(
    scope: Scope, left: ops.Tensor, right: ops.Tensor, *, transpose_a: bool, transpose_b: bool
) -> ops.Tensor:
    """Multiplies matrices; products of bytes are int32."""
    options: dict[str, Any] = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    if not is_bytes(left):
        return ops.linalg.matmul(left, right, **options)
    options["output_type"] = ops.int32
    if scope.for_onnx or right.shape.rank > 2:
        return ops.linalg.matmul(left, right, **options)
    # LiteRT's converter would make FULLY_CONNECTED of two matrices, which has no int32.
    right = ops.expand_dims(right, 0)
    if left.shape.rank > 2:
        return ops.linalg.matmul(left, right, **options)
    return ops.squeeze(ops.linalg.matmul(ops.expand_dims(left, 0), right, **options), 0)
