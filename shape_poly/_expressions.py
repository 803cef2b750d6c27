"""Expressions over dimension variables: arithmetic and evaluation.

An expression is a sum of integer multiples of products of atoms; an atom is a variable or an
operation (floordiv, mod, max, min) that the sum cannot absorb. Equal sums of products are equal
objects, so they hash and compare structurally.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

T = TypeVar("T")


class cached_attribute(Generic[T]):
    """Descriptor that computes an attribute at its first use and caches it.

    functools.cached_property of Python 3.11 holds one lock for all instances, so threads would
    deadlock on attributes of two classes that are computed from each other. Without a lock, two
    threads may compute the same value.
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
        instance.__dict__[self._name] = value  # shadows the descriptor from now on
        return value


OperationKind: TypeAlias = Literal["floordiv", "mod", "max", "min"]
"""Operations of sizes that polynomials cannot express."""

MAX_TERMS = 10_000
MAX_DEGREE = 256
"""Maximum sum of the exponents of a product."""
MAX_DEPTH = 64
"""Maximum nesting depth of operations; functions on expressions recurse into operands."""
MAX_SIZE = 200_000
"""Maximum number of atoms and constants, operands included; each level can double it."""
MAX_COEFFICIENT = 2**128
"""Maximum coefficient: far above any size (2**63), and small enough for fast arithmetic."""
MAX_PRODUCTS = 300_000
"""Maximum number of products of terms when sums are multiplied; takes about a second."""

NOT_VARIABLES = frozenset({"floordiv", "mod", "max", "min", "_"})
"""Names of operations, and the placeholder."""


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

    @cached_attribute
    def depth(self) -> int:
        """Counts the levels of nested operations, itself included."""
        return 1 + max(o.depth for o in self.operands)

    @cached_attribute
    def size(self) -> int:
        """Counts its variables and constants, repeated ones included."""
        return sum(o.size for o in self.operands)

    @cached_attribute
    def _text(self) -> str:
        return f"{self.kind}({', '.join(str(o) for o in self.operands)})"

    @cached_attribute
    def _hash(self) -> int:
        return hash((self.kind, self.operands))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> tuple[Any, ...]:
        # Cached attributes are dropped: another process hashes strings differently.
        return DimOperation, (self.kind, self.operands)


Atom: TypeAlias = Variable | DimOperation
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]
"""Atoms with their exponents (at least 1), sorted by their text; () is the constant 1."""


def _format_monomial(monomial: Monomial) -> str:
    return "*".join(str(a) if e == 1 else f"{a}^{e}" for a, e in monomial)


def _rank_term(term: tuple[Monomial, int]) -> tuple[int, str]:
    monomial = term[0]
    return -sum(e for _, e in monomial), _format_monomial(monomial)


def _multiply(left: Monomial, right: Monomial) -> Monomial:
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
        """Converts an integer to T."""

    def add(self, left: T, right: T, /) -> T:
        """Adds two values."""

    def multiply(self, left: T, right: T, /) -> T:
        """Multiplies two values."""

    def floordiv(self, left: T, right: T, /) -> T:
        """Divides and rounds down, like Python's //."""

    def mod(self, left: T, right: T, /) -> T:
        """Returns the remainder with the divisor's sign, like Python's %."""

    def maximum(self, left: T, right: T, /) -> T:
        """Returns the greater value."""

    def minimum(self, left: T, right: T, /) -> T:
        """Returns the lesser value."""


