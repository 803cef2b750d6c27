"""Assumptions on sizes while a function is traced, and how JAX receives them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jax import export as jax_export

from jax2tf_bridge.from_jax._symbols import comparison_to_jax, dim_from_jax, is_variable
from shape_poly import Comparison, Dim, DimExpr, DimOperation, Proven, SymbolicScope, prove


@dataclass(frozen=True)
class JaxFact:
    """A comparison that follows from the scope, in JAX's own words.

    Attributes:
      form: index of the constraint text that is passed to JAX.
    """

    comparison: Comparison
    form: int = 0


@dataclass(frozen=True)
class Requirement:
    """A comparison that has to hold for the sizes, though the scope does not say it.

    Attributes:
      comparison: the weakest constraint that answers the question.
      question: what tracing asked, with the answer that is wanted.
      counterexample: sizes for which it does not hold; empty if none was found.
      source: the user's line.
    """

    comparison: Comparison
    question: Comparison = field(compare=False)
    counterexample: Mapping[str, int] = field(compare=False)
    source: str | None = field(compare=False)


@dataclass(frozen=True)
class SizeAssumptions:
    """Constraints on the sizes by the user, requirements beside them, and facts that follow.

    Attributes:
      scope: the constraints that the user wrote.
      constraints: the same as texts, in the user's words.
      requirements: in the order in which they were found.
      facts: likewise.
      progressions: variables that JAX gets in terms of others: b, of which mod(b, 2) == 0 is
        known, as 2*b_over_2. JAX decides more about these, but its messages are in their terms.
    """

    scope: SymbolicScope
    constraints: tuple[str, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    facts: tuple[JaxFact, ...] = ()
    progressions: tuple[Progression, ...] = ()

    @property
    def full_scope(self) -> SymbolicScope:
        """Constraints of the user together with the requirements."""
        required = [r.comparison for r in self.requirements]
        return self.scope.with_constraints(*required, check=False)

    def requirement_texts(self) -> tuple[str, ...]:
        """Writes the requirements as constraints."""
        return tuple(dict.fromkeys(str(r.comparison) for r in self.requirements))

    def with_requirement(self, requirement: Requirement) -> SizeAssumptions:
        """Adds a requirement, and drops those that follow from it and the others."""
        kept = [*self.requirements, requirement]
        for known in self.requirements:
            others = [r for r in kept if r is not known]
            scope = self.scope.with_constraints(*(r.comparison for r in others), check=False)
            if isinstance(prove(known.comparison, scope, time_limit=0.5), Proven):
                kept = others
        # A variable that is replaced leaves no term of the facts as it was: JAX will ask again.
        facts = () if _replaces_a_variable(requirement.comparison) else self.facts
        return replace(self, requirements=tuple(kept), facts=facts)

    def with_facts(self, comparisons: Iterable[Comparison]) -> SizeAssumptions:
        """Adds comparisons that follow from the rest, in JAX's own words."""
        known = {f.comparison for f in self.facts}
        new = [JaxFact(c) for c in dict.fromkeys(comparisons) if c not in known]
        return replace(self, facts=(*self.facts, *new))

    def with_progression(self, variables: frozenset[str]) -> SizeAssumptions | None:
        """Adds one more variable as a progression; None if there is no further one.

        `variables` are those of the arguments, whose names are taken. The facts go, since they are
        in terms of the variable: JAX will ask again.
        """
        known = {p.name for p in self.progressions}
        taken = variables | self.full_scope.variables()
        for found in progressions(self.full_scope.constraints):
            if found.name not in known and found.counter not in taken:
                return replace(self, facts=(), progressions=(*self.progressions, found))
        return None

    def to_jax(self, dimension: Dim) -> Dim:
        """Writes a dimension in terms of the variables that JAX gets."""
        if isinstance(dimension, int) or not self.progressions:
            return dimension
        return dimension.substitute({p.name: p.in_terms_of_counter() for p in self.progressions})

    def from_jax(self, dimension: Dim) -> Dim:
        """Writes a dimension in terms of the user's variables."""
        if isinstance(dimension, int) or not self.progressions:
            return dimension
        for progression in self.progressions:
            dimension = progression.in_terms_of_variable(dimension)
        return dimension.simplified()

    def shape_from_jax(self, aval: Any) -> tuple[Dim, ...]:
        """Reads the shape of a value of JAX's in terms of the user's variables."""
        return tuple(self.from_jax(dim_from_jax(d)) for d in aval.shape)

    def comparison_from_jax(self, comparison: Comparison) -> Comparison:
        """Writes a comparison in terms of the user's variables."""
        left, right = self.from_jax(comparison.left), self.from_jax(comparison.right)
        return Comparison(comparison.operator, left, right)

    def variables_of_jax(self, variables: frozenset[str]) -> frozenset[str]:
        """Returns the names that stand for these variables in JAX's messages."""
        counters = {p.name: p.counter for p in self.progressions}
        return frozenset(counters.get(v, v) for v in variables)

    def scope_of_jax(self) -> SymbolicScope:
        """Collects all of it, in terms of the variables that JAX gets."""
        constraints = [self._constraint_to_jax(c) for c in self.full_scope.constraints]
        return SymbolicScope(
            [c for c in constraints if not isinstance(c.difference(), int)], check=False
        )

    def _constraint_to_jax(self, constraint: Comparison) -> Comparison:
        left, right = self.to_jax(constraint.left), self.to_jax(constraint.right)
        told = Comparison(constraint.operator, left, right)
        replaced = (left, right) != (constraint.left, constraint.right)
        return _with_variable_left(told) if replaced else told

    def new_scope(self) -> jax_export.SymbolicScope:
        """Makes a scope of JAX's that knows all of it, as `constraints_of_jax` does."""
        return jax_export.SymbolicScope(self.constraints_of_jax())

    def constraints_of_jax(self) -> tuple[str, ...]:
        """Writes all of it for a scope of JAX's.

        What JAX cannot take beside the rest is left out: then it asks again.
        """
        told = self._told()
        # Of two equalities about one term JAX takes the first alone, and that a remainder is 0
        # counts as one about the quotient: another order may tell it more.
        best = _accepted(told)
        if len(best.texts) < len(told):
            best = max(best, _accepted(sorted(told, key=_kind)), key=lambda taken: len(taken.texts))
        return _with_resolved_equalities(best)

    def constraints_to_try(self) -> Iterator[tuple[str, ...]]:
        """Yields `constraints_of_jax`, and before them what they are if JAX takes all of it."""
        firsts = _first_forms(_forms(self._told()))
        if firsts is not None and not any(map(_has_to_be_resolved, firsts)):
            yield firsts
        yield self.constraints_of_jax()

    def _told(self) -> list[JaxFact]:
        told = [*map(JaxFact, self.scope_of_jax().constraints), *self.facts]
        # Bounds first: JAX must know that a divisor is not 0 before it comes to the quotient.
        told.sort(key=lambda fact: fact.comparison.operator == "==")
        return told


