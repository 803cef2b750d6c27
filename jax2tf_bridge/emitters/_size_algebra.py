"""Arithmetic on sizes that are numbers or tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.emitters._ops import ops
from shape_poly import ComparisonOperator, Dim, DimOperation

_COMPARE: Mapping[ComparisonOperator, Callable[[Any, Any], Any]] = {
    ">=": ops.greater_equal,
    "<=": ops.less_equal,
    "==": ops.equal,
    ">": ops.greater,
    "<": ops.less,
    "!=": ops.not_equal,
}


def largest_constant(dimension: Dim) -> int:
    """Returns the largest absolute constant in a size, including those in nested operations."""
    return max((abs(constant) for constant in _constants(dimension)), default=0)


def _constants(dimension: Dim) -> Iterable[int]:
    if isinstance(dimension, int):
        yield dimension
        return
    for monomial, coefficient in dimension.terms:
        yield coefficient
        for atom, _ in monomial:
            if isinstance(atom, DimOperation):
                for operand in atom.operands:
                    yield from _constants(operand)


@dataclass(frozen=True)
class SizeAlgebra:
    """Computes with sizes, which are ints if known, else tensors of `dtype`."""

    dtype: ops.DType

    def constant(self, value: int) -> Any:
        """Returns the int; it becomes a tensor only in an operation with a tensor."""
        return value

    def add(self, left: Any, right: Any) -> Any:
        """Returns the sum."""
        return self._compute(operator.add, ops.add, left, right)

    def multiply(self, left: Any, right: Any) -> Any:
        """Returns the product."""
        return self._compute(operator.mul, ops.multiply, left, right)

    def floordiv(self, left: Any, right: Any) -> Any:
        """Returns the quotient rounded down; the result is arbitrary if an unknown divisor is 0."""
        return self._compute(operator.floordiv, ops.math.floordiv, left, _avoid_zero(right))

    def mod(self, left: Any, right: Any) -> Any:
        """Returns the remainder with the divisor's sign; arbitrary if an unknown divisor is 0."""
        return self._compute(operator.mod, ops.math.floormod, left, _avoid_zero(right))

    def maximum(self, left: Any, right: Any) -> Any:
        """Returns the larger operand."""
        return self._compute(max, ops.maximum, left, right)

    def minimum(self, left: Any, right: Any) -> Any:
        """Returns the smaller operand."""
        return self._compute(min, ops.minimum, left, right)

    def compare(self, comparison: ComparisonOperator, left: Any, right: Any) -> ops.Tensor:
        """Returns the result of the comparison as a bool tensor."""
        return _COMPARE[comparison](self._tensor(left), self._tensor(right))

    def _compute(
        self,
        int_operation: Callable[[int, int], int],
        tensor_operation: Callable[[ops.Tensor, ops.Tensor], ops.Tensor],
        left: Any,
        right: Any,
    ) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            return int_operation(left, right)
        return tensor_operation(self._tensor(left), self._tensor(right))

    def _tensor(self, value: Any) -> ops.Tensor:
        return ops.constant(value, self.dtype) if isinstance(value, int) else value


def _avoid_zero(divisor: Any) -> Any:
    """Replaces an unknown divisor of 0 by 1, so that the guard fails and not the kernel."""
    if isinstance(divisor, int):
        return divisor
    return ops.where(ops.equal(divisor, 0), ops.ones_like(divisor), divisor)