@dataclass(frozen=True, repr=False, eq=False)
class DimExpr:
    """A dimension: a sum of integer multiples of products of variables and operations.

    Built with `variable`, `constant`, the operators + - * // % ** and `operation` below, or from
    text with `shape_poly.parse_dimension`. Immutable and hashable; equal to an int if it is
    that constant.  `//`, `%` and `operation` simplify by rules that hold for all integers, or for
    all variables of at least 1.  An expression has no value where a divisor is 0; it may get one
    if simplification cancels that part.

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
        """Makes an expression of one variable.

        Raises:
          ValueError: the name is not an identifier, or is the name of an operation.
        """
        if not isinstance(name, str) or not name.isidentifier() or name in NOT_VARIABLES:
            raise ValueError(f"a dimension variable needs a name like 'b' or 'n_2', not {name!r}")
        return atom_expression(Variable(name))

    @staticmethod
    def constant(value: int) -> DimExpr:
        """Makes an expression of an integer."""
        return DimExpr((((), value),)) if value else DimExpr(())

    @staticmethod
    def sum(parts: Iterable[Dim]) -> DimExpr:
        """Adds many dimensions, faster than by repeated `+`."""
        return DimExpr.of_terms(term for part in parts for term in DimExpr.of(part).terms)

    @staticmethod
    def of_terms(terms: Iterable[tuple[Monomial, int]]) -> DimExpr:
        """Adds terms; monomials may repeat."""
        summed: dict[Monomial, int] = {}
        for monomial, coefficient in terms:
            summed[monomial] = summed.get(monomial, 0) + coefficient
        return DimExpr._normalize(summed)

    @staticmethod
    def of(value: Dim) -> DimExpr:
        """Converts a dimension to an expression; raises a TypeError for other types."""
        return value if isinstance(value, DimExpr) else DimExpr.constant(as_size(value))

    @staticmethod
    def _normalize(terms: Mapping[Monomial, int]) -> DimExpr:
        nonzero = [(m, c) for m, c in terms.items() if c]
        if len(nonzero) > MAX_TERMS:
            raise OverflowError(f"a dimension of more than {MAX_TERMS} terms")
        if any(abs(c) > MAX_COEFFICIENT for _, c in nonzero):
            raise OverflowError("a dimension with a number of more than 128 bits")
        return DimExpr(tuple(sorted(nonzero, key=_rank_term)))

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
                product = _multiply(left, right)
                terms[product] = terms.get(product, 0) + a * b
            if len(terms) > MAX_TERMS:
                raise OverflowError(f"a dimension of more than {MAX_TERMS} terms")
        return DimExpr._normalize(terms)

    def __pow__(self, exponent: int) -> DimExpr:
        if not _is_integer(exponent):
            return NotImplemented
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

    @cached_attribute
    def _hash(self) -> int:
        value = self.constant_value()
        return hash(self.terms) if value is None else hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Cached attributes are dropped, as in DimOperation.
        return DimExpr, (self.terms,)

    def constant_value(self) -> int | None:
        """Returns the value of a constant, or None if the expression depends on a variable."""
        if not self.terms:
            return 0
        (monomial, coefficient), *rest = self.terms
        return coefficient if not rest and not monomial else None

    def as_operation(self) -> DimOperation | None:
        """Returns the operation if the expression is just one, like `mod(b, 2)`; else None."""
        match self.terms:
            case ((((DimOperation() as atom, 1),), 1),):
                return atom
        return None

    def is_variable(self) -> bool:
        """Returns whether the expression is just one variable, like `b`."""
        match self.terms:
            case ((((Variable(), 1),), 1),):
                return True
        return False

    def linear_operations(self) -> list[tuple[DimOperation, int]]:
        """Returns the terms that are an integer times an operation, as (operation, integer)."""
        pairs = []
        for monomial, coefficient in self.terms:
            match monomial:
                case ((DimOperation() as atom, 1),):
                    pairs.append((atom, coefficient))
        return pairs

    def variables(self) -> frozenset[str]:
        """Returns the names of all variables in the expression."""
        return self._variables

    @cached_attribute
    def _variables(self) -> frozenset[str]:
        names: set[str] = set()
        for atom in self._iter_own_atoms():
            if isinstance(atom, Variable):
                names.add(atom.name)
            else:
                names.update(*(o.variables() for o in atom.operands))
        return frozenset(names)

    def _iter_own_atoms(self) -> Iterable[Atom]:
        return (atom for monomial, _ in self.terms for atom, _ in monomial)

    @cached_attribute
    def depth(self) -> int:
        """Counts the levels of nested operations; 0 without any."""
        return max(
            (a.depth for a in self._iter_own_atoms() if isinstance(a, DimOperation)), default=0
        )

    @cached_attribute
    def size(self) -> int:
        """Counts its variables and constants, repeated ones included."""
        atoms = sum(a.size if isinstance(a, DimOperation) else 1 for a in self._iter_own_atoms())
        return len(self.terms) + atoms

    def sort_key(self) -> tuple[int, int, int, str]:
        """Returns a key that sorts simple expressions first, and constants last.

        There is no `<`, because it would look like a comparison of the values.
        """
        value = self.constant_value()
        if value is not None:
            return MAX_DEPTH + 1, value, 0, ""
        return self.depth, len(self.terms), self.size, str(self)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Computes the value of the expression for these values of the variables.

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
                    value = _INTEGERS[atom.kind](left.evaluate(values), right.evaluate(values))
                product *= value if exponent == 1 else value**exponent
            total += product
        return total

    def evaluate_with(self, values: Mapping[str, T], algebra: Algebra[T]) -> T:
        """Computes the value in another algebra than integers; equal operations are computed once.

        Args:
          values: the values of the variables.
          algebra: the arithmetic to compute with, for instance that of tensors.

        Raises:
          KeyError: a variable has no value.
        """
        result: T = _Evaluator(values, algebra).evaluate(self)
        return result

    def substitute(self, dimensions: Mapping[str, Dim]) -> Dim:
        """Replaces variables by dimensions and simplifies the result; other variables stay.

        Raises:
          ZeroDivisionError: a divisor becomes the constant 0.
          OverflowError: the result is too large.

        >>> b = DimExpr.variable("b")
        >>> (b // 2 + 1).substitute({"b": 4 * b}), (b // 2).substitute({"b": 7})
        (DimExpr('2*b + 1'), 3)
        """
        values = {name: DimExpr.variable(name) for name in self.variables()}
        values |= {name: DimExpr.of(dimension) for name, dimension in dimensions.items()}
        return as_dim(self.evaluate_with(values, _ExpressionAlgebra()))

    def simplify(self) -> Dim:
        """Simplifies every operation; `parse_dimension` keeps operations as written.

        Raises:
          ZeroDivisionError: a divisor is always 0.
          OverflowError: the result is too large.

        >>> from shape_poly import parse_dimension
        >>> parse_dimension("mod(35*b, -2)").simplify()
        DimExpr('- mod(b, 2)')
        """
        return self.substitute({})

    @cached_attribute
    def _text(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = _format_monomial(monomial)
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


def _is_integer(value: object) -> bool:
    return hasattr(value, "__index__")


def _is_dim(value: object) -> bool:
    return isinstance(value, DimExpr) or _is_integer(value)


def as_size(value: Any) -> int:
    """Converts a Python or NumPy integer to an int; raises a TypeError for other types."""
    try:
        return operator.index(value)
    except TypeError as e:
        raise TypeError(
            "A dimension is an integer or a DimExpr; parse_dimension makes one from text. "
            f"Got: {value!r} of type {type(value).__name__}"
        ) from e


def as_dim(dimension: Dim) -> Dim:
    """Converts integers and constant expressions to int; returns other expressions unchanged."""
    if not isinstance(dimension, DimExpr):
        return as_size(dimension)
    value = dimension.constant_value()
    return dimension if value is None else value


def atom_expression(atom: Atom) -> DimExpr:
    """Makes an expression of one atom, without simplification."""
    return DimExpr(((((atom, 1),), 1),))


def raw_operation(kind: OperationKind, left: DimExpr, right: DimExpr) -> DimExpr:
    """Makes an expression of one operation, without simplification."""
    return atom_expression(DimOperation(kind, (left, right)))


_INTEGERS: Mapping[OperationKind, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}


def variables_of(dimension: Dim) -> frozenset[str]:
    """Returns the names of all variables in a dimension; an integer has none.

    >>> from shape_poly import parse_dimension
    >>> sorted(variables_of(parse_dimension("b + 2*n"))), variables_of(3)
    (['b', 'n'], frozenset())
    """
    return dimension.variables() if isinstance(dimension, DimExpr) else frozenset()


def operation(kind: OperationKind, left: Dim, right: Dim, *, simplify: bool = True) -> DimExpr:
    """Makes the expression `kind(left, right)`; two constants are folded.

    Args:
      kind: the operation.
      left: the dividend of floordiv and mod.
      right: the divisor of floordiv and mod.
      simplify: True to look for a simpler equal expression; False to keep the operation.

    Raises:
      ValueError: there is no such kind.
      ZeroDivisionError: the divisor of floordiv or mod is the constant 0.
      OverflowError: the expression would be too large.
    """
    if kind not in _INTEGERS:
        raise ValueError(f"kind must be one of {', '.join(_INTEGERS)}. Got: {kind!r}")
    x, y = DimExpr.of(left), DimExpr.of(right)
    a, b = x.constant_value(), y.constant_value()
    if kind in ("floordiv", "mod") and b == 0:
        raise ZeroDivisionError(f"{kind}({x}, 0)")
    if a is not None and b is not None:
        return DimExpr.constant(_INTEGERS[kind](a, b))
    if simplify:
        # Simplification builds expressions and is imported late, because each needs the other.
        from shape_poly._simplification import simplify_operation

        try:
            return simplify_operation(kind, x, y)
        except OverflowError:
            pass  # the unsimplified form may be small enough
    return raw_operation(kind, x, y)


def iter_atoms(dimension: DimExpr) -> Iterator[Atom]:
    """Yields all variables and operations; operands come before their operation."""
    for monomial, _ in dimension.terms:
        for atom, _ in monomial:
            if isinstance(atom, DimOperation):
                for operand in atom.operands:
                    yield from iter_atoms(operand)
            yield atom


def iter_divisors(dimension: DimExpr) -> Iterator[DimExpr]:
    """Yields the divisors that depend on variables; nested ones come first."""
    for atom in iter_atoms(dimension):
        if isinstance(atom, DimOperation) and atom.kind in ("floordiv", "mod"):
            divisor = atom.operands[1]
            if divisor.constant_value() is None:
                yield divisor


class _ExpressionAlgebra:
    """Algebra of expressions: evaluation in it is substitution."""

    constant = staticmethod(DimExpr.constant)
    add, multiply = staticmethod(operator.add), staticmethod(operator.mul)
    floordiv, mod = staticmethod(operator.floordiv), staticmethod(operator.mod)
    maximum = staticmethod(functools.partial(operation, "max"))
    minimum = staticmethod(functools.partial(operation, "min"))


class _Evaluator:
    """Evaluates in one algebra; equal operations are computed once."""

    def __init__(self, values: Mapping[str, Any], algebra: Algebra[Any]) -> None:
        self._values, self._algebra = values, algebra
        self._known: dict[Atom, Any] = {}

    def evaluate(self, expression: DimExpr) -> Any:
        terms = [self._evaluate_term(monomial, c) for monomial, c in expression.terms]
        if isinstance(self._algebra, _ExpressionAlgebra):
            return DimExpr.sum(terms)
        return functools.reduce(self._algebra.add, terms) if terms else self._algebra.constant(0)

    def _evaluate_term(self, monomial: Monomial, coefficient: int) -> Any:
        factors = [
            self._evaluate_atom(atom) for atom, exponent in monomial for _ in range(exponent)
        ]
        if coefficient != 1 or not factors:
            factors.append(self._algebra.constant(coefficient))
        return functools.reduce(self._algebra.multiply, factors)

    def _evaluate_atom(self, atom: Atom) -> Any:
        if isinstance(atom, Variable):
            return self._values[atom.name]
        if atom not in self._known:
            left, right = (self.evaluate(o) for o in atom.operands)
            compute = {
                "floordiv": self._algebra.floordiv,
                "mod": self._algebra.mod,
                "max": self._algebra.maximum,
                "min": self._algebra.minimum,
            }[atom.kind]
            self._known[atom] = compute(left, right)
        return self._known[atom]