def _replaces_a_variable(comparison: Comparison) -> bool:
    sides = (comparison.left, comparison.right)
    return comparison.operator == "==" and any(map(is_variable, sides))


def _with_variable_left(comparison: Comparison) -> Comparison:
    """Rewrites an equality to say what a variable is, where it does not contain it otherwise.

    JAX replaces the left side of an equality: of 3*b_over_3 == c, it would make an argument of c
    rows, from which b_over_3 can no longer be computed. c == 3*b_over_3 leaves it.
    """
    difference = comparison.difference()
    if comparison.operator != "==" or isinstance(difference, int):
        return comparison
    content = math.gcd(*(coefficient for _, coefficient in difference.terms))
    for monomial, coefficient in difference.terms:
        term = DimExpr(((monomial, 1),))
        value = (coefficient * term - difference) // coefficient
        is_alone = abs(coefficient) == content and not term.variables() & value.variables()
        if is_variable(term) and is_alone:
            return Comparison("==", term, value)
    return comparison


def _kind(fact: JaxFact) -> tuple[bool, bool, int]:
    comparison = fact.comparison
    is_remainder = known_remainder(comparison) is not None
    return comparison.operator == "==", is_remainder, len(str(comparison))


@dataclass(frozen=True)
class _Taken:
    """Constraints that JAX takes together, and a scope of JAX's that has taken them."""

    texts: tuple[str, ...]
    scope: jax_export.SymbolicScope


def _accepted(facts: Sequence[JaxFact]) -> _Taken:
    """Lists texts of the facts that JAX takes together, each in the first form that it takes."""
    forms = _forms(facts)
    firsts = _first_forms(forms)
    # Mostly, and found by one scope: JAX takes them one after another.
    taken = _taken(firsts) if firsts is not None else None
    if taken is not None:
        return taken
    best = _Taken((), jax_export.SymbolicScope())
    for form in forms:
        for text in form:
            taken = _taken((*best.texts, text))
            if taken is not None:
                best = taken
                break
    return best


