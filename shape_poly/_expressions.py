"""Expressions over dimension variables: arithmetic, evaluation, bounds and simplification.

An expression is a sum of integer multiples of products of atoms; an atom is a variable or an
operation (floordiv, mod, max, min) that the sum cannot absorb.  Equal sums of products are equal
objects, so they hash and compare structurally.  `//`, `%` and `operation` simplify what they build,
by bounds of the operands among others, so bounds and simplification are part of the type.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from shape_poly._intervals import (
    INTERVAL_OPERATIONS,
    POSITIVE,
    Bound,
    Interval,
    plus,
    power,
    times,
)

T = TypeVar("T")


class lazily(Generic[T]):
    """Descriptor that computes an attribute when it is first asked for, and keeps it.

    functools.cached_property of Python 3.11 holds one lock for all instances. Attributes of two
    classes that are computed from each other would block threads forever; here, two threads may
    compute the same value instead.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        value: T = self._compute(instance)
        instance.__dict__[self._name] = value  # Python looks there first
        return value


OperationKind: TypeAlias = Literal["floordiv", "mod", "max", "min"]

MAX_TERMS = 10_000
MAX_DEGREE = 256
"""The highest power, or product of so many atoms."""
MAX_DEPTH = 64
"""Operations within operations: what works on expressions recurses into operands."""
MAX_SIZE = 200_000
"""Atoms and constants, those of operands included: nesting can double it at each level."""
MAX_COEFFICIENT = 2**128
"""Far above any size (2**63), and low enough that nothing slows down."""
MAX_PRODUCTS = 300_000
"""Maximum number of products of terms when sums are multiplied: about a second."""

NOT_VARIABLES = frozenset({"floordiv", "mod", "max", "min", "_"})
"""Names that are operations or the placeholder."""


@dataclass(frozen=True)
class Variable:
    """A dimension variable: an integer of at least 1."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class DimOperation:
    """An operation on two dimensions that a sum of products cannot express.

    Raises:
      OverflowError: its operands nest operations too deeply, or are too large.
    """

    kind: OperationKind
    operands: tuple[DimExpr, DimExpr]

    def __post_init__(self) -> None:
        if self.depth > MAX_DEPTH:
            raise OverflowError(f"a dimension of operations nested more than {MAX_DEPTH} deep")
        if self.size > MAX_SIZE:
            raise OverflowError(f"a dimension of more than {MAX_SIZE} variables and constants")

    @lazily
    def depth(self) -> int:
        """Counts the levels of nested operations, itself included."""
        return 1 + max(o.depth for o in self.operands)

    @lazily
    def size(self) -> int:
        """Counts its variables and constants, repeated ones included."""
        return sum(o.size for o in self.operands)

    @lazily
    def _text(self) -> str:
        return f"{self.kind}({', '.join(str(o) for o in self.operands)})"

    @lazily
    def _hash(self) -> int:
        return hash((self.kind, self.operands))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what is cached: the hash of a string is another one in another process.
        return DimOperation, (self.kind, self.operands)


Atom: TypeAlias = Variable | DimOperation
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]
"""Atoms with their exponents (at least 1), sorted by how they print; () is the constant 1."""


def monomial_text(monomial: Monomial) -> str:
    """Prints a product."""
    return "*".join(str(a) if e == 1 else f"{a}^{e}" for a, e in monomial)


def term_order(term: tuple[Monomial, int]) -> tuple[int, str]:
    """Returns the key by which the terms of a sum are sorted."""
    monomial = term[0]
    return -sum(e for _, e in monomial), monomial_text(monomial)


def multiply(left: Monomial, right: Monomial) -> Monomial:
    """Multiplies two products of atoms.

    Raises:
      OverflowError: it has too many factors.
    """
    if not left or not right:
        return left or right
    powers: dict[Atom, int] = dict(left)
    for atom, exponent in right:
        powers[atom] = powers.get(atom, 0) + exponent
    if sum(powers.values()) > MAX_DEGREE:
        raise OverflowError(f"a dimension of a degree above {MAX_DEGREE}")
    return tuple(sorted(powers.items(), key=lambda item: str(item[0])))


class Algebra(Protocol[T]):
    """Arithmetic on values of a type T, for `DimExpr.evaluate_with`."""

    def constant(self, value: int, /) -> T:
        """Converts an integer."""

    def add(self, left: T, right: T, /) -> T:
        """Adds."""

    def multiply(self, left: T, right: T, /) -> T:
        """Multiplies."""

    def floordiv(self, left: T, right: T, /) -> T:
        """Divides and rounds down, as Python's //."""

    def mod(self, left: T, right: T, /) -> T:
        """Returns the remainder with the divisor's sign, as Python's %."""

    def maximum(self, left: T, right: T, /) -> T:
        """Returns the greater one."""

    def minimum(self, left: T, right: T, /) -> T:
        """Returns the lesser one."""


