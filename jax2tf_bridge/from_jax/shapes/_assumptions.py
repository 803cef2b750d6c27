"""Assumptions on sizes, their form for JAX, and functions that are traced under them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge.from_jax._symbols import comparison_to_jax, dim_from_jax, is_single_variable
from jax2tf_bridge.from_jax.shapes._options import POLYMORPHIC, SizeWords
from shape_poly import (
    Comparison,
    Dim,
    DimExpr,
    DimOperation,
    Proven,
    SymbolicScope,
    Variable,
    prove,
)


@dataclass(frozen=True)
class JaxFact:
    """Comparison that follows from the scope, in the terms of JAX's variables.

    Attributes:
      form: index of the text that JAX receives, among those of `comparison_to_jax`.
    """

    comparison: Comparison
    form: int = 0


@dataclass(frozen=True)
class Requirement:
    """Comparison that the sizes must satisfy, although the scope does not imply it.

    Attributes:
      comparison: the weakest constraint that answers the question.
      question: the question of tracing, as the comparison that should hold.
      counterexample: sizes for which it does not hold; empty if none was found.
      source: the user's line.
    """

    comparison: Comparison
    question: Comparison = field(compare=False)
    counterexample: Mapping[str, int] = field(compare=False)
    source: str | None = field(compare=False)


@dataclass(frozen=True)
class SizeAssumptions:
    """The user's constraints on sizes, further requirements, and facts that follow from them.

    Attributes:
      scope: the user's constraints.
      constraints: the texts of the user's constraints.
      requirements: the requirements, in the order of their discovery.
      facts: the facts, in the order of their discovery.
      progressions: variables that JAX receives as expressions: if mod(b, 2) == 0, JAX receives
        2*b_over_2 for b. JAX can decide more about these, but its messages use the new variables.
    """

    scope: SymbolicScope
    constraints: tuple[str, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    facts: tuple[JaxFact, ...] = ()
    progressions: tuple[Progression, ...] = ()

    @property
    def full_scope(self) -> SymbolicScope:
        """Scope of the user's constraints and the requirements."""
        required = [r.comparison for r in self.requirements]
        return self.scope.with_constraints(*required, check=False)

    def requirement_texts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(r.comparison) for r in self.requirements))

    def fact_comparisons(self) -> frozenset[Comparison]:
        return frozenset(fact.comparison for fact in self.facts)

    def with_requirement(self, requirement: Requirement) -> SizeAssumptions:
        """Adds a requirement, and drops requirements that the others imply."""
        requirements = [*self.requirements, requirement]
        for old in self.requirements:
            remaining = [r for r in requirements if r is not old]
            scope = self.scope.with_constraints(*(r.comparison for r in remaining), check=False)
            if isinstance(prove(old.comparison, scope, time_limit=0.5), Proven):
                requirements = remaining
        # JAX replaces a variable in all terms, so facts no longer match and JAX asks again.
        comparison = requirement.comparison
        sides = (comparison.left, comparison.right)
        is_replacement = comparison.operator == "==" and any(map(is_single_variable, sides))
        facts = () if is_replacement else self.facts
        return replace(self, requirements=tuple(requirements), facts=facts)

    def with_facts(self, comparisons: Iterable[Comparison]) -> SizeAssumptions:
        """Adds comparisons that follow from the rest, in the terms of JAX's variables."""
        known = self.fact_comparisons()
        new = [JaxFact(c) for c in dict.fromkeys(comparisons) if c not in known]
        return replace(self, facts=(*self.facts, *new))

    def with_progression(self, variables: frozenset[str]) -> SizeAssumptions | None:
        """Adds a progression for one more variable; returns None if none is left.

        `variables` are those of the arguments, whose names are taken. The facts are dropped: they
        contain the variable, and JAX asks again.
        """
        known_names = {p.name for p in self.progressions}
        taken_names = variables | self.full_scope.variables()
        for progression in find_progressions(self.full_scope.constraints):
            if progression.name not in known_names and progression.counter not in taken_names:
                return replace(self, facts=(), progressions=(*self.progressions, progression))
        return None

    def to_jax(self, dimension: Dim) -> Dim:
        """Converts a dimension to JAX's variables."""
        if isinstance(dimension, int) or not self.progressions:
            return dimension
        return dimension.substitute({p.name: p.in_terms_of_counter() for p in self.progressions})

    def from_jax(self, dimension: Dim) -> Dim:
        """Converts a dimension to the user's variables."""
        if isinstance(dimension, int) or not self.progressions:
            return dimension
        for progression in self.progressions:
            dimension = progression.in_terms_of_variable(dimension)
        return dimension.simplify()

    def shape_from_jax(self, aval: Any) -> tuple[Dim, ...]:
        """Returns the shape of JAX's aval in the user's variables."""
        return tuple(self.from_jax(dim_from_jax(d)) for d in aval.shape)

    def comparison_from_jax(self, comparison: Comparison) -> Comparison:
        """Converts a comparison to the user's variables."""
        left, right = self.from_jax(comparison.left), self.from_jax(comparison.right)
        return Comparison(comparison.operator, left, right)

    def variables_of_jax(self, variables: frozenset[str]) -> frozenset[str]:
        """Returns the names of these variables in JAX's messages."""
        counters = {p.name: p.counter for p in self.progressions}
        return frozenset(counters.get(v, v) for v in variables)

    def scope_of_jax(self) -> SymbolicScope:
        """Returns the scope of everything, in JAX's variables."""
        constraints = [self._constraint_to_jax(c) for c in self.full_scope.constraints]
        return SymbolicScope(
            [c for c in constraints if not isinstance(c.difference(), int)], check=False
        )

    def _constraint_to_jax(self, constraint: Comparison) -> Comparison:
        left, right = self.to_jax(constraint.left), self.to_jax(constraint.right)
        converted = Comparison(constraint.operator, left, right)
        is_replaced = (left, right) != (constraint.left, constraint.right)
        return _move_variable_left(converted) if is_replaced else converted

    def new_scope(self) -> jax_export.SymbolicScope:
        """Makes JAX's scope with the constraints of `constraints_of_jax`."""
        return jax_export.SymbolicScope(self.constraints_of_jax())

    def constraints_of_jax(self) -> tuple[str, ...]:
        """Returns all constraints as texts for JAX's scope.

        Constraints that JAX cannot combine with the others are left out; JAX then asks again.
        """
        facts = self._list_facts()
        # JAX uses only the first of two equalities about one term, and counts a remainder of 0 as
        # an equality about the quotient. So the order of constraints matters.
        best = _select_accepted(facts)
        if len(best.texts) < len(facts):
            best = max(
                best,
                _select_accepted(sorted(facts, key=_rank_fact)),
                key=lambda accepted: len(accepted.texts),
            )
        return _resolve_equalities(best)

    def constraints_to_try(self) -> Iterator[tuple[str, ...]]:
        """Yields constraints to try in turn: all of them, then those of `constraints_of_jax`."""
        firsts = _list_first_forms(_list_forms(self._list_facts()))
        if firsts is not None and not any(map(_needs_resolution, firsts)):
            yield firsts
        yield self.constraints_of_jax()

    def _list_facts(self) -> list[JaxFact]:
        facts = [*map(JaxFact, self.scope_of_jax().constraints), *self.facts]
        # Bounds come first: JAX must know that a divisor is not 0 before it reads a quotient.
        facts.sort(key=lambda fact: fact.comparison.operator == "==")
        return facts


