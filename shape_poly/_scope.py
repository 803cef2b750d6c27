"""Scopes: sets of constraints on dimension variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shape_poly._comparisons import Comparison, as_comparison
from shape_poly._deciding import find_conflict

_SECONDS = 2.0
"""Time limit for the search of contradictions; others are not reported."""


class ContradictionError(ValueError):
    """Raised for contradictory constraints; `constraints` is a minimal set of them."""

    def __init__(self, constraints: Sequence[Comparison]) -> None:
        """Makes an error about a minimal set of contradictory constraints."""
        self.constraints = tuple(constraints)
        quoted = [f"'{c}'" for c in self.constraints]
        if len(quoted) == 1:
            problem = f"The constraint {quoted[0]} never holds"
        else:
            problem = (
                f"The constraints {', '.join(quoted[:-1])} and {quoted[-1]} contradict each other"
            )
        super().__init__(
            f"{problem}: dimension variables are integers of at least 1, and no such sizes "
            f"satisfy {'it' if len(quoted) == 1 else 'them all'}. Remove or correct "
            f"{'it' if len(quoted) == 1 else 'one of them'}."
        )

    def __reduce__(self) -> tuple[type[ContradictionError], tuple[tuple[Comparison, ...]]]:
        return type(self), (self.constraints,)


@dataclass(frozen=True, init=False)
class SymbolicScope:
    """Constraints on dimension variables, which are integers of at least 1. Immutable.

    >>> scope = SymbolicScope(["b >= 4", "mod(b, 2) == 0"])
    >>> scope.holds({"b": 6}), scope.holds({"b": 7})
    (True, False)
    """

    constraints: tuple[Comparison, ...]

    def __init__(self, constraints: Iterable[str | Comparison] = (), *, check: bool = True) -> None:
        """Parses the constraints and drops duplicates.

        Args:
          constraints: comparisons, or texts such as `"b >= 4"`.
          check: whether to search for contradictions.

        Raises:
          DimensionSyntaxError: the text of a constraint is not a comparison.
          ContradictionError: no sizes satisfy the constraints.
        """
        parsed = tuple(dict.fromkeys(as_comparison(c) for c in constraints))
        object.__setattr__(self, "constraints", parsed)
        conflict = find_conflict(parsed, time_limit=_SECONDS) if check else None
        if conflict:
            raise ContradictionError(conflict)

    def holds(self, values: Mapping[str, int]) -> bool:
        """Returns whether every constraint holds for these values.

        Raises:
          KeyError: a variable has no value.
        """
        return all(c.holds(values) for c in self.constraints)

    def variables(self) -> frozenset[str]:
        """Returns the names of all variables in the constraints."""
        return frozenset().union(*(c.variables() for c in self.constraints))

    def with_constraints(self, *constraints: str | Comparison, check: bool = True) -> SymbolicScope:
        """Returns a scope with more constraints.

        Raises:
          DimensionSyntaxError: the text of a constraint is not a comparison.
          ContradictionError: no sizes satisfy the constraints.
        """
        return SymbolicScope((*self.constraints, *constraints), check=check)

    def __str__(self) -> str:
        return ", ".join(str(c) for c in self.constraints) or "no constraints"
