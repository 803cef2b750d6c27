"""Normal form of comparisons: most tautologies become constant; common factors are divided out.

The normal form writes mod(x, y) as x - y*floordiv(x, y), expresses min and max by max(z, 0), and
moves multiples of the divisor out of a floordiv. It equals the original if no divisor is 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from shape_poly._comparisons import Fact
from shape_poly._expressions import (
    Atom,
    DimExpr,
    DimOperation,
    Monomial,
    Variable,
    atom_expression,
    operation,
    raw_operation,
)
from shape_poly._intervals import Bound, Ranges, enclose
from shape_poly._simplification import (
    divide_coefficients,
    divide_monomial,
    find_common_factors,
    find_constant_quotient,
    remove_common_factor,
)


class OutOfTimeError(Exception):
    """Raised when the time limit of a proof is exceeded."""


class Normalizer:
    """Converts expressions to the normal form; equal operations are converted once.

    Args:
      ranges: bounds of the variables.
      deadline: the time of `time.monotonic` at which to stop.
      divisible: pairs (x, y) for which y divides x and is not 0.

    Raises:
      OutOfTimeError: the deadline passed.
      OverflowError: the normal form has too many terms.
    """

    def __init__(
        self, ranges: Ranges, deadline: float, divisible: Sequence[tuple[DimExpr, DimExpr]] = ()
    ) -> None:
        self._ranges, self._deadline, self._divisible = ranges, deadline, divisible
        self._known: dict[Atom, DimExpr] = {}

    def normalize_fact(self, fact: Fact) -> Fact:
        """Converts a fact to normal form and divides it by nonzero factors."""
        if time.monotonic() > self._deadline:
            raise OutOfTimeError
        return reduce_fact(
            Fact(fact.relation, self.normalize_dimension(fact.expression)), self._ranges
        )

    def normalize_facts(self, facts: Iterable[Fact]) -> list[Fact]:
        """Converts facts; drops duplicates and facts that always hold."""
        forms = map(self.normalize_fact, dict.fromkeys(facts))
        return [form for form in forms if form.constant() is not True]

    def normalize_dimension(self, dimension: DimExpr) -> DimExpr:
        return map_atoms(dimension, self._normalize_atom)

    def _normalize_atom(self, atom: Atom) -> DimExpr:
        if isinstance(atom, Variable):
            return atom_expression(atom)
        known = self._known.get(atom)
        if known is None:
            if time.monotonic() > self._deadline:
                raise OutOfTimeError
            x, y = (self.normalize_dimension(operand) for operand in atom.operands)
            known = self._known[atom] = self._normalize_operation(atom, x, y)
        return known

    def _normalize_operation(self, atom: DimOperation, x: DimExpr, y: DimExpr) -> DimExpr:
        match atom.kind:
            case "max":
                return y + self._normalize_non_negative(x - y)
            case "min":
                return y - self._normalize_non_negative(y - x)
            case _ if y.constant_value() == 0:
                # A divisor that is always 0 makes the operation undefined, so it stays as it is.
                return atom_expression(atom)
            case "floordiv":
                return self._normalize_floordiv(x, y)
            case "mod":
                return x - y * self._normalize_floordiv(x, y)

    def _normalize_non_negative(self, x: DimExpr) -> DimExpr:
        """Converts max(x, 0) to normal form."""
        low, high = enclose(x, self._ranges)
        if low >= 0:
            return x
        if high <= 0:
            return DimExpr.constant(0)
        content = math.gcd(*(c for _, c in x.terms))
        x = divide_coefficients(x, content)
        if x.terms[0][1] < 0:
            # max(-x, 0) is written as max(x, 0) - x, so that only one of the two operations occurs.
            return (x + raw_operation("max", -x, DimExpr.constant(0))) * content
        return raw_operation("max", x, DimExpr.constant(0)) * content

    def _normalize_floordiv(self, x: DimExpr, y: DimExpr) -> DimExpr:
        _, x, y = remove_common_factor(x, y, signs_in(self._ranges))
        return map_atoms(operation("floordiv", x, y), self._evaluate_quotient)

    def _evaluate_quotient(self, atom: Atom) -> DimExpr:
        """Replaces a quotient by its value if the bounds of the variables determine it."""
        if isinstance(atom, DimOperation) and atom.kind == "floordiv":
            x, y = atom.operands
            divisor = y.constant_value()
            if divisor is None:
                low, _ = enclose(x, self._ranges)
                if low >= 0 and enclose(y - x, self._ranges)[0] >= 1:
                    return DimExpr.constant(0)
            elif (quotient := find_constant_quotient(x, divisor, self._ranges)) is not None:
                return DimExpr.constant(quotient)
            exact = divide_exactly(atom, self._divisible, self._ranges)
            if exact is not None:
                return exact
        return atom_expression(atom)


def map_atoms(dimension: DimExpr, replace: Callable[[Atom], DimExpr]) -> DimExpr:
    """Replaces each outermost atom of a dimension."""
    terms: list[tuple[Monomial, int]] = []
    for monomial, coefficient in dimension.terms:
        product = DimExpr.constant(coefficient)
        for atom, exponent in monomial:
            product = product * replace(atom) ** exponent
        terms += product.terms
    return DimExpr.of_terms(terms)


_EFFORT = 1
_MAX_SEARCHED_TERMS = 40
"""Maximum number of terms of a sum that is tested for divisibility."""


def sign(dimension: DimExpr, ranges: Ranges) -> int:
    """Returns 1 or -1 if the bounds show that the dimension is positive or negative, else 0."""
    low, high = enclose(dimension, ranges, effort=_EFFORT)
    return 1 if low >= 1 else -1 if high <= -1 else 0


def reduce_fact(fact: Fact, ranges: Ranges) -> Fact:
    """Divides the fact by nonzero factors, and simplifies dividends and divisors.

    The result is equivalent for variables within the bounds, if no divisor is 0.

    Raises:
      OverflowError: the result would be too large.
    """
    fact = _divide_content(_divide_factors(fact, ranges))
    divided = match_divisibility(fact, ranges)
    if divided is None:
        return fact
    x, y = divided
    return Fact(fact.relation, x - y * raw_operation("floordiv", x, y))


def match_divisibility(fact: Fact, ranges: Ranges) -> tuple[DimExpr, DimExpr] | None:
    """Returns (x, y) if the fact is equivalent to mod(x, y) == 0 (or != 0), else None."""
    remainder = None if fact.relation == ">=" else _find_remainder(fact.expression, ranges)
    if remainder is None:
        return None
    _, x, y = remove_common_factor(*remainder, signs_in(ranges))
    match operation("mod", x, y).terms:
        # The factors of a divisor are nonzero, so the other factors can be dropped.
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
    return _make_positive(x), _make_positive(y)


def _make_positive(x: DimExpr) -> DimExpr:
    return -x if x.terms and x.terms[0][1] < 0 else x


def _find_remainder(x: DimExpr, ranges: Ranges) -> tuple[DimExpr, DimExpr] | None:
    """Returns (u, v) if x is a nonzero multiple of mod(u, v), else None.

    The multiple may be written as f*u - f*v*floordiv(u, v).
    """
    for monomial, c in x.terms if len(x.terms) <= _MAX_SEARCHED_TERMS else ():
        for atom, exponent in monomial:
            if exponent != 1 or not isinstance(atom, DimOperation):
                continue
            u, v = atom.operands
            if max(len(u.terms), len(v.terms)) > _MAX_SEARCHED_TERMS:
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


def divide_exactly(
    atom: DimOperation, divisible: Sequence[tuple[DimExpr, DimExpr]], ranges: Ranges
) -> DimExpr | None:
    """Simplifies floordiv(u, v) if a known divisibility implies that v divides u.

    `divisible` has pairs (x, y) for which y divides x and is not 0.
    """
    u, v = atom.operands
    if max(len(u.terms), len(v.terms)) > _MAX_SEARCHED_TERMS:
        return None
    for x, y in divisible:
        # This comparison only saves time.
        may_match = u.variables() == x.variables() and len(u.terms) == len(x.terms)
        if (x, y) == (u, v) or not x.terms or not may_match or not sign(v, ranges):
            continue
        # The test is whether u/v == r * x/y for an integer r.
        left, right = u * y, x * v
        times, rest = divmod(left.terms[0][1], right.terms[0][1])
        if not rest and left == right * times:
            return raw_operation("floordiv", x, y) * times
    return None


def _divide_factors(fact: Fact, ranges: Ranges) -> Fact:
    """Divides the fact by common factors of its terms whose sign is known."""
    terms = [t for t in fact.expression.terms if t[0] or fact.relation != ">="]
    common = find_common_factors([m for m, _ in terms], signs_in(ranges))
    if not common:
        return fact
    divided = DimExpr.of_terms((divide_monomial(m, common), c) for m, c in terms)
    if len(terms) == 1 and fact.relation != ">=":
        # A power is 0 if and only if its base is.
        ((monomial, c),) = divided.terms
        return Fact(fact.relation, DimExpr.of_terms([(tuple((a, 1) for a, _ in monomial), c)]))
    signs = math.prod(sign(atom_expression(a), ranges) ** e for a, e in common.items())
    if fact.relation != ">=":
        return Fact(fact.relation, divided * signs)
    return _divide_inequality(fact, divided, common, signs, ranges)


def _divide_inequality(
    fact: Fact, divided: DimExpr, common: Mapping[Atom, int], signs: int, ranges: Ranges
) -> Fact:
    """Divides f*x + c >= 0 by f if c is smaller than f, so that only its sign matters."""
    constant = sum(c for m, c in fact.expression.terms if not m)
    if divided.constant_value() is not None:
        # The fact bounds the factor itself, and its known sign may follow from that bound.
        return fact
    least: Bound = enclose(
        DimExpr.of_terms([(tuple(common.items()), signs)]), ranges, effort=_EFFORT
    )[0]
    if -least <= constant < least:
        return Fact(">=", divided * signs - (1 if constant < 0 else 0))
    return fact


def signs_in(ranges: Ranges) -> Callable[[Atom], int]:
    return lambda atom: sign(atom_expression(atom), ranges)


def _divide_content(fact: Fact) -> Fact:
    """Divides the fact by the greatest common divisor of its coefficients without the constant."""
    if fact.relation != ">=" and fact.expression.terms and fact.expression.terms[0][1] < 0:
        fact = Fact(fact.relation, -fact.expression)
    content = math.gcd(*(c for m, c in fact.expression.terms if m))
    constant = sum(c for m, c in fact.expression.terms if not m)
    if content <= 1:
        return fact
    if fact.relation == ">=" or constant % content == 0:
        # The constant is rounded down, because the other terms are multiples.
        return Fact(fact.relation, divide_coefficients(fact.expression, content))
    return Fact(fact.relation, DimExpr.constant(1))
