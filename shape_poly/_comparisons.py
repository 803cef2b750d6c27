"""Comparisons of dimensions, the facts that they state, and verdicts about them."""

from __future__ import annotations

import functools
import operator as python_operators
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, cast

from shape_poly._expressions import Dim, DimExpr, as_dim, iter_divisors, variables_of
from shape_poly._parser import DimensionSyntaxError, check_is_text, parse_dimension

ComparisonOperator: TypeAlias = Literal[">=", "<=", "==", ">", "<", "!="]
"""Operators of a Comparison, as written in constraints."""

COMPARE: Mapping[ComparisonOperator, Callable[[int, int], bool]] = {
    ">=": python_operators.ge,
    "<=": python_operators.le,
    "==": python_operators.eq,
    ">": python_operators.gt,
    "<": python_operators.lt,
    "!=": python_operators.ne,
}
_NEGATED: Mapping[ComparisonOperator, ComparisonOperator] = {
    ">=": "<",
    "<=": ">",
    "==": "!=",
    ">": "<=",
    "<": ">=",
    "!=": "==",
}
_OPERATOR = re.compile(r"[<>=!]+")


class ComparisonSyntaxError(DimensionSyntaxError):
    """Raised for text that is not a comparison of dimensions.

    Attributes:
      text: the whole text.
      column: the column of the problem, from 1.
      problem: the description of the problem.
    """

    subject: ClassVar[str] = "constraint"
    help: ClassVar[str] = (
        "A constraint compares two dimensions by >=, <=, ==, >, < or !=, as 'b >= 5' or "
        "'mod(b, 8) == 0'."
    )


@dataclass(frozen=True)
class Comparison:
    """Comparison of two dimensions, such as `b >= 5`; its text is in JAX's syntax.

    Raises:
      ValueError: there is no such operator.
      TypeError: a side is not a dimension.

    >>> str(parse_comparison("2*b > floordiv(h, 2)"))
    '2*b > floordiv(h, 2)'
    """

    operator: ComparisonOperator
    left: Dim
    right: Dim

    def __post_init__(self) -> None:
        if self.operator not in COMPARE:
            raise ValueError(
                f"operator must be one of {', '.join(COMPARE)}. Got: {self.operator!r}"
            )
        # Normal forms make equal comparisons equal objects.
        for name, side in (("left", self.left), ("right", self.right)):
            object.__setattr__(self, name, as_dim(side))

    def holds(self, values: Mapping[str, int]) -> bool:
        """Returns whether it holds for these values; False if a divisor is 0.

        Raises:
          KeyError: a variable has no value.
        """
        try:
            left, right = _evaluate(self.left, values), _evaluate(self.right, values)
        except ZeroDivisionError:
            return False
        return COMPARE[self.operator](left, right)

    def variables(self) -> frozenset[str]:
        """Returns the names of all variables of both sides."""
        return variables_of(self.left) | variables_of(self.right)

    def negate(self) -> Comparison:
        """Returns the opposite comparison; if a divisor is 0, neither holds."""
        return Comparison(_NEGATED[self.operator], self.left, self.right)

    def substitute(self, dimensions: Mapping[str, Dim]) -> Comparison:
        """Replaces variables by dimensions.

        Raises:
          ZeroDivisionError: a divisor becomes the constant 0.
        """
        left, right = (
            side.substitute(dimensions) if isinstance(side, DimExpr) else side
            for side in (self.left, self.right)
        )
        return Comparison(self.operator, left, right)

    def difference(self) -> Dim:
        """Subtracts the right side from the left side."""
        return as_dim(DimExpr.of(self.left) - self.right)

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


def _evaluate(dimension: Dim, values: Mapping[str, int]) -> int:
    return dimension if isinstance(dimension, int) else dimension.evaluate(values)


NEVER = Comparison(">=", 0, 1)
"""A comparison that holds for no sizes."""


