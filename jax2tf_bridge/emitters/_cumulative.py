"""Cumulative reductions along an axis, with any reducer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters import _converter_forms
from jax2tf_bridge.emitters._array import Array
from jax2tf_bridge.emitters._emitter import emits
from jax2tf_bridge.emitters._integers import wrap
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._reductions import Combine
from jax2tf_bridge.emitters._scope import Emitter, Scope
from jax2tf_bridge.emitters._shapes import transpose

_MAX_UNROLLED = 32
"""Maximum length of an axis whose steps are unrolled rather than made as a loop."""


def running_sum(scope: Scope, array: Array, axis: int, backwards: bool) -> Array:
    """Sums up to each element, or from each one to the end.

    It is the only running reduction that LiteRT and ONNX know as well.
    """
    tensor = ops.cumsum(scope.tensor(array), axis, reverse=backwards)
    return scope.new_array(wrap(array.element, tensor), array.element, array.sizes)


def run_along(
    scope: Scope, combine: Combine, arrays: Sequence[Array], axis: int, backwards: bool
) -> list[Array]:
    """Reduces up to each element, or from each one to the end, with any associative reducer.

    After k steps, each element is reduced with those at most 2**k - 1 positions away.
    """
    rank = arrays[0].rank
    order = [axis, *(a for a in range(rank) if a != axis)]
    back = [order.index(a) for a in range(rank)]
    columns = [scope.full(transpose(scope, array, order)) for array in arrays]
    length = columns[0].sizes[0]
    if isinstance(length, int) and length <= _MAX_UNROLLED:
        step = 1
        while step < length:
            columns = _step(scope, combine, columns, step, length - step, backwards)
            step *= 2
    else:
        columns = _step_in_loop(scope, combine, columns, backwards)
    return [transpose(scope, column, back) for column in columns]


def _step(
    scope: Scope,
    combine: Combine,
    columns: Sequence[Array],
    step: Any,
    rest: Any,
    backwards: bool,
) -> list[Array]:
    """Combines each element with the one `step` positions away; `rest` elements have one."""
    tensors = [scope.tensor(column) for column in columns]
    number = rest if isinstance(rest, int) else scope.sizes.new_size(rest)

    def parts(begin: Any, end: Any) -> list[Array]:
        return [
            scope.new_array(tensor[begin:end], column.element, (number, *column.sizes[1:]))
            for tensor, column in zip(tensors, columns, strict=True)
        ]

    combined = combine(scope, parts(None, rest), parts(step, None))
    result: list[Array] = []
    for tensor, column, part in zip(tensors, columns, combined, strict=True):
        kept = tensor[rest:] if backwards else tensor[:step]
        pair = [scope.tensor(part), kept] if backwards else [kept, scope.tensor(part)]
        result.append(scope.new_array(ops.concat(pair, 0), column.element, column.sizes))
    return result


def _step_in_loop(
    scope: Scope, combine: Combine, columns: Sequence[Array], backwards: bool
) -> list[Array]:
    length = ops.convert_to_tensor(scope.sizes.size(columns[0].sizes[0]), ops.int32)

    def step(width: ops.Tensor, *tensors: ops.Tensor) -> tuple[ops.Tensor, ...]:
        inner = scope.new_region(other_graph=True)
        arrays = [
            inner.new_array(tensor, column.element, column.sizes)
            for tensor, column in zip(tensors, columns, strict=True)
        ]
        result = _step(inner, combine, arrays, width, length - width, backwards)
        return (width * 2, *(array.computed for array in result))

    tensors = [scope.tensor(column) for column in columns]
    _, *results = ops.while_loop(
        lambda width, *_: width < length,
        step,
        (ops.constant(1), *tensors),
        shape_invariants=(ops.TensorShape([]), *(tensor.shape for tensor in tensors)),
    )
    return [
        scope.new_array(tensor, column.element, column.sizes)
        for tensor, column in zip(results, columns, strict=True)
    ]


# Composites of the cumulative functions.


def _elementwise(function: Callable[..., ops.Tensor]) -> Combine:
    def combine(scope: Scope, left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        return [
            scope.new_array(
                wrap(a.element, function(scope.compact(a), scope.compact(b))),
                a.element,
                a.sizes,
            )
            for a, b in zip(left, right, strict=True)
        ]

    return combine


def _log_add_exp(
    left: ops.Tensor,
    right: ops.Tensor,
    log1p: Callable[[ops.Tensor], ops.Tensor] = ops.math.log1p,
) -> ops.Tensor:
    """Computes log(exp(a) + exp(b)) without overflow, with jax.numpy's results for infinities."""
    if left.dtype.is_complex:
        swaps = ops.math.real(left) < ops.math.real(right)
        greater, less = ops.where(swaps, right, left), ops.where(swaps, left, right)
        return greater + log1p(ops.exp(less - greater))
    difference = left - right
    result = ops.maximum(left, right) + log1p(ops.exp(-ops.abs(difference)))
    return ops.where(ops.math.is_nan(difference), left + right, result)


@emits("jax2tf.cumsum")
def _sum(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (array,) = operands
    axis, backwards = _direction(scope, operation, array.rank)
    return running_sum(scope, array, axis, backwards)


def _stepwise(function: Callable[..., ops.Tensor]) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
        axis, backwards = _direction(scope, operation, operands[0].rank)
        return run_along(scope, _elementwise(function), operands, axis, backwards)

    return emit


def _direction(scope: Scope, operation: Operation, rank: int) -> tuple[int, bool]:
    attributes = operation.attributes.get("composite_attributes")
    match attributes:
        case {"axis": int(axis), "reverse": bool(backwards)} if 0 <= axis < rank:
            return axis, backwards
    scope.fail(operation, f"its axis and direction are {attributes!r:.100}")


_cumprod = emits("jax2tf.cumprod")(_stepwise(ops.multiply))
_cummax = emits("jax2tf.cummax")(_stepwise(ops.maximum))
_cummin = emits("jax2tf.cummin")(_stepwise(ops.minimum))
_cumlogsumexp = emits(
    "jax2tf.cumlogsumexp",
    for_converters=_stepwise(functools.partial(_log_add_exp, log1p=_converter_forms.log1p)),
)(_stepwise(_log_add_exp))
