"""Variables that JAX gets as multiples of another one, or as a fixed remainder more than these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jax2tf_bridge.from_jax._symbols import is_variable
from shape_poly import Comparison, Dim, DimExpr, DimOperation


@dataclass(frozen=True)
class Progression:
    """A variable b of which mod(b, factor) == remainder is known, as JAX gets it.

    JAX decides more about 2*b_over_2 or 2*b_over_2 - 1 than about b and a constraint on it.
    """

    name: str
    factor: int
    remainder: int = 0

    @property
    def counter(self) -> str:
        """Names the variable that counts the steps; it is at least 1, as JAX's variables are."""
        return f"{self.name}_over_{self.factor}"

    def in_terms_of_counter(self) -> DimExpr:
        """Writes the variable as JAX gets it."""
        return self.factor * DimExpr.variable(self.counter) - self._short_of_next()

    def in_terms_of_variable(self, dimension: DimExpr) -> DimExpr:
        """Writes a dimension of JAX's with the user's variable in place of the counter."""
        steps = DimExpr.variable(self.name) + self._short_of_next()
        counter, quotient = DimExpr.variable(self.counter), {self.counter: steps // self.factor}
        (((once,), _),) = counter.terms
        parts: list[Dim] = []
        for monomial, coefficient in dimension.terms:
            # 2*b_over_2 is b, as the user writes it, and not 2*floordiv(b, 2).
            even = once in monomial and coefficient % self.factor == 0
            if even:
                monomial = tuple(factor for factor in monomial if factor != once)
                coefficient //= self.factor
            part = DimExpr(((monomial, coefficient),)).substitute(quotient)
            parts.append(part * steps if even else part)
        return DimExpr.sum(parts)

    def __str__(self) -> str:
        return f"{self.name} as {self.in_terms_of_counter()}"

    def _short_of_next(self) -> int:
        return -self.remainder % self.factor


def progressions(constraints: Sequence[Comparison]) -> Iterator[Progression]:
    """Yields each variable of which a remainder is known, with it."""
    for comparison in constraints:
        found = known_remainder(comparison)
        if found is None:
            continue
        operation, remainder = found
        dividend, divisor = operation.operands
        factor = divisor.constant_value()
        if is_variable(dividend) and factor is not None and factor > 1:
            yield Progression(str(dividend), factor, remainder)


def known_remainder(comparison: Comparison) -> tuple[DimOperation, int] | None:
    """Reads a mod and the value that a comparison gives it; None if it says something else."""
    left, right = comparison.left, comparison.right
    found = left.as_operation() if isinstance(left, DimExpr) else None
    if comparison.operator != "==" or found is None or found.kind != "mod":
        return None
    return (found, right) if isinstance(right, int) else None