def _move_variable_left(comparison: Comparison) -> Comparison:
    """Rewrites an equality with a variable alone on the left side, if possible.

    JAX replaces the left side of an equality by the right side. With 3*b_over_3 == c, an argument
    would have c rows, from which JAX cannot find b_over_3. c == 3*b_over_3 avoids that.
    """
    difference = comparison.difference()
    if comparison.operator != "==" or isinstance(difference, int):
        return comparison
    content = math.gcd(*(coefficient for _, coefficient in difference.terms))
    for monomial, coefficient in difference.terms:
        term = DimExpr(((monomial, 1),))
        value = (coefficient * term - difference) // coefficient
        is_alone = abs(coefficient) == content and not term.variables() & value.variables()
        if is_single_variable(term) and is_alone:
            return Comparison("==", term, value)
    return comparison


def _rank_fact(fact: JaxFact) -> tuple[bool, bool, int]:
    comparison = fact.comparison
    is_remainder = _read_remainder(comparison) is not None
    return comparison.operator == "==", is_remainder, len(str(comparison))


@dataclass(frozen=True)
class _AcceptedConstraints:
    """Constraints that JAX accepts together, and JAX's scope of them."""

    texts: tuple[str, ...]
    scope: jax_export.SymbolicScope


def _select_accepted(facts: Sequence[JaxFact]) -> _AcceptedConstraints:
    """Lists texts of facts that JAX accepts together, each in the first form that it accepts."""
    forms = _list_forms(facts)
    firsts = _list_first_forms(forms)
    # JAX usually accepts the first forms of all facts, so a single scope suffices.
    accepted = _try_constraints(firsts) if firsts is not None else None
    if accepted is not None:
        return accepted
    best = _AcceptedConstraints((), jax_export.SymbolicScope())
    for form in forms:
        for text in form:
            accepted = _try_constraints((*best.texts, text))
            if accepted is not None:
                best = accepted
                break
    return best


def _list_forms(facts: Sequence[JaxFact]) -> list[Sequence[str]]:
    return [comparison_to_jax(fact.comparison)[fact.form :] for fact in facts]


def _list_first_forms(forms: Sequence[Sequence[str]]) -> tuple[str, ...] | None:
    return tuple(form[0] for form in forms) if all(forms) else None


def _resolve_equalities(accepted: _AcceptedConstraints) -> tuple[str, ...]:
    """Applies the replacements of equalities to each other's right sides.

    JAX replaces a term only once: with a == b and b == c, it replaces a by b, but not by c.
    """
    for _ in accepted.texts:
        resolved = tuple(_resolve(text, accepted.scope) for text in accepted.texts)
        if resolved == accepted.texts:
            break
        better = _try_constraints(resolved)
        if better is None:
            break
        accepted = better
    return accepted.texts


