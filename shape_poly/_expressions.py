"""Expressions over dimension variables, kept in one normal form.

An expression is a sum of integer multiples of products of atoms; an atom is a variable or an
operation (floordiv, mod, max, min) that the sum cannot absorb.  Equal sums of products are equal
objects, so they hash and compare structurally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

OperationKind: TypeAlias = Literal["floordiv", "mod", "max", "min"]

_EVALUATE: Mapping[OperationKind, Callable[[int, int], int]] = {
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "max": max,
    "min": min,
}


@dataclass(frozen=True)
class Variable:
    """A dimension variable: an integer of at least 1."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Operation:
    """An operation on two dimensions that a sum of products cannot express."""

    kind: OperationKind
    operands: tuple[DimExpr, DimExpr]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(str(o) for o in self.operands)})"


_MAX_TERMS = 10_000

Atom: TypeAlias = Variable | Operation
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]
"""Atoms with their exponents (at least 1), sorted by how they print; () is the constant 1."""


def _monomial_text(monomial: Monomial) -> str:
    return "*".join(str(a) if e == 1 else f"{a}^{e}" for a, e in monomial)


def _monomial_order(monomial: Monomial) -> tuple[int, str]:
    degree = sum(e for _, e in monomial)
    return -degree, _monomial_text(monomial)


def _multiply(left: Monomial, right: Monomial) -> Monomial:
    powers: dict[Atom, int] = dict(left)
    for atom, exponent in right:
        powers[atom] = powers.get(atom, 0) + exponent
    return tuple(sorted(powers.items(), key=lambda item: str(item[0])))


@dataclass(frozen=True, repr=False)
class DimExpr:
    """A dimension: a sum of integer multiples of products of variables and operations.

    Built with `variable`, `constant`, the operators + - * // % ** and `max`/`min` below, or from
    text with `shape_poly.parse_dimension`.  Immutable and hashable.

    >>> b = DimExpr.variable("b")
    >>> str(2 * b + b - 1), (b * b).evaluate({"b": 3})
    ('3*b - 1', 9)
    """

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def variable(name: str) -> DimExpr:
        """The dimension that is the variable `name`."""
        return DimExpr(((((Variable(name), 1),), 1),))

    @staticmethod
    def constant(value: int) -> DimExpr:
        """The dimension that is the integer `value`."""
        return DimExpr((((), value),)) if value else DimExpr(())

    @staticmethod
    def _of(value: Dim) -> DimExpr:
        return value if isinstance(value, DimExpr) else DimExpr.constant(value)

    @staticmethod
    def _normalised(terms: Mapping[Monomial, int]) -> DimExpr:
        kept = [(m, c) for m, c in terms.items() if c]
        return DimExpr(tuple(sorted(kept, key=lambda term: _monomial_order(term[0]))))

    def __add__(self, other: Dim) -> DimExpr:
        terms = dict(self.terms)
        for monomial, coefficient in DimExpr._of(other).terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return DimExpr._normalised(terms)

    def __neg__(self) -> DimExpr:
        return DimExpr(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Dim) -> DimExpr:
        return self + (-DimExpr._of(other))

    def __mul__(self, other: Dim) -> DimExpr:
        terms: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in DimExpr._of(other).terms:
                product = _multiply(left, right)
                terms[product] = terms.get(product, 0) + a * b
            if len(terms) > _MAX_TERMS:
                raise OverflowError(f"a dimension of more than {_MAX_TERMS} terms")
        return DimExpr._normalised(terms)

    def __pow__(self, exponent: int) -> DimExpr:
        if exponent < 0:
            raise ValueError(f"a dimension has no negative power: ({self}) ** {exponent}")
        result = DimExpr.constant(1)
        for _ in range(exponent):
            result = result * self
        return result

    def __radd__(self, other: int) -> DimExpr:
        return self + other

    def __rsub__(self, other: int) -> DimExpr:
        return -self + other

    def __rmul__(self, other: int) -> DimExpr:
        return self * other

    def __floordiv__(self, other: Dim) -> DimExpr:
        return operation("floordiv", self, other)

    def __mod__(self, other: Dim) -> DimExpr:
        return operation("mod", self, other)

    def constant_value(self) -> int | None:
        """The integer that this is, or None if it depends on a variable."""
        if not self.terms:
            return 0
        (monomial, coefficient), *rest = self.terms
        return coefficient if not rest and not monomial else None

    def variables(self) -> frozenset[str]:
        """The names of the variables in it."""
        names: set[str] = set()
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                if isinstance(atom, Variable):
                    names.add(atom.name)
                else:
                    names.update(*(o.variables() for o in atom.operands))
        return frozenset(names)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Its value where each variable has the value given.

        Raises:
          KeyError: a variable has no value.
          ZeroDivisionError: a divisor evaluates to 0.
        """
        total = 0
        for monomial, coefficient in self.terms:
            product = coefficient
            for atom, exponent in monomial:
                product *= _atom_value(atom, values) ** exponent
            total += product
        return total

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        text = ""
        for monomial, coefficient in self.terms:
            factors = _monomial_text(monomial)
            size = abs(coefficient)
            body = str(size) if not factors else factors if size == 1 else f"{size}*{factors}"
            sign = "-" if coefficient < 0 else "+"
            text += f" {sign} {body}" if text else (f"- {body}" if sign == "-" else body)
        return text

    def __repr__(self) -> str:
        return f"DimExpr({str(self)!r})"


Dim: TypeAlias = int | DimExpr
"""A dimension: a known size, or an expression over variables."""


def _atom_value(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Variable):
        return values[atom.name]
    left, right = (o.evaluate(values) for o in atom.operands)
    return _EVALUATE[atom.kind](left, right)


def operation(kind: OperationKind, left: Dim, right: Dim) -> DimExpr:
    """`kind(left, right)`, folded when both are constants.

    Raises:
      ZeroDivisionError: the divisor of floordiv or mod is the constant 0.
    """
    x, y = DimExpr._of(left), DimExpr._of(right)
    a, b = x.constant_value(), y.constant_value()
    if a is not None and b is not None:
        return DimExpr.constant(_EVALUATE[kind](a, b))
    if kind in ("floordiv", "mod") and b == 0:
        raise ZeroDivisionError(f"{kind}({x}, 0)")
    return DimExpr(((((Operation(kind, (x, y)), 1),), 1),))


def evaluate_shape(shape: Sequence[Dim], values: Mapping[str, int]) -> tuple[int | None, ...]:
    """The shape with each dimension evaluated, None where it has no value.

    >>> from shape_poly import parse_dimension
    >>> evaluate_shape((parse_dimension("2*b"), 3, parse_dimension("h")), {"b": 4})
    (8, 3, None)
    """
    return tuple(_known(d, values) for d in shape)


def _known(dimension: Dim, values: Mapping[str, int]) -> int | None:
    if isinstance(dimension, int):
        return dimension
    if not dimension.variables() <= values.keys():
        return None
    try:
        return dimension.evaluate(values)
    except ZeroDivisionError:
        return None
