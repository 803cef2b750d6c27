"""Normal form of comparisons: most that always hold become constant; factors are divided out.

mod(x, y) is written as x - y*floordiv(x, y), min(x, y) and max(x, y) with max(z, 0) alone, and
what can leave a floordiv leaves it. Equal to the original wherever no divisor is 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from shape_poly._comparisons import Fact
from shape_poly._expressions import (
    Atom,
    DimExpr,
    DimOperation,
    Monomial,
    OperationKind,
    Variable,
    atom_expression,
    operation,
)
from shape_poly._intervals import Bound, Interval, enclosure
from shape_poly._simplification import (
    common_factors,
    constant_quotient,
    divide_coefficients,
    divide_monomial,
    remove_common_factor,
)


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
        x = divide_coefficients(x, content)
        if x.terms[0][1] < 0:
            # max(x, 0) and max(-x, 0) are one operation: they differ by x.
            return (x + _raw("max", -x, DimExpr.constant(0))) * content
        return _raw("max", x, DimExpr.constant(0)) * content

    def _floordiv(self, x: DimExpr, y: DimExpr) -> DimExpr:
        _, x, y = remove_common_factor(x, y, signs_in(self._ranges))
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


Ranges: TypeAlias = Mapping[str, Interval]

_EFFORT = 1
_TERMS_LOOKED_INTO = 40
"""In longer sums divisibility is not looked for."""


def sign(dimension: DimExpr, ranges: Ranges) -> int:
    """Returns 1 or -1 if bounds show that it is positive or negative everywhere, else 0."""
    low, high = enclosure(dimension, ranges, effort=_EFFORT)
    return 1 if low >= 1 else -1 if high <= -1 else 0


def simplest(fact: Fact, ranges: Ranges) -> Fact:
    """Divides the fact by factors that are not 0, and simplifies dividends and divisors.

    The result is equivalent for variables within the bounds, where no divisor is 0.

    Raises:
      OverflowError: it would be too large.
    """
    fact = _without_content(_without_factors(fact, ranges))
    divided = divisibility(fact, ranges)
    if divided is None:
        return fact
    x, y = divided
    return Fact(fact.relation, x - y * atom_expression(DimOperation("floordiv", (x, y))))


def divisibility(fact: Fact, ranges: Ranges) -> tuple[DimExpr, DimExpr] | None:
    """Returns (x, y) of the simplest equivalent mod(x, y) == 0 (or != 0), if there is one."""
    remainder = None if fact.relation == ">=" else _as_remainder(fact.expression, ranges)
    if remainder is None:
        return None
    _, x, y = remove_common_factor(*remainder, signs_in(ranges))
    match operation("mod", x, y).terms:
        # A factor of the divisor is not 0.
        case ((monomial, _),):
            remainders = [a for a, e in monomial if isinstance(a, DimOperation) and a.kind == "mod"]
            others = [a for a, _ in monomial if a not in remainders]
            if len(remainders) == 1 and all(sign(atom_expression(a), ranges) for a in others):
                x, y = remainders[0].operands
    divisor = y.constant_value()
    if divisor is not None:
        content = math.gcd(*(c for _, c in x.terms))
        if math.gcd(content, divisor) == 1:
            x = divide_coefficients(x, content)
    return _positive(x), _positive(y)


def _positive(x: DimExpr) -> DimExpr:
    return -x if x.terms and x.terms[0][1] < 0 else x


def _as_remainder(x: DimExpr, ranges: Ranges) -> tuple[DimExpr, DimExpr] | None:
    """Returns (u, v) if x is mod(u, v) times a nonzero factor f: f*u - f*v*floordiv(u, v)."""
    for monomial, c in x.terms if len(x.terms) <= _TERMS_LOOKED_INTO else ():
        for atom, exponent in monomial:
            if exponent != 1 or not isinstance(atom, DimOperation):
                continue
            u, v = atom.operands
            if max(len(u.terms), len(v.terms)) > _TERMS_LOOKED_INTO:
                continue
            factor = DimExpr.of_terms([(tuple(p for p in monomial if p[0] != atom), c)])
            if not sign(factor, ranges) or not sign(v, ranges):
                continue
            rest = x - factor * atom_expression(atom)
            if atom.kind == "mod" and not rest.terms:
                return u, v
            if atom.kind == "floordiv" and rest * v == -factor * u:
                return u, v
    return None


def exact_quotient(
    atom: DimOperation, divisible: Sequence[tuple[DimExpr, DimExpr]], ranges: Ranges
) -> DimExpr | None:
    """Simplifies floordiv(u, v), where a multiple of v is known to divide a multiple of u.

    Args:
      atom: a floordiv.
      divisible: pairs (x, y), where y divides x and is not 0.
      ranges: bounds of the variables.
    """
    u, v = atom.operands
    if max(len(u.terms), len(v.terms)) > _TERMS_LOOKED_INTO:
        return None
    for x, y in divisible:
        # Equal numbers of terms are not required; the check is a shortcut.
        alike = u.variables() == x.variables() and len(u.terms) == len(x.terms)
        if (x, y) == (u, v) or not x.terms or not alike or not sign(v, ranges):
            continue
        # u/v == r * x/y for an integer r.
        left, right = u * y, x * v
        times, rest = divmod(left.terms[0][1], right.terms[0][1])
        if not rest and left == right * times:
            return atom_expression(DimOperation("floordiv", (x, y))) * times
    return None


def _without_factors(fact: Fact, ranges: Ranges) -> Fact:
    """Divides the fact by the factors of all of its terms that have a sign."""
    terms = [t for t in fact.expression.terms if t[0] or fact.relation != ">="]
    common = common_factors([m for m, _ in terms], signs_in(ranges))
    if not common:
        return fact
    divided = DimExpr.of_terms((divide_monomial(m, common), c) for m, c in terms)
    if len(terms) == 1 and fact.relation != ">=":
        # A power is 0 where its base is.
        ((monomial, c),) = divided.terms
        return Fact(fact.relation, DimExpr.of_terms([(tuple((a, 1) for a, _ in monomial), c)]))
    signs = math.prod(sign(atom_expression(a), ranges) ** e for a, e in common.items())
    if fact.relation != ">=":
        return Fact(fact.relation, divided * signs)
    return _quotient_at_least(fact, divided, common, signs, ranges)


def _quotient_at_least(
    fact: Fact, divided: DimExpr, common: Mapping[Atom, int], signs: int, ranges: Ranges
) -> Fact:
    """Divides f*x + c >= 0 by f, if c is so near to 0 that it makes no other difference."""
    constant = sum(c for m, c in fact.expression.terms if not m)
    if divided.constant_value() is not None:
        # A bound of what is divided by: the bounds that show its sign may follow from it.
        return fact
    least: Bound = enclosure(
        DimExpr.of_terms([(tuple(common.items()), signs)]), ranges, effort=_EFFORT
    )[0]
    if -least <= constant < least:
        return Fact(">=", divided * signs - (1 if constant < 0 else 0))
    return fact


def signs_in(ranges: Ranges) -> Callable[[Atom], int]:
    """Returns a function that gives the sign of an atom, as `sign`."""
    return lambda atom: sign(atom_expression(atom), ranges)


def _without_content(fact: Fact) -> Fact:
    """Divides the fact by the greatest common divisor of its coefficients but the constant."""
    if fact.relation != ">=" and fact.expression.terms and fact.expression.terms[0][1] < 0:
        fact = Fact(fact.relation, -fact.expression)
    content = math.gcd(*(c for m, c in fact.expression.terms if m))
    constant = sum(c for m, c in fact.expression.terms if not m)
    if content <= 1:
        return fact
    if fact.relation == ">=" or constant % content == 0:
        # floor of the constant: the rest is a whole number.
        return Fact(fact.relation, divide_coefficients(fact.expression, content))
    return Fact(fact.relation, DimExpr.constant(1))