@dataclass(frozen=True)
class Proven:
    """Verdict that the comparison holds for all sizes that satisfy the constraints."""


@dataclass(frozen=True)
class Refuted:
    """Verdict that the comparison fails for these sizes, which satisfy the constraints."""

    counterexample: Mapping[str, int]


@dataclass(frozen=True)
class Unknown:
    """Verdict that neither a proof nor a counterexample was found, with the reason."""

    reason: str


Verdict: TypeAlias = Proven | Refuted | Unknown
"""Result of trying to prove a comparison."""


def parse_comparison(text: str) -> Comparison:
    """Reads a comparison from text.

    Raises:
      DimensionSyntaxError: the text is not a comparison; its column refers to the whole text.
      TypeError: it is not text.

    >>> parse_comparison("b >= 5").holds({"b": 4})
    False
    """
    check_is_text(text, ComparisonSyntaxError)
    operators = list(_OPERATOR.finditer(text))
    if not operators:
        raise ComparisonSyntaxError(text, len(text) + 1, "no comparison found")
    first = operators[0]
    if first.group() not in COMPARE:
        raise ComparisonSyntaxError(
            text, first.start() + 1, f"{first.group()!r} is not a comparison operator"
        )
    if len(operators) > 1:
        raise ComparisonSyntaxError(
            text, operators[1].start() + 1, "expected one comparison, but found a second one"
        )
    left = _parse_side(text, 0, first.start())
    right = _parse_side(text, first.end(), len(text))
    comparison = Comparison(cast(ComparisonOperator, first.group()), left, right)
    try:
        make_difference_fact(comparison)
    except OverflowError as e:
        raise ComparisonSyntaxError(text, 1, f"its sides differ by {e}") from e
    return comparison


def _parse_side(text: str, start: int, end: int) -> Dim:
    try:
        return parse_dimension(text[start:end])
    except DimensionSyntaxError as e:
        raise ComparisonSyntaxError(text, start + e.column, e.problem) from e


def as_comparison(constraint: str | Comparison) -> Comparison:
    """Returns a comparison as it is, and parses a text once; raises a TypeError for other types."""
    if isinstance(constraint, Comparison):
        return constraint
    check_is_text(constraint, ComparisonSyntaxError)
    return _parse_once(constraint)


_parse_once = functools.lru_cache(maxsize=1024)(parse_comparison)


Relation: TypeAlias = Literal[">=", "==", "!="]


@dataclass(frozen=True)
class Fact:
    """Comparison of an expression with 0."""

    relation: Relation
    expression: DimExpr

    def constant(self) -> bool | None:
        """Returns whether the fact holds, or None if that depends on the variables."""
        value = self.expression.constant_value()
        return None if value is None else self.holds_for(value)

    def holds_for(self, value: int) -> bool:
        """Returns whether the fact holds if the expression has this value."""
        if self.relation == ">=":
            return value >= 0
        return (value == 0) == (self.relation == "==")


def list_facts(*comparisons: Comparison) -> list[Fact]:
    """Returns the facts that the comparisons state, including that no divisor is 0."""
    facts: list[Fact] = []
    for comparison in comparisons:
        sides = (DimExpr.of(comparison.left), DimExpr.of(comparison.right))
        divisors = dict.fromkeys(d for side in sides for d in iter_divisors(side))
        facts += [*(Fact("!=", d) for d in divisors), make_difference_fact(comparison)]
    return facts


def make_difference_fact(comparison: Comparison) -> Fact:
    """Returns the fact about the difference of the sides; it does not cover divisors."""
    left, right = DimExpr.of(comparison.left), DimExpr.of(comparison.right)
    match comparison.operator:
        case ">=":
            return Fact(">=", left - right)
        case ">":
            return Fact(">=", left - right - 1)
        case "<=":
            return Fact(">=", right - left)
        case "<":
            return Fact(">=", right - left - 1)
        case "==" | "!=" as relation:
            return Fact(relation, left - right)
