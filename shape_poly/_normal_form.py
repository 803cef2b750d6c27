"""Normal form, in which most that always holds is constant, and the rest is easier to prove.

mod(x, y) is written as x - y*floordiv(x, y), min(x, y) and max(x, y) with max(z, 0) alone, and
what can leave a floordiv leaves it. Equal to the original wherever no divisor is 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from shape_poly._expressions import (
    Atom,
    DimExpr,
    DimOperation,
    Monomial,
    OperationKind,
    Variable,
    atom_expression,
    constant_quotient,
    divided,
    enclosure,
    operation,
    without_common_factor,
)
from shape_poly._factors import exact_quotient, signs_in, simplest
from shape_poly._facts import Fact
from shape_poly._intervals import Interval


class OutOfTimeError(Exception):
    """Raised when the time for a proof is over."""


class Normalizer:
    """Converter of expressions into the normal form, each operation once.

    Args:
      ranges: bounds of the variables.
      deadline: by `time.monotonic`.
      divisible: pairs (x, y), where y divides x and is not 0.

    Raises:
      OutOfTimeError: the deadline passed meanwhile.
      OverflowError: the normal form has too many terms.
    """

    def __init__(
        self,
        ranges: Mapping[str, Interval],
        deadline: float,
        divisible: Sequence[tuple[DimExpr, DimExpr]] = (),
    ) -> None:
        self._ranges, self._deadline, self._divisible = ranges, deadline, divisible
        self._known: dict[Atom, DimExpr] = {}

    def fact(self, fact: Fact) -> Fact:
        """Brings a fact into normal form, without factors that are not 0."""
        if time.monotonic() > self._deadline:
            raise OutOfTimeError
        return simplest(Fact(fact.relation, self.dimension(fact.expression)), self._ranges)

    def dimension(self, dimension: DimExpr) -> DimExpr:
        """Brings an expression into normal form."""
        return mapped(dimension, self._atom)

    def _atom(self, atom: Atom) -> DimExpr:
        if isinstance(atom, Variable):
            return atom_expression(atom)
        known = self._known.get(atom)
        if known is None:
            if time.monotonic() > self._deadline:
                raise OutOfTimeError
            x, y = (self.dimension(operand) for operand in atom.operands)
            known = self._known[atom] = self._operation(atom, x, y)
        return known

    def _operation(self, atom: DimOperation, x: DimExpr, y: DimExpr) -> DimExpr:
        match atom.kind:
            case "max":
                return y + self._non_negative(x - y)
            case "min":
                return y - self._non_negative(y - x)
            case _ if y.constant_value() == 0:
                # A divisor that is 0 everywhere: left alone, as it is undefined.
                return atom_expression(atom)
            case "floordiv":
                return self._floordiv(x, y)
            case "mod":
                return x - y * self._floordiv(x, y)

    def _non_negative(self, x: DimExpr) -> DimExpr:
        """Brings max(x, 0) into normal form."""
        low, high = enclosure(x, self._ranges)
        if low >= 0:
            return x
        if high <= 0:
            return DimExpr.constant(0)
        content = math.gcd(*(c for _, c in x.terms))
        x = divided(x, content)
        if x.terms[0][1] < 0:
            # max(x, 0) and max(-x, 0) are one operation: they differ by x.
            return (x + _raw("max", -x, DimExpr.constant(0))) * content
        return _raw("max", x, DimExpr.constant(0)) * content

    def _floordiv(self, x: DimExpr, y: DimExpr) -> DimExpr:
        _, x, y = without_common_factor(x, y, signs_in(self._ranges))
        return mapped(operation("floordiv", x, y), self._known_quotient)

    def _known_quotient(self, atom: Atom) -> DimExpr:
        """Replaces a quotient by its value where bounds of the variables tell it."""
        if isinstance(atom, DimOperation) and atom.kind == "floordiv":
            x, y = atom.operands
            divisor = y.constant_value()
            if divisor is None:
                low, _ = enclosure(x, self._ranges)
                if low >= 0 and enclosure(y - x, self._ranges)[0] >= 1:
                    return DimExpr.constant(0)
            elif (quotient := constant_quotient(x, divisor, self._ranges)) is not None:
                return DimExpr.constant(quotient)
            exact = exact_quotient(atom, self._divisible, self._ranges)
            if exact is not None:
                return exact
        return atom_expression(atom)


def _raw(kind: OperationKind, x: DimExpr, y: DimExpr) -> DimExpr:
    return atom_expression(DimOperation(kind, (x, y)))


def mapped(dimension: DimExpr, replacement: Callable[[Atom], DimExpr]) -> DimExpr:
    """Replaces each outermost atom of a dimension."""
    terms: list[tuple[Monomial, int]] = []
    for monomial, coefficient in dimension.terms:
        product = DimExpr.constant(coefficient)
        for atom, exponent in monomial:
            product = product * replacement(atom) ** exponent
        terms += product.terms
    return DimExpr.of_terms(terms)