def _needs_resolution(text: str) -> bool:
    _, equals, right = text.partition(" == ")
    return bool(equals) and not right.isdecimal()


def _resolve(text: str, scope: jax_export.SymbolicScope) -> str:
    if not _needs_resolution(text):
        return text
    left, _, right = text.partition(" == ")
    (replaced,) = jax_export.symbolic_shape(right, scope=scope)
    # The replacement of a term must not contain the term.
    return text if left in str(replaced) else f"{left} == {replaced}"


def _try_constraints(constraints: tuple[str, ...]) -> _AcceptedConstraints | None:
    # JAX rejects constraints with errors of many types, even a bare AssertionError. It will ask
    # about the constraints that are left out here.
    try:
        return _AcceptedConstraints(constraints, jax_export.SymbolicScope(constraints))
    except Exception:
        return None


@dataclass(frozen=True)
class Progression:
    """Variable b with a known mod(b, factor) == remainder, written as an expression for JAX.

    JAX decides more about 2*b_over_2 or 2*b_over_2 - 1 than about b with a constraint.
    """

    name: str
    factor: int
    remainder: int = 0

    @property
    def counter(self) -> str:
        """Name of the variable that counts the steps; at least 1, like all variables."""
        return f"{self.name}_over_{self.factor}"

    def in_terms_of_counter(self) -> DimExpr:
        """Returns the expression that JAX receives for the variable."""
        return self.factor * DimExpr.variable(self.counter) - self._shortfall

    def in_terms_of_variable(self, dimension: DimExpr) -> DimExpr:
        """Replaces the counter in JAX's dimension by the user's variable."""
        multiple = DimExpr.variable(self.name) + self._shortfall
        quotient = {self.counter: multiple // self.factor}
        counter = Variable(self.counter), 1
        parts: list[Dim] = []
        for monomial, coefficient in dimension.terms:
            # 2*b_over_2 becomes the user's b, not 2*floordiv(b, 2).
            is_multiple = counter in monomial and coefficient % self.factor == 0
            if is_multiple:
                monomial = tuple(power for power in monomial if power != counter)
                coefficient //= self.factor
            part = DimExpr(((monomial, coefficient),)).substitute(quotient)
            parts.append(part * multiple if is_multiple else part)
        return DimExpr.sum(parts)

    def __str__(self) -> str:
        return f"{self.name} as {self.in_terms_of_counter()}"

    @property
    def _shortfall(self) -> int:
        # The next multiple of the factor, minus the variable.
        return -self.remainder % self.factor


def find_progressions(constraints: Sequence[Comparison]) -> Iterator[Progression]:
    """Yields the progression of each variable with a known remainder."""
    for comparison in constraints:
        known = _read_remainder(comparison)
        if known is None:
            continue
        operation, remainder = known
        dividend, divisor = operation.operands
        factor = divisor.constant_value()
        if is_single_variable(dividend) and factor is not None and factor > 1:
            yield Progression(str(dividend), factor, remainder)


def _read_remainder(comparison: Comparison) -> tuple[DimOperation, int] | None:
    """Returns the mod and its value if a comparison states one, else None."""
    left, right = comparison.left, comparison.right
    operation = left.as_operation() if isinstance(left, DimExpr) else None
    if comparison.operator != "==" or operation is None or operation.kind != "mod":
        return None
    return (operation, right) if isinstance(right, int) else None


@dataclass(frozen=True)
class RowWise:
    """Function of a batch, written as jax.vmap of a function of one row.

    Attributes:
      code: the code of the function.
      trace: traces it, as in TracedFunction.
      is_same: runs both functions at random numbers, and returns whether the results are equal;
        False if the arguments are too large for that.
    """

    code: str
    trace: Callable[[SizeAssumptions, jax_export.SymbolicScope], jax.stages.Traced]
    is_same: Callable[[], bool]


@dataclass(frozen=True)
class TracedFunction:
    """Function that can be traced repeatedly, with open sizes or at concrete sizes.

    Attributes:
      name: the name, for messages.
      variables: the dimension variables.
      trace: traces it under assumptions on the sizes, in JAX's scope of them; raises JAX's errors.
      trace_at: traces it at concrete sizes; called if an error alone does not show the problem.
      example: the sizes of the variables in the actual arguments, as far as they are known.
      source: the place of its definition, for errors without a line.
      words: the names of the caller's arguments, for errors.
      is_gradient: whether it is the VJP of a function. Its errors are JAX's, and an error that also
        occurs at concrete sizes is not about sizes.
      row_wise: rewrites of it with jax.vmap.
    """

    name: str
    variables: frozenset[str]
    trace: Callable[[SizeAssumptions, jax_export.SymbolicScope], jax.stages.Traced]
    trace_at: Callable[[Mapping[str, int]], jax.stages.Traced]
    example: Mapping[str, int]
    source: str | None = None
    words: SizeWords = POLYMORPHIC
    is_gradient: bool = False
    row_wise: tuple[RowWise, ...] = ()
