"""Simplifies floordiv, mod, max and min of two expressions, partly by their bounds.

All rules hold for all integers, or for all variables of at least 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from shape_poly._expressions import (
    Atom,
    DimExpr,
    DimOperation,
    Monomial,
    OperationKind,
    Variable,
    atom_expression,
    raw_operation,
)
from shape_poly._intervals import Bound, Ranges, enclose

_EFFORT = 2
_MAX_COMPARED = 12
"""Maximum number of operands of a nested max or min that are compared with each other."""
_MAX_DIVISION_STEPS = 50
"""Maximum number of steps of a polynomial division, which may not end by itself."""

_MAX_DIVISOR = 2**63
"""Maximum product of two divisors for which nested divisions become one."""

_ZERO = DimExpr.constant(0)


def simplify_operation(kind: OperationKind, x: DimExpr, y: DimExpr) -> DimExpr:
    """Simplifies `kind(x, y)` of operands that are not both constants; no divisor is constant 0.

    Raises:
      OverflowError: the expression would be too large.
    """
    match kind:
        case "floordiv":
            return _floordiv(x, y)
        case "mod":
            return _mod(x, y)
        case "max" | "min":
            return _extremum(kind, x, y)


# floordiv and mod.


def _floordiv(x: DimExpr, y: DimExpr) -> DimExpr:
    if y.terms[0][1] < 0:
        return _floordiv(-x, -y)
    divisor = y.constant_value()
    if divisor is not None:
        return _floordiv_by_constant(x, divisor)
    common, x, y = remove_common_factor(x, y, _is_nonzero_atom)
    if common != 1:
        return _floordiv(x, y)
    quotient, rest = _divide_polynomials(x, y)
    if quotient != 0:
        return quotient if rest == 0 else quotient + _floordiv(rest, y)
    if _is_within(x, y):
        return _ZERO
    multiple, content = _divide_by_primitive(x, y)
    if multiple is not None:
        return _floordiv_by_constant(multiple, content)
    return raw_operation("floordiv", x, y)


def _mod(x: DimExpr, y: DimExpr) -> DimExpr:
    if y.terms[0][1] < 0:
        return -_mod(-x, -y)
    divisor = y.constant_value()
    if divisor is not None:
        return _mod_by_constant(x, divisor)
    common, x, y = remove_common_factor(x, y, _is_nonzero_atom)
    if common != 1:
        return common * _mod(x, y)
    quotient, rest = _divide_polynomials(x, y)
    if quotient != 0:
        return _ZERO if rest == 0 else _mod(rest, y)
    if _is_within(x, y):
        return x
    return raw_operation("mod", x, y)


def _floordiv_by_constant(x: DimExpr, k: int) -> DimExpr:
    if k == 1:
        return x
    whole = DimExpr.of_terms((m, c // k) for m, c in x.terms if not m or c % k == 0)
    x = DimExpr.of_terms((m, c % k if not m else c) for m, c in x.terms if not m or c % k)
    if x.constant_value() is not None:
        return whole
    shared = math.gcd(k, *(c for m, c in x.terms if m))
    if shared > 1:
        # floor((4*x + 3) / 8) == floor(x / 2): the constant is rounded down first.
        return whole + _floordiv_by_constant(divide_coefficients(x, shared), k // shared)
    for atom, c, rest in _iter_operations(x, "mod"):
        # c*mod(z, j) equals c*z minus a multiple of c*j, which is a multiple of k.
        inner, j = atom.operands[0], atom.operands[1].constant_value()
        if j and c * j % k == 0:
            replaced = rest + inner * c
            if len(replaced.terms) < len(x.terms):
                return (
                    whole
                    - _floordiv(inner, atom.operands[1]) * (c * j // k)
                    + _floordiv_by_constant(replaced, k)
                )
    nested = [(a, rest) for a, c, rest in _iter_operations(x, "floordiv") if c == 1]
    if len(nested) == 1:
        (atom, rest), j = nested[0], nested[0][0].operands[1].constant_value()
        if j and j > 0 and j * k <= _MAX_DIVISOR and rest.depth == 0:
            # floor((floor(z / j) + r) / k) == floor((z + j*r) / (j*k)).
            return whole + _floordiv_by_constant(atom.operands[0] + rest * j, j * k)
    quotient = find_constant_quotient(x, k, effort=_EFFORT)
    return whole + (
        raw_operation("floordiv", x, DimExpr.constant(k)) if quotient is None else quotient
    )


def _mod_by_constant(x: DimExpr, k: int) -> DimExpr:
    if k == 1:
        return _ZERO
    x = _reduce_coefficients(x, k)
    for atom, c, rest in _iter_operations(x, "mod"):
        j = atom.operands[1].constant_value()
        if j and c * j % k == 0:
            return _mod_by_constant(rest + atom.operands[0] * c, k)
    if x.constant_value() is not None:
        return x
    shared = math.gcd(k, *(c for m, c in x.terms if m))
    if shared > 1:
        # mod(4*x + 3, 8) == 4*mod(x, 2) + 3.
        constant = sum(c for m, c in x.terms if not m) % shared
        return _mod_by_constant(divide_coefficients(x, shared), k // shared) * shared + constant
    quotient = find_constant_quotient(x, k, effort=_EFFORT)
    return raw_operation("mod", x, DimExpr.constant(k)) if quotient is None else x - quotient * k


def _reduce_coefficients(x: DimExpr, k: int) -> DimExpr:
    """Subtracts multiples of k, so that coefficients are near 0: mod(7*b, 8) is mod(-b, 8)."""
    half = (k - 1) // 2
    return DimExpr.of_terms((m, (c + half) % k - half if m else c % k) for m, c in x.terms)


def _iter_operations(
    x: DimExpr, kind: OperationKind
) -> Iterator[tuple[DimOperation, int, DimExpr]]:
    """Yields (operation, c, rest) for each way to write x as c*operation + rest."""
    for atom, c in x.linear_operations():
        if atom.kind == kind:
            yield atom, c, x - atom_expression(atom) * c


def find_constant_quotient(
    x: DimExpr, k: int, ranges: Ranges | None = None, *, effort: int = 3
) -> int | None:
    """Returns floordiv(x, k) if it is the same for all sizes within `ranges`, else None."""
    low, high = enclose(x, ranges, effort=effort)
    if isinstance(low, float) or isinstance(high, float) or low // k != high // k:
        return None
    return low // k


def _is_nonzero(x: DimExpr) -> bool:
    low, high = enclose(x, effort=_EFFORT)
    return low >= 1 or high <= -1


def _is_within(x: DimExpr, divisor: DimExpr) -> bool:
    return _bound_lower(x) >= 0 and _bound_lower(divisor - x) >= 1


def _bound_lower(x: DimExpr) -> Bound:
    return enclose(x, effort=_EFFORT)[0]


def _is_nonzero_atom(atom: Atom) -> bool:
    return isinstance(atom, Variable) or _is_nonzero(atom_expression(atom))


def _divide_terms(term: tuple[Monomial, int], by: tuple[Monomial, int]) -> DimExpr | None:
    """Divides a term by another; returns None unless it is a multiple."""
    if term[1] % by[1]:
        return None
    powers = dict(term[0])
    for atom, exponent in by[0]:
        powers[atom] = powers.get(atom, 0) - exponent
        if powers[atom] < 0:
            return None
    return DimExpr(((tuple((a, e) for a, e in powers.items() if e), term[1] // by[1]),))


def _divide_by_primitive(x: DimExpr, y: DimExpr) -> tuple[DimExpr | None, int]:
    """Returns (q, c) with x == q*p and y == c*p for an int c and p >= 1; (None, 1) if not found."""
    content = math.gcd(*(c for _, c in y.terms))
    primitive = divide_coefficients(y, content)
    if content == 1 or not _bound_lower(primitive) >= 1:
        return None, 1
    quotient, rest = _divide_polynomials(x, primitive)
    return (quotient, content) if quotient != 0 and rest == 0 else (None, 1)


def _divide_polynomials(x: DimExpr, y: DimExpr) -> tuple[DimExpr, DimExpr]:
    """Returns some (q, r) with x == q*y + r, r shorter than x; (0, x) if none is found.

    r is 0 only if y is nonzero for all sizes.
    """
    lead = y.terms[0]
    quotient, rest = _ZERO, x
    for _ in range(_MAX_DIVISION_STEPS):
        factor = next((q for t in rest.terms if (q := _divide_terms(t, lead))), None)
        if factor is None:
            break
        quotient, rest = quotient + factor, rest - factor * y
        if len(rest.terms) > 2 * len(x.terms) + len(y.terms):
            return _ZERO, x
    if len(rest.terms) >= len(x.terms) or (rest == 0 and not _is_nonzero(y)):
        return _ZERO, x
    return quotient, rest


# max and min.


def _extremum(kind: OperationKind, x: DimExpr, y: DimExpr) -> DimExpr:
    sign = 1 if kind == "max" else -1
    operands: list[DimExpr] = []
    for operand in dict.fromkeys((*_flatten(kind, x), *_flatten(kind, y))):
        if len(operands) <= _MAX_COMPARED:
            if any(_bound_lower((other - operand) * sign) >= 0 for other in operands):
                continue
            operands = [o for o in operands if not _bound_lower((operand - o) * sign) >= 0]
        operands.append(operand)
    operands.sort(key=DimExpr.sort_key)
    result = operands.pop()
    while operands:
        result = raw_operation(kind, operands.pop(), result)
    return result


def _flatten(kind: OperationKind, x: DimExpr) -> Iterator[DimExpr]:
    """Yields the operands of a nested max or min: a, b and c of max(a, max(b, c))."""
    atom = x.as_operation()
    if atom is None or atom.kind != kind:
        yield x
        return
    for operand in atom.operands:
        yield from _flatten(kind, operand)


# Common factors.


def divide_coefficients(x: DimExpr, by: int) -> DimExpr:
    """Divides each coefficient and rounds down."""
    return DimExpr.of_terms((m, c // by) for m, c in x.terms)


def divide_monomial(monomial: Monomial, by: Mapping[Atom, int]) -> Monomial:
    return tuple((a, e - by.get(a, 0)) for a, e in monomial if e > by.get(a, 0))


def find_common_factors(
    monomials: Sequence[Monomial], is_nonzero: Callable[[Atom], object]
) -> dict[Atom, int]:
    """Returns the nonzero factors that all monomials share, with their exponents."""
    if not monomials:
        return {}
    common = dict(monomials[0])
    for monomial in monomials[1:]:
        powers = dict(monomial)
        common = {a: min(e, powers[a]) for a, e in common.items() if a in powers}
        if not common:
            return {}
    return {a: e for a, e in common.items() if is_nonzero(a)}


def remove_common_factor(
    x: DimExpr, y: DimExpr, is_nonzero: Callable[[Atom], object]
) -> tuple[DimExpr, DimExpr, DimExpr]:
    """Returns (f, x', y') with x == f*x' and y == f*y', where f is not 0."""
    terms = [*x.terms, *y.terms]
    common = find_common_factors([m for m, _ in terms], is_nonzero)
    content = math.gcd(*(c for _, c in terms)) or 1
    left, right = (
        DimExpr.of_terms((divide_monomial(m, common), c // content) for m, c in z.terms)
        for z in (x, y)
    )
    return DimExpr(((tuple(common.items()), content),)), left, right