def _forms(facts: Sequence[JaxFact]) -> list[Sequence[str]]:
    return [comparison_to_jax(fact.comparison)[fact.form :] for fact in facts]


def _first_forms(forms: Sequence[Sequence[str]]) -> tuple[str, ...] | None:
    return tuple(form[0] for form in forms) if all(forms) else None


def _with_resolved_equalities(taken: _Taken) -> tuple[str, ...]:
    """Rewrites constraints so that each of them knows what the others replace.

    JAX replaces a term once: of a == b and b == c it makes b of a, and leaves that.
    """
    for _ in taken.texts:
        resolved = tuple(_resolved(text, taken.scope) for text in taken.texts)
        if resolved == taken.texts:
            break
        better = _taken(resolved)
        if better is None:
            break
        taken = better
    return taken.texts


def _has_to_be_resolved(text: str) -> bool:
    _, equals, right = text.partition(" == ")
    return bool(equals) and not right.isdecimal()


def _resolved(text: str, scope: jax_export.SymbolicScope) -> str:
    if not _has_to_be_resolved(text):
        return text
    left, _, right = text.partition(" == ")
    (replaced,) = jax_export.symbolic_shape(right, scope=scope)
    # The replacement of a term must not contain the term.
    return text if left in str(replaced) else f"{left} == {replaced}"


def _taken(constraints: tuple[str, ...]) -> _Taken | None:
    # JAX refuses by errors of many types, a bare AssertionError among them. What it is not told, it
    # asks about.
    try:
        return _Taken(constraints, jax_export.SymbolicScope(constraints))
    except Exception:
        return None


@dataclass(frozen=True)
class Progression:
    """A variable b of which mod(b, factor) == remainder is known, as JAX gets it.

    JAX decides more about 2*b_over_2 or 2*b_over_2 - 1 than about b and a constraint on it.
    """

    name: str
    factor: int
    remainder: int = 0

    @property
    def counter(self) -> str:
        """Names the variable that counts the steps; it is at least 1, as JAX's variables are."""
        return f"{self.name}_over_{self.factor}"

    def in_terms_of_counter(self) -> DimExpr:
        """Writes the variable as JAX gets it."""
        return self.factor * DimExpr.variable(self.counter) - self._short_of_next()

    def in_terms_of_variable(self, dimension: DimExpr) -> DimExpr:
        """Writes a dimension of JAX's with the user's variable in place of the counter."""
        steps = DimExpr.variable(self.name) + self._short_of_next()
        counter, quotient = DimExpr.variable(self.counter), {self.counter: steps // self.factor}
        (((once,), _),) = counter.terms
        parts: list[Dim] = []
        for monomial, coefficient in dimension.terms:
            # 2*b_over_2 is b, as the user writes it, and not 2*floordiv(b, 2).
            even = once in monomial and coefficient % self.factor == 0
            if even:
                monomial = tuple(factor for factor in monomial if factor != once)
                coefficient //= self.factor
            part = DimExpr(((monomial, coefficient),)).substitute(quotient)
            parts.append(part * steps if even else part)
        return DimExpr.sum(parts)

    def __str__(self) -> str:
        return f"{self.name} as {self.in_terms_of_counter()}"

    def _short_of_next(self) -> int:
        return -self.remainder % self.factor


def progressions(constraints: Sequence[Comparison]) -> Iterator[Progression]:
    """Yields each variable of which a remainder is known, with it."""
    for comparison in constraints:
        found = known_remainder(comparison)
        if found is None:
            continue
        operation, remainder = found
        dividend, divisor = operation.operands
        factor = divisor.constant_value()
        if is_variable(dividend) and factor is not None and factor > 1:
            yield Progression(str(dividend), factor, remainder)


def known_remainder(comparison: Comparison) -> tuple[DimOperation, int] | None:
    """Reads a mod and the value that a comparison gives it; None if it says something else."""
    left, right = comparison.left, comparison.right
    found = left.as_operation() if isinstance(left, DimExpr) else None
    if comparison.operator != "==" or found is None or found.kind != "mod":
        return None
    return (found, right) if isinstance(right, int) else None