@dataclass(frozen=True, repr=False, eq=False)
class DimExpr:
    """A dimension: a sum of integer multiples of products of variables and operations.

    Built with `variable`, `constant`, the operators + - * // % ** and `operation` below, or from
    text with `shape_poly.parse_dimension`.  Immutable and hashable; equal to an int if it is
    that constant.  `//`, `%` and `operation` simplify by rules that hold for all integers, or for
    all variables of at least 1.  An expression has no value where a divisor is 0; simplifying may
    give it one, where the part without a value cancels.

    Operators raise OverflowError if the result would be too large to work with.

    >>> b = DimExpr.variable("b")
    >>> str(2 * b + b - 1), (b * b).evaluate({"b": 3})
    ('3*b - 1', 9)
    >>> str((2 * b + 7) // 2), str((b * b + 2 * b) // b)
    ('b + 3', 'b + 2')
    """

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def variable(name: str) -> DimExpr:
        """Makes the expression of one variable.

        Raises:
          ValueError: the name would not read as a variable.
        """
        if not name.isidentifier() or name in NOT_VARIABLES:
            raise ValueError(f"a dimension variable needs a name like 'b' or 'n_2', not {name!r}")
        return atom_expression(Variable(name))

    @staticmethod
    def constant(value: int) -> DimExpr:
        """Makes the expression of an integer."""
        return DimExpr((((), value),)) if value else DimExpr(())

    @staticmethod
    def sum(parts: Iterable[Dim]) -> DimExpr:
        """Adds up many dimensions, faster than one after the other."""
        return DimExpr.of_terms(term for part in parts for term in DimExpr.of(part).terms)

    @staticmethod
    def of_terms(terms: Iterable[tuple[Monomial, int]]) -> DimExpr:
        """Adds up terms, several of which may have the same monomial."""
        summed: dict[Monomial, int] = {}
        for monomial, coefficient in terms:
            summed[monomial] = summed.get(monomial, 0) + coefficient
        return DimExpr._normalised(summed)

    @staticmethod
    def of(value: Dim) -> DimExpr:
        """Makes an expression of a dimension that may be an integer."""
        return value if isinstance(value, DimExpr) else DimExpr.constant(operator.index(value))

    @staticmethod
    def _normalised(terms: Mapping[Monomial, int]) -> DimExpr:
        kept = [(m, c) for m, c in terms.items() if c]
        if len(kept) > MAX_TERMS:
            raise OverflowError(f"a dimension of more than {MAX_TERMS} terms")
        if any(abs(c) > MAX_COEFFICIENT for _, c in kept):
            raise OverflowError("a dimension with a number of more than 128 bits")
        return DimExpr(tuple(sorted(kept, key=term_order)))

    def __add__(self, other: Dim) -> DimExpr:
        return DimExpr.sum((self, other)) if _is_dim(other) else NotImplemented

    def __neg__(self) -> DimExpr:
        return DimExpr(tuple((m, -c) for m, c in self.terms))

    def __pos__(self) -> DimExpr:
        return self

    def __sub__(self, other: Dim) -> DimExpr:
        return DimExpr.sum((self, -DimExpr.of(other))) if _is_dim(other) else NotImplemented

    def __mul__(self, other: Dim) -> DimExpr:
        if not _is_dim(other):
            return NotImplemented
        other = DimExpr.of(other)
        if len(self.terms) * len(other.terms) > MAX_PRODUCTS:
            raise OverflowError("a product of dimensions of too many terms")
        terms: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in other.terms:
                product = multiply(left, right)
                terms[product] = terms.get(product, 0) + a * b
            if len(terms) > MAX_TERMS:
                raise OverflowError(f"a dimension of more than {MAX_TERMS} terms")
        return DimExpr._normalised(terms)

    def __pow__(self, exponent: int) -> DimExpr:
        if exponent < 0:
            raise ValueError(f"a dimension has no negative power: ({self}) ** {exponent}")
        value = self.constant_value()
        if value in (0, 1) and exponent:
            return self
        if exponent > MAX_DEGREE:
            raise OverflowError(f"a dimension of a degree above {MAX_DEGREE}")
        result, products = DimExpr.constant(1), 0
        for _ in range(exponent):
            products += len(result.terms) * len(self.terms)
            if products > MAX_PRODUCTS:
                raise OverflowError("a power of a dimension of too many terms")
            result = result * self
        return result

    def __radd__(self, other: int) -> DimExpr:
        return self + other

    def __rsub__(self, other: int) -> DimExpr:
        return -self + other

    def __rmul__(self, other: int) -> DimExpr:
        return self * other

    def __floordiv__(self, other: Dim) -> DimExpr:
        return operation("floordiv", self, other) if _is_dim(other) else NotImplemented

    def __rfloordiv__(self, other: int) -> DimExpr:
        return operation("floordiv", other, self) if _is_dim(other) else NotImplemented

    def __mod__(self, other: Dim) -> DimExpr:
        return operation("mod", self, other) if _is_dim(other) else NotImplemented

    def __rmod__(self, other: int) -> DimExpr:
        return operation("mod", other, self) if _is_dim(other) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DimExpr):
            return self is other or self.terms == other.terms
        return isinstance(other, int) and self.constant_value() == other

    @lazily
    def _hash(self) -> int:
        value = self.constant_value()
        return hash(self.terms) if value is None else hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what is cached, see Operation.
        return DimExpr, (self.terms,)

    def constant_value(self) -> int | None:
        """Returns the integer that this is, or None if it depends on a variable."""
        if not self.terms:
            return 0
        (monomial, coefficient), *rest = self.terms
        return coefficient if not rest and not monomial else None

    def as_operation(self) -> DimOperation | None:
        """Returns the operation that this is, as `mod(b, 2)`; None if it is anything else."""
        match self.terms:
            case ((((DimOperation() as found, 1),), 1),):
                return found
        return None

    def variables(self) -> frozenset[str]:
        """Returns the names of the variables in it."""
        return self._variables

    @lazily
    def _variables(self) -> frozenset[str]:
        names: set[str] = set()
        for atom in self._atoms():
            if isinstance(atom, Variable):
                names.add(atom.name)
            else:
                names.update(*(o.variables() for o in atom.operands))
        return frozenset(names)

    def _atoms(self) -> Iterable[Atom]:
        return (atom for monomial, _ in self.terms for atom, _ in monomial)

    @lazily
    def depth(self) -> int:
        """Counts the levels of nested operations; 0 without any."""
        return max((a.depth for a in self._atoms() if isinstance(a, DimOperation)), default=0)

    @lazily
    def size(self) -> int:
        """Counts its variables and constants, repeated ones included."""
        atoms = sum(a.size if isinstance(a, DimOperation) else 1 for a in self._atoms())
        return len(self.terms) + atoms

    def sort_key(self) -> tuple[int, int, int, str]:
        """Returns a key that sorts simple expressions first, and constants last.

        No `<`: that would be taken for a comparison of the values.
        """
        value = self.constant_value()
        if value is not None:
            return MAX_DEPTH + 1, value, 0, ""
        return self.depth, len(self.terms), self.size, str(self)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Computes its value for these values of the variables.

        Raises:
          KeyError: a variable has no value.
          ZeroDivisionError: a divisor evaluates to 0.
        """
        total = 0
        for monomial, coefficient in self.terms:
            product = coefficient
            for atom, exponent in monomial:
                if isinstance(atom, Variable):
                    value = values[atom.name]
                else:
                    left, right = atom.operands
                    value = _fold(atom.kind, left.evaluate(values), right.evaluate(values))
                product *= value if exponent == 1 else value**exponent
            total += product
        return total

    def evaluate_with(self, values: Mapping[str, T], algebra: Algebra[T]) -> T:
        """Computes its value in another algebra than that of ints, each operation once.

        Args:
          values: the values of the variables.
          algebra: how to compute with them, for instance with tensors.

        Raises:
          KeyError: a variable has no value.
        """
        result: T = _Evaluation(values, algebra).expression(self)
        return result

    def substitute(self, dimensions: Mapping[str, Dim]) -> Dim:
        """Replaces variables by dimensions; others stay. The result is simplified.

        Raises:
          ZeroDivisionError: a divisor becomes the constant 0.
          OverflowError: the result is too large.

        >>> b = DimExpr.variable("b")
        >>> (b // 2 + 1).substitute({"b": 4 * b}), (b // 2).substitute({"b": 7})
        (DimExpr('2*b + 1'), 3)
        """
        values = {name: DimExpr.variable(name) for name in self.variables()}
        values |= {name: DimExpr.of(dimension) for name, dimension in dimensions.items()}
        return as_dim(self.evaluate_with(values, _Expressions()))

    def simplified(self) -> Dim:
        """Simplifies every operation: `parse_dimension` keeps them as written.

        Raises:
          ZeroDivisionError: a divisor is 0 always.

        >>> from shape_poly import parse_dimension
        >>> parse_dimension("mod(35*b, -2)").simplified()
        DimExpr('- mod(b, 2)')
        """
        return self.substitute({})

    @lazily
    def _text(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = monomial_text(monomial)
            size = abs(coefficient)
            body = str(size) if not factors else factors if size == 1 else f"{size}*{factors}"
            sign = "-" if coefficient < 0 else "+"
            text += f" {sign} {body}" if text else (f"- {body}" if sign == "-" else body)
        return text or "0"

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"DimExpr({str(self)!r})"


Dim: TypeAlias = int | DimExpr
"""A dimension: a known size, or an expression over variables."""


def _is_dim(value: object) -> bool:
    return isinstance(value, DimExpr) or hasattr(value, "__index__")


def as_dim(expression: DimExpr) -> Dim:
    """Converts the expression to an int if it is a constant."""
    value = expression.constant_value()
    return expression if value is None else value


def atom_expression(atom: Atom) -> DimExpr:
    """Makes the expression that is the atom alone, not simplified."""
    return DimExpr(((((atom, 1),), 1),))


def _fold(kind: OperationKind, left: int, right: int) -> int:
    match kind:
        case "floordiv":
            return left // right
        case "mod":
            return left % right
        case "max":
            return max(left, right)
        case "min":
            return min(left, right)


def variables_of(dimension: Dim) -> frozenset[str]:
    """Returns the names of the variables in a dimension, none for an integer.

    >>> from shape_poly import parse_dimension
    >>> sorted(variables_of(parse_dimension("b + 2*n"))), variables_of(3)
    (['b', 'n'], frozenset())
    """
    return dimension.variables() if isinstance(dimension, DimExpr) else frozenset()


def operation(kind: OperationKind, left: Dim, right: Dim, *, simplify: bool = True) -> DimExpr:
    """Makes the expression `kind(left, right)`, folded when both are constants.

    Args:
      kind: the operation.
      left: the dividend of floordiv and mod.
      right: their divisor.
      simplify: whether to look for a simpler equal expression, rather than keep the operation.

    Raises:
      ZeroDivisionError: the divisor of floordiv or mod is the constant 0.
      OverflowError: it would be too large.
    """
    x, y = DimExpr.of(left), DimExpr.of(right)
    a, b = x.constant_value(), y.constant_value()
    if kind in ("floordiv", "mod") and b == 0:
        raise ZeroDivisionError(f"{kind}({x}, 0)")
    if a is not None and b is not None:
        return DimExpr.constant(_fold(kind, a, b))
    if simplify:
        try:
            return _simplified(kind, x, y)
        except OverflowError:
            pass  # as it is, it may be small enough
    return atom_expression(DimOperation(kind, (x, y)))


def atoms(dimension: DimExpr) -> Iterator[Atom]:
    """Yields the variables and operations in it, operands before the operation."""
    for monomial, _ in dimension.terms:
        for atom, _ in monomial:
            if isinstance(atom, DimOperation):
                for operand in atom.operands:
                    yield from atoms(operand)
            yield atom


def divisors_in(dimension: DimExpr) -> Iterator[DimExpr]:
    """Yields the divisors in it that depend on variables, those within others first."""
    for atom in atoms(dimension):
        if isinstance(atom, DimOperation) and atom.kind in ("floordiv", "mod"):
            divisor = atom.operands[1]
            if divisor.constant_value() is None:
                yield divisor


# Common factors.


def divided(x: DimExpr, by: int) -> DimExpr:
    """Divides each coefficient, rounded down."""
    return DimExpr.of_terms((m, c // by) for m, c in x.terms)


def divided_monomial(monomial: Monomial, by: Mapping[Atom, int]) -> Monomial:
    """Takes away factors that the monomial has."""
    return tuple((a, e - by.get(a, 0)) for a, e in monomial if e > by.get(a, 0))


def common_factors(
    monomials: Sequence[Monomial], is_nonzero: Callable[[Atom], object]
) -> dict[Atom, int]:
    """Returns those factors, with exponents, that all monomials have and that are not 0."""
    if not monomials:
        return {}
    common = dict(monomials[0])
    for monomial in monomials[1:]:
        powers = dict(monomial)
        common = {a: min(e, powers[a]) for a, e in common.items() if a in powers}
        if not common:
            return {}
    return {a: e for a, e in common.items() if is_nonzero(a)}


def without_common_factor(
    x: DimExpr, y: DimExpr, is_nonzero: Callable[[Atom], object]
) -> tuple[DimExpr, DimExpr, DimExpr]:
    """Returns (f, x', y') with x == f*x' and y == f*y', where f is not 0."""
    terms = [*x.terms, *y.terms]
    common = common_factors([m for m, _ in terms], is_nonzero)
    content = math.gcd(*(c for _, c in terms)) or 1
    left, right = (
        DimExpr.of_terms((divided_monomial(m, common), c // content) for m, c in z.terms)
        for z in (x, y)
    )
    return DimExpr(((tuple(common.items()), content),)), left, right


# Values in other algebras.


class _Expressions:
    """Algebra of expressions, in which evaluating is substituting."""

    constant = staticmethod(DimExpr.constant)
    add, multiply = staticmethod(operator.add), staticmethod(operator.mul)
    floordiv, mod = staticmethod(operator.floordiv), staticmethod(operator.mod)
    maximum = staticmethod(functools.partial(operation, "max"))
    minimum = staticmethod(functools.partial(operation, "min"))


class _Evaluation:
    """Evaluator in one algebra, which computes operations that occur twice once."""

    def __init__(self, values: Mapping[str, Any], algebra: Algebra[Any]) -> None:
        self._values, self._algebra = values, algebra
        self._known: dict[Atom, Any] = {}

    def expression(self, expression: DimExpr) -> Any:
        terms = [self._term(monomial, c) for monomial, c in expression.terms]
        if isinstance(self._algebra, _Expressions):
            return DimExpr.sum(terms)
        return functools.reduce(self._algebra.add, terms) if terms else self._algebra.constant(0)

    def _term(self, monomial: Monomial, coefficient: int) -> Any:
        factors = [self._atom(atom) for atom, exponent in monomial for _ in range(exponent)]
        if coefficient != 1 or not factors:
            factors.append(self._algebra.constant(coefficient))
        return functools.reduce(self._algebra.multiply, factors)

    def _atom(self, atom: Atom) -> Any:
        if isinstance(atom, Variable):
            return self._values[atom.name]
        if atom not in self._known:
            left, right = (self.expression(o) for o in atom.operands)
            compute = {
                "floordiv": self._algebra.floordiv,
                "mod": self._algebra.mod,
                "max": self._algebra.maximum,
                "min": self._algebra.minimum,
            }[atom.kind]
            self._known[atom] = compute(left, right)
        return self._known[atom]


def evaluate_shape(shape: Sequence[Dim], values: Mapping[str, int]) -> tuple[int | None, ...]:
    """Evaluates each dimension of a shape; None where it has no value.

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


# Bounds.

_MAX_OPERATIONS = 4
"""How many operations of one sum are taken apart in turn."""
_MAX_STEPS = 120
_MAX_SUM_TERMS = 40
_MAX_SHIFTED_DEGREE = 4


def enclosure(
    expression: DimExpr, ranges: Mapping[str, Interval] | None = None, *, effort: int = 3
) -> Interval:
    """Bounds the expression's values, for variables in `ranges` (all are at least 1).

    Args:
      expression: what to bound.
      ranges: bounds of some variables.
      effort: how many operations may be taken apart one after the other; 0 for term by term.
    """
    return _Enclosing(ranges or {}).interval(expression, effort)


class _Enclosing:
    """Bounds of one expression and its operations, each computed once."""

    def __init__(self, ranges: Mapping[str, Interval]) -> None:
        self._ranges = ranges
        self._known: dict[tuple[Atom, int], Interval] = {}
        self._steps = 0

    def interval(self, x: DimExpr, effort: int) -> Interval:
        lower, upper = self._by_terms(x, effort)
        if lower == upper or len(x.terms) < 2:
            return lower, upper
        lower = max(lower, self._lower(x, effort))
        return lower, min(upper, -self._lower(-x, effort))

    def _by_terms(self, x: DimExpr, effort: int) -> Interval:
        lower: Bound = 0
        upper: Bound = 0
        for monomial, coefficient in x.terms:
            low, high = times(self._monomial(monomial, effort), (coefficient, coefficient))
            lower, upper = plus(lower, low), plus(upper, high)
        return lower, upper

    def _monomial(self, monomial: Monomial, effort: int) -> Interval:
        product: Interval = (1, 1)
        for atom, exponent in monomial:
            product = times(product, power(self._atom(atom, effort), exponent))
        return product

    def _atom(self, atom: Atom, effort: int) -> Interval:
        if isinstance(atom, Variable):
            low, high = self._ranges.get(atom.name, POSITIVE)
            return max(1, low), high
        key = atom, effort
        if key not in self._known:
            # Less effort for what is nested: the effort of all levels multiplies.
            inner = max(effort - 1, 0)
            x, y = (self.interval(o, inner) for o in atom.operands)
            self._known[key] = INTERVAL_OPERATIONS[atom.kind](x, y)
        return self._known[key]

    def _lower(self, x: DimExpr, effort: int) -> Bound:
        """Bounds x from below, as well as it can in the steps that are left."""
        self._steps += 1
        best = max(self._by_terms(x, effort)[0], self._shifted(x))
        if effort <= 0 or self._steps > _MAX_STEPS or len(x.terms) > _MAX_SUM_TERMS:
            return best
        operations = [
            (atom, c)
            for monomial, c in x.terms
            if len(monomial) == 1
            for atom, exponent in monomial
            if exponent == 1 and isinstance(atom, DimOperation)
        ]
        operations.sort(key=lambda found: -found[0].depth)
        for atom, c in operations[:_MAX_OPERATIONS]:
            try:
                rest = x - atom_expression(atom) * c
                best = max(best, self._without(atom, c, rest, effort - 1))
            except OverflowError:
                continue  # taken apart it would be too large
        return best

    def _without(self, atom: DimOperation, c: int, rest: DimExpr, effort: int) -> Bound:
        """Bounds c*atom + rest from below by an expression without the operation."""
        x, y = atom.operands
        if atom.kind in ("max", "min"):
            parts = [self._lower(o * c + rest, effort) for o in (x, y)]
            # c*max(x, y) is the greater of c*x and c*y, or the lesser if c is negative.
            return max(parts) if (atom.kind == "max") == (c > 0) else min(parts)
        divisor = y.constant_value()
        if atom.kind == "floordiv" and divisor is not None:
            if divisor < 0:
                x, divisor = -x, -divisor
            if c > 0:
                x = x - (divisor - 1)
            bound = self._lower(x * c + rest * divisor, effort)
            return bound if isinstance(bound, float) else -(-bound // divisor)
        if c > 0 or self._by_terms(y, effort)[0] < 1:
            return -math.inf
        bounds: list[Bound] = []
        if atom.kind == "mod":
            bounds.append(self._lower((y - 1) * c + rest, effort))
        if self._by_terms(x, effort)[0] >= 0:  # then neither quotient nor remainder exceeds x
            bounds.append(self._lower(x * c + rest, effort))
        return max(bounds, default=-math.inf)

    def _shifted(self, x: DimExpr) -> Bound:
        """Bounds x from below, written in the excess of each atom over its own lower bound.

        As a*b - b, which is (a - 1)*b: with a = 1 + p and b = 1 + q, it is p + p*q.
        """
        degrees = [sum(e for _, e in monomial) for monomial, _ in x.terms]
        small = len(x.terms) <= _MAX_SUM_TERMS and max(degrees, default=0) > 1
        if not small or max(degrees) > _MAX_SHIFTED_DEGREE or all(c > 0 for _, c in x.terms):
            return -math.inf
        intervals = {a: self._atom(a, 0) for monomial, _ in x.terms for a, _ in monomial}
        terms: dict[Monomial, int] = {}
        for monomial, coefficient in x.terms:
            for excess, factor in _shifted_monomial(monomial, intervals):
                terms[excess] = terms.get(excess, 0) + factor * coefficient
        total: Bound = 0
        for monomial, coefficient in terms.items():
            product: Interval = (coefficient, coefficient)
            for atom, exponent in monomial:
                low, high = intervals[atom]
                above = (low, high) if isinstance(low, float) else (0, plus(high, -low))
                product = times(product, power(above, exponent))
            total = plus(total, product[0])
        return total


def _shifted_monomial(
    monomial: Monomial, intervals: Mapping[Atom, Interval]
) -> Iterator[tuple[Monomial, int]]:
    """Yields the terms of the product of (lower bound + excess) ** exponent over the atoms."""
    choices: list[list[tuple[Monomial, int]]] = []
    for atom, exponent in monomial:
        low = intervals[atom][0]
        if isinstance(low, float):
            choices.append([(((atom, exponent),), 1)])
            continue
        factors = [math.comb(exponent, p) * low ** (exponent - p) for p in range(exponent + 1)]
        choices.append([(((atom, p),) if p else (), f) for p, f in enumerate(factors)])
    for chosen in itertools.product(*choices):
        excess = tuple(power for part, _ in chosen for power in part)
        yield excess, math.prod(factor for _, factor in chosen)


# Simplification.

_EFFORT = 2
_MAX_COMPARED = 12
"""Maximum number of operands of a nested max or min that are compared with each other."""
_DIVISION_STEPS = 50
"""How many terms a division of polynomials takes away at most: it need not end by itself."""

_MAX_DIVISOR = 2**63
"""Up to here divisors of nested divisions are made one."""

_ZERO = DimExpr.constant(0)


def _simplified(kind: OperationKind, x: DimExpr, y: DimExpr) -> DimExpr:
    """Simplifies `kind(x, y)`, where not both are constants, and no divisor is the constant 0.

    Raises:
      OverflowError: it would be too large.
    """
    match kind:
        case "floordiv":
            return _floordiv(x, y)
        case "mod":
            return _mod(x, y)
        case "max" | "min":
            return _extremum(kind, x, y)


def _kept(kind: OperationKind, x: DimExpr, y: DimExpr) -> DimExpr:
    return atom_expression(DimOperation(kind, (x, y)))


# floordiv and mod.


def _floordiv(x: DimExpr, y: DimExpr) -> DimExpr:
    if y.terms[0][1] < 0:
        return _floordiv(-x, -y)
    divisor = y.constant_value()
    if divisor is not None:
        return _floordiv_by_constant(x, divisor)
    common, x, y = without_common_factor(x, y, _is_nonzero_atom)
    if common != 1:
        return _floordiv(x, y)
    quotient, rest = _polynomial_division(x, y)
    if quotient is not _ZERO:
        return quotient if rest == 0 else quotient + _floordiv(rest, y)
    if _is_within(x, y):
        return _ZERO
    multiple, content = _multiple_of_primitive(x, y)
    if multiple is not None:
        return _floordiv_by_constant(multiple, content)
    return _kept("floordiv", x, y)


def _mod(x: DimExpr, y: DimExpr) -> DimExpr:
    if y.terms[0][1] < 0:
        return -_mod(-x, -y)
    divisor = y.constant_value()
    if divisor is not None:
        return _mod_by_constant(x, divisor)
    common, x, y = without_common_factor(x, y, _is_nonzero_atom)
    if common != 1:
        return common * _mod(x, y)
    quotient, rest = _polynomial_division(x, y)
    if quotient is not _ZERO:
        return _ZERO if rest == 0 else _mod(rest, y)
    if _is_within(x, y):
        return x
    return _kept("mod", x, y)


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
        return whole + _floordiv_by_constant(divided(x, shared), k // shared)
    for atom, c, rest in _operations_in(x, "mod"):
        # c*mod(z, j) is c*z less a multiple of c*j, that is of k.
        inner, j = atom.operands[0], atom.operands[1].constant_value()
        if j and c * j % k == 0:
            replaced = rest + inner * c
            if len(replaced.terms) < len(x.terms):
                return (
                    whole
                    - _floordiv_by_sign(inner, j) * (c * j // k)
                    + _floordiv_by_constant(replaced, k)
                )
    nested = [(a, rest) for a, c, rest in _operations_in(x, "floordiv") if c == 1]
    if len(nested) == 1:
        (atom, rest), j = nested[0], nested[0][0].operands[1].constant_value()
        if j and j > 0 and j * k <= _MAX_DIVISOR and rest.depth == 0:
            # floor((floor(z / j) + r) / k) == floor((z + j*r) / (j*k)).
            return whole + _floordiv_by_constant(atom.operands[0] + rest * j, j * k)
    quotient = constant_quotient(x, k, effort=_EFFORT)
    return whole + (_kept("floordiv", x, DimExpr.constant(k)) if quotient is None else quotient)


def _floordiv_by_sign(x: DimExpr, k: int) -> DimExpr:
    return _floordiv_by_constant(x, k) if k > 0 else _floordiv_by_constant(-x, -k)


def _mod_by_constant(x: DimExpr, k: int) -> DimExpr:
    if k == 1:
        return _ZERO
    x = _reduced(x, k)
    for atom, c, rest in _operations_in(x, "mod"):
        j = atom.operands[1].constant_value()
        if j and c * j % k == 0:
            return _mod_by_constant(rest + atom.operands[0] * c, k)
    if x.constant_value() is not None:
        return x
    shared = math.gcd(k, *(c for m, c in x.terms if m))
    if shared > 1:
        # mod(4*x + 3, 8) == 4*mod(x, 2) + 3.
        constant = sum(c for m, c in x.terms if not m) % shared
        return _mod_by_constant(divided(x, shared), k // shared) * shared + constant
    quotient = constant_quotient(x, k, effort=_EFFORT)
    return _kept("mod", x, DimExpr.constant(k)) if quotient is None else x - quotient * k


def _reduced(x: DimExpr, k: int) -> DimExpr:
    """Takes away multiples of k, so that coefficients are near 0: mod(7*b, 8) is mod(-b, 8)."""
    half = (k - 1) // 2
    return DimExpr.of_terms((m, (c + half) % k - half if m else c % k) for m, c in x.terms)


def _operations_in(x: DimExpr, kind: OperationKind) -> Iterator[tuple[DimOperation, int, DimExpr]]:
    """Yields operations that are a term of x up to a factor: (operation, factor, other terms)."""
    for monomial, c in x.terms:
        match monomial:
            case ((DimOperation() as atom, 1),) if atom.kind == kind:
                yield atom, c, x - atom_expression(atom) * c


def constant_quotient(
    x: DimExpr, k: int, ranges: Mapping[str, Interval] | None = None, *, effort: int = 3
) -> int | None:
    """Returns floordiv(x, k), if it is the same for all variables in `ranges`."""
    low, high = enclosure(x, ranges, effort=effort)
    if isinstance(low, float) or isinstance(high, float) or low // k != high // k:
        return None
    return low // k


def _is_nonzero(x: DimExpr) -> bool:
    low, high = enclosure(x, effort=_EFFORT)
    return low >= 1 or high <= -1


def _is_within(x: DimExpr, divisor: DimExpr) -> bool:
    """Checks that 0 <= x < divisor for all variables."""
    return _least(x) >= 0 and _least(divisor - x) >= 1


def _least(x: DimExpr) -> Bound:
    return enclosure(x, effort=_EFFORT)[0]


def _is_nonzero_atom(atom: Atom) -> bool:
    return isinstance(atom, Variable) or _is_nonzero(atom_expression(atom))


def _quotient_of_terms(term: tuple[Monomial, int], by: tuple[Monomial, int]) -> DimExpr | None:
    """Divides a term by another, if it is a multiple."""
    if term[1] % by[1]:
        return None
    powers = dict(term[0])
    for atom, exponent in by[0]:
        powers[atom] = powers.get(atom, 0) - exponent
        if powers[atom] < 0:
            return None
    return DimExpr(((tuple((a, e) for a, e in powers.items() if e), term[1] // by[1]),))


def _multiple_of_primitive(x: DimExpr, y: DimExpr) -> tuple[DimExpr | None, int]:
    """Returns (q, c) with x == q*p and y == c*p for an int c and p >= 1; (None, 1) if not found."""
    content = math.gcd(*(c for _, c in y.terms))
    primitive = divided(y, content)
    if content == 1 or not _least(primitive) >= 1:
        return None, 1
    quotient, rest = _polynomial_division(x, primitive)
    return (quotient, content) if quotient is not _ZERO and rest == 0 else (None, 1)


def _polynomial_division(x: DimExpr, y: DimExpr) -> tuple[DimExpr, DimExpr]:
    """Returns some (q, r) with x == q*y + r, r shorter than x; (0, x) if none is found.

    r is 0 only where y has a value other than 0 for all variables.
    """
    lead = y.terms[0]
    quotient, rest = _ZERO, x
    for _ in range(_DIVISION_STEPS):
        found = next((q for t in rest.terms if (q := _quotient_of_terms(t, lead))), None)
        if found is None:
            break
        quotient, rest = quotient + found, rest - found * y
        if len(rest.terms) > 2 * len(x.terms) + len(y.terms):
            return _ZERO, x
    if len(rest.terms) >= len(x.terms) or (rest == 0 and not _is_nonzero(y)):
        return _ZERO, x
    return quotient, rest


# max and min.


def _extremum(kind: OperationKind, x: DimExpr, y: DimExpr) -> DimExpr:
    sign = 1 if kind == "max" else -1
    kept: list[DimExpr] = []
    for operand in dict.fromkeys((*_flat(kind, x), *_flat(kind, y))):
        if len(kept) <= _MAX_COMPARED:
            if any(_least((other - operand) * sign) >= 0 for other in kept):
                continue
            kept = [o for o in kept if not _least((operand - o) * sign) >= 0]
        kept.append(operand)
    kept.sort(key=DimExpr.sort_key)
    result = kept.pop()
    while kept:
        result = _kept(kind, kept.pop(), result)
    return result


def _flat(kind: OperationKind, x: DimExpr) -> Iterator[DimExpr]:
    """Yields the operands of max(a, max(b, c)): a, b and c."""
    match x.terms:
        case ((((DimOperation() as atom, 1),), 1),) if atom.kind == kind:
            for operand in atom.operands:
                yield from _flat(kind, operand)
        case _:
            yield x
