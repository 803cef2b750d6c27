"""Traces in rounds, under more and more assumptions, until JAX has no question about sizes.

If the answer to a question follows from the scope, it is passed to JAX as a fact, which is one more
constraint. One trace answers all such questions, and the function is then traced again. Other
answers become requirements: promises about the sizes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import jax

from jax2tf_bridge.errors import BridgeError, InconclusiveShapeError, PlatformError
from jax2tf_bridge.from_jax._jax_compat import AnsweringScope
from jax2tf_bridge.from_jax._symbols import comparison_to_jax, dim_from_jax
from jax2tf_bridge.from_jax.shapes._assumptions import Requirement, SizeAssumptions, TracedFunction
from jax2tf_bridge.from_jax.shapes._errors import (
    describe_failure_at_all_sizes,
    get_first_line,
    make_needs_a_number_error,
    make_never_holds_error,
    make_not_convinced_error,
    make_only_one_size_error,
    make_requirements_error,
    make_some_sizes_fail_error,
    make_too_many_rounds_error,
)
from jax2tf_bridge.from_jax.shapes._options import SizeOptions
from jax2tf_bridge.from_jax.shapes._questions import Question, read_question
from jax2tf_bridge.from_jax.shapes._samples import (
    explain,
    propose_values,
    sort_by_likelihood,
    try_sizes,
)
from jax2tf_bridge.from_jax.source_lines import (
    iter_equation_paths,
    user_line,
    user_line_of_equation,
)
from shape_poly import (
    Comparison,
    Dim,
    DimExpr,
    Proven,
    Refuted,
    SymbolicScope,
    operation,
    prove,
    weakest_requirement,
)

T = TypeVar("T")

logger = logging.getLogger("jax2tf_bridge")

MAX_ROUNDS = 100
"""Maximum number of rounds; each answers all provable questions and one other."""

MAX_FACTS = 100
"""Maximum number of facts, because a loop over sizes may ask forever."""

_OVERFLOW = 2**31
"""JAX compares sizes with numbers this large to detect overflow; it needs no answer."""


@dataclass(frozen=True)
class InferredTrace(Generic[T]):
    """Trace, the result of lowering it, and the assumptions under which it holds."""

    traced: jax.stages.Traced
    result: T
    assumptions: SizeAssumptions

    def out_shapes(self) -> list[tuple[Dim, ...]]:
        """Lists the shapes of the flat results, in the user's variables."""
        return [self.assumptions.shape_from_jax(aval) for aval in self.traced.jaxpr.out_avals]


class _AnsweredTrace:
    """Trace of a function that answers provable questions, so that one trace finds all of them.

    Attributes:
      assumptions: the assumptions, with the facts that were answers so far.
    """

    def __init__(self, assumptions: SizeAssumptions, function: TracedFunction) -> None:
        self.assumptions = assumptions
        self._function = function

    def trace(self) -> jax.stages.Traced:
        """Traces the function, repeatedly if questions were answered; raises JAX's errors.

        Only a trace that began with all facts is returned. Otherwise JAX may have written one size
        in two ways, before and after an answer, and treat them as different.
        """
        while True:
            before = self.assumptions
            scope = AnsweringScope(before.constraints_of_jax(), self._answer)
            try:
                traced = self._function.trace(before, scope)
            except Exception:
                if self.assumptions is before:
                    raise
            else:
                if self.assumptions is before:
                    return traced
            finally:
                scope.close()
            logger.debug("Tracing %s again with all facts", self._function.name)

    def _answer(self, error: Exception) -> Iterator[Sequence[str]]:
        """Yields all constraints for JAX if an answer to the question is proven."""
        known = self.assumptions
        question = _read_question(error, known, self._function)
        if question is None or question.constants or len(known.facts) >= MAX_FACTS:
            return
        facts, scope = known.fact_comparisons(), known.scope_of_jax()
        for option in question.options:
            if facts.issuperset(option) or any(map(_is_about_overflow, option)):
                return
            if all(isinstance(prove(c, scope), Proven) for c in option):
                self.assumptions = known.with_facts(c for o in option for c in _iter_facts(o))
                logger.debug(
                    "Tracing %s continues, because %s holds. JAX asked: %s",
                    self._function.name,
                    "; ".join(map(str, option)),
                    get_first_line(error),
                )
                yield from self.assumptions.constraints_to_try()
                return


def _read_question(
    error: Exception, assumptions: SizeAssumptions, function: TracedFunction
) -> Question | None:
    return read_question(error, assumptions.variables_of_jax(function.variables))


def _iter_facts(comparison: Comparison) -> Iterator[Comparison]:
    """Yields a comparison; for an even division also its quotient, which JAX needs next."""
    yield comparison
    remainder = comparison.left.as_operation() if isinstance(comparison.left, DimExpr) else None
    if remainder is None or remainder.kind != "mod" or comparison.operator != "==":
        return
    dividend, divisor = remainder.operands
    if divisor.constant_value() is None:
        written = operation("floordiv", dividend, divisor, simplify=False)
        simplified = written.simplify()
        # The quotient must be simpler for JAX, and not another division by sizes.
        if isinstance(simplified, int) or 2 * simplified.size <= written.size:
            yield Comparison("==", written, simplified)


def _is_about_overflow(comparison: Comparison) -> bool:
    difference = comparison.difference()
    terms = {} if isinstance(difference, int) else dict(difference.terms)
    return any(abs(coefficient) >= _OVERFLOW - 1 for coefficient in terms.values())


def infer(
    function: TracedFunction,
    assumptions: SizeAssumptions,
    *,
    first: Callable[[], jax.stages.Traced] | None = None,
) -> InferredTrace[None]:
    """Traces a function like `infer_and_lower`, without lowering the trace."""
    return infer_and_lower(function, assumptions, lambda _: None, first=first)


def infer_and_lower(
    function: TracedFunction,
    assumptions: SizeAssumptions,
    lower: Callable[[jax.stages.Traced], T],
    *,
    first: Callable[[], jax.stages.Traced] | None = None,
) -> InferredTrace[T]:
    """Traces a function under more and more assumptions until no question about sizes is left.

    If a question has several answers, the one that holds for more sizes is tried first, and the
    others if it fails. Errors of `lower` may be about sizes too. `first` returns an existing trace
    for the first round.

    Raises:
      InconclusiveShapeError: no answer to a question ever holds, or a size is needed as a number.
      Exception: tracing or `lower` fails for another reason.
    """
    untried = [assumptions]
    tried: set[SizeAssumptions] = set()
    failure: Exception | None = None
    for round_number in range(1, MAX_ROUNDS + 1):
        attempt = _AnsweredTrace(untried.pop(), function)
        tried.add(attempt.assumptions)
        try:
            traced = first() if first and round_number == 1 else attempt.trace()
            return InferredTrace(traced, lower(traced), attempt.assumptions)
        except Exception as raised:
            error = _find_jax_error(raised)
            if not function.variables or isinstance(error, BridgeError):
                raise
            logger.debug(
                "Tracing %s, round %d: %s", function.name, round_number, get_first_line(error)
            )
            current = attempt.assumptions
            tried.add(current)
            answers, reason = _list_next_assumptions(current, error, function)
            new = [answer for answer in answers if answer not in tried]
            if not new:
                failure = failure or reason
            if not (new or untried) and not isinstance(failure, InconclusiveShapeError):
                new, failure = _find_by_trials(current, error, function)
        untried += reversed(new)
        if not untried and failure is not None:
            raise failure
        _log_changes(function.name, current, untried[-1])
    raise make_too_many_rounds_error(function, MAX_ROUNDS) from failure


def _find_jax_error(error: Exception) -> Exception:
    """Returns the JAX error behind an error of lowering that needs a size as a number."""
    cause = error.__cause__
    by_size = isinstance(error, PlatformError) and "_DimExpr" in str(error)
    return cause if by_size and isinstance(cause, Exception) else error


def _list_next_assumptions(
    assumptions: SizeAssumptions, error: Exception, function: TracedFunction
) -> tuple[list[SizeAssumptions], Exception]:
    """Lists the assumptions to try next, best first; also returns the error if all fail."""
    progression = assumptions.with_progression(function.variables)
    fallback = [progression] if progression is not None else []
    question = _read_question(error, assumptions, function)
    if question is None:
        return fallback, error
    by_value = bool(question.constants)
    if by_value:
        question = propose_values(question, assumptions, function)
    if any(map(assumptions.fact_comparisons().issuperset, question.options)):
        return [*_try_next_form(assumptions, question), *fallback], error
    source = user_line(error) or function.source
    scope = assumptions.scope_of_jax()
    options = list(question.options) if by_value else sort_by_likelihood(question, scope)
    extended = [_add_answers(assumptions, option, source) for option in options]
    answers = [answer for answer in extended if answer is not None]
    if not answers:
        return [], _make_never_error(assumptions, question, source, function, error)
    decided = [a for a in answers if a.requirements == assumptions.requirements]
    return decided or [*fallback, *answers], error


def _add_answers(
    assumptions: SizeAssumptions, comparisons: Sequence[Comparison], source: str | None
) -> SizeAssumptions | None:
    """Adds these comparisons as facts or requirements; None if one of them never holds."""
    for comparison in comparisons:
        scope = assumptions.scope_of_jax()
        verdict = prove(comparison, scope)
        if not isinstance(verdict, Proven):
            asked = assumptions.comparison_from_jax(comparison)
            weakest = weakest_requirement(asked, assumptions.full_scope)
            if weakest is None:
                return None
            refutation = prove(asked, assumptions.full_scope)
            counterexample = refutation.counterexample if isinstance(refutation, Refuted) else {}
            requirement = Requirement(weakest, asked, counterexample, source)
            assumptions = assumptions.with_requirement(requirement)
            if comparison == requirement.comparison:
                continue
        assumptions = assumptions.with_facts(_iter_facts(comparison))
    return assumptions


def _try_next_form(assumptions: SizeAssumptions, question: Question) -> list[SizeAssumptions]:
    """Returns assumptions with the next form of a fact that JAX did not use."""
    asked = {comparison for option in question.options for comparison in option}
    for i, fact in enumerate(assumptions.facts):
        if fact.comparison in asked and len(comparison_to_jax(fact.comparison)) > fact.form + 1:
            next_fact = replace(fact, form=fact.form + 1)
            facts = (*assumptions.facts[:i], next_fact, *assumptions.facts[i + 1 :])
            return [replace(assumptions, facts=facts)]
    return []


def _make_never_error(
    assumptions: SizeAssumptions,
    question: Question,
    source: str | None,
    function: TracedFunction,
    cause: Exception,
) -> InconclusiveShapeError:
    for comparison in question.options[0]:
        asked = assumptions.comparison_from_jax(comparison)
        verdict = prove(asked, assumptions.full_scope)
        if isinstance(verdict, Refuted):
            return make_never_holds_error(
                function, asked, verdict.counterexample, assumptions.full_scope, source, cause
            )
    return make_not_convinced_error(function, question.options[0][0], source, cause)


def _find_by_trials(
    assumptions: SizeAssumptions, error: Exception, function: TracedFunction
) -> tuple[list[SizeAssumptions], Exception]:
    """Finds assumptions by trials at concrete sizes; also returns the error if there are none."""
    source = user_line(error) or function.source
    experiment = try_sizes(function, assumptions.full_scope, error)
    if not experiment.passed:
        for sizes, concrete in experiment.failed[:1]:
            error.add_note(describe_failure_at_all_sizes(function.name, error, sizes, concrete))
        return [], error
    if not experiment.failed:
        if isinstance(error, RecursionError) and assumptions.facts:
            # JAX recurses infinitely if constraints rewrite each other.
            stated = assumptions.comparison_from_jax(assumptions.facts[-1].comparison)
            return [], make_not_convinced_error(function, stated, source, error)
        question = _read_question(error, assumptions, function)
        if question is not None and question.options:
            return [], make_not_convinced_error(function, question.options[0][0], source, error)
        rows = _find_row_wise_code(function, assumptions)
        return [], make_needs_a_number_error(function, experiment.passed[:2], source, error, rows)
    sizes, concrete = experiment.failed[0]
    answer = assumptions
    for comparison in explain(experiment):
        counterexample = next((s for s, _ in experiment.failed if not comparison.holds(s)), sizes)
        requirement = Requirement(comparison, comparison, counterexample, source)
        answer = answer.with_requirement(requirement)
    failure = make_some_sizes_fail_error(
        function, experiment.passed[0], sizes, concrete, source, error
    )
    return ([answer] if answer != assumptions else []), failure


def _find_row_wise_code(function: TracedFunction, assumptions: SizeAssumptions) -> str | None:
    """Returns code for the first row-wise form of the function that can be traced, if any."""
    for form in function.row_wise:
        try:
            _AnsweredTrace(assumptions, replace(function, trace=form.trace)).trace()
            if form.is_same():
                return form.code
        except Exception:  # from the user's code, which may not accept a single row
            logger.debug("Tracing %s by rows fails", function.name, exc_info=True)
    return None


def _log_changes(name: str, before: SizeAssumptions, after: SizeAssumptions) -> None:
    required = [str(r.comparison) for r in after.requirements if r not in before.requirements]
    facts = [str(f.comparison) for f in after.facts if f not in before.facts]
    progressions = map(str, after.progressions[len(before.progressions) :])
    changes = [
        *(f"it requires {text}" for text in required),
        *(f"{text} holds" for text in facts if text not in required),
        *progressions,
    ]
    logger.debug("Tracing %s again: %s", name, "; ".join(changes) or "another answer")


def check_requirements_allowed(
    before: SizeAssumptions, after: SizeAssumptions, function: TracedFunction, options: SizeOptions
) -> None:
    """Rejects requirements that tracing added, unless the user passed AUTO.

    Raises:
      InconclusiveShapeError: requirements were added without permission, or leave no size open.
    """
    check_sizes_stay_open(before, after, function)
    new = _list_new(before, after)
    if not new or options.infer:
        return
    in_scopes = function.words.scopes_hold_all
    stated = before.scope.constraints if in_scopes else options.constraints
    raise make_requirements_error(function, options.call, new, [str(c) for c in stated])


def check_sizes_stay_open(
    before: SizeAssumptions, after: SizeAssumptions, function: TracedFunction
) -> None:
    """Rejects requirements that leave only one size for each variable.

    Raises:
      InconclusiveShapeError: only one size is left, and there were more before.
    """
    new = _list_new(before, after)
    sizes = _find_only_sizes(after.full_scope, function.variables) if new else None
    if sizes is not None and _find_only_sizes(before.full_scope, function.variables) is None:
        texts = list(dict.fromkeys(str(r.comparison) for r in new))
        raise make_only_one_size_error(function, texts, sizes, new[0].source)


def _list_new(before: SizeAssumptions, after: SizeAssumptions) -> list[Requirement]:
    return [r for r in after.requirements if r not in before.requirements]


def _find_only_sizes(scope: SymbolicScope, variables: frozenset[str]) -> dict[str, int] | None:
    """Returns the sizes if a scope allows exactly one for each variable, else None."""
    # The counterexample to "sum == 0" has the smallest sizes.
    verdict = prove(
        Comparison("==", sum(map(DimExpr.variable, sorted(variables)), start=0), 0), scope
    )
    if not isinstance(verdict, Refuted):
        return None
    sizes = {name: verdict.counterexample[name] for name in sorted(variables)}
    fixed = all(
        isinstance(prove(Comparison("==", DimExpr.variable(name), size), scope), Proven)
        for name, size in sizes.items()
    )
    return sizes if fixed else None


def add_reshape_requirements(
    inferred: InferredTrace[T], function: TracedFunction
) -> InferredTrace[T]:
    """Adds requirements that each reshape of a trace keeps the number of elements.

    JAX does not check that for open sizes. Without a requirement, a call with other sizes would
    fail in the compiler, with a dump of the module.

    Raises:
      InconclusiveShapeError: a reshape never keeps the number of elements.
    """
    assumptions = inferred.assumptions
    for comparison, source in _iter_reshapes(inferred.traced, assumptions):
        scope = assumptions.full_scope
        verdict = prove(comparison, scope)
        if isinstance(verdict, Proven):
            continue
        counterexample = verdict.counterexample if isinstance(verdict, Refuted) else {}
        weakest = weakest_requirement(comparison, scope)
        if weakest is None:
            raise make_never_holds_error(function, comparison, counterexample, scope, source)
        requirement = Requirement(weakest, comparison, counterexample, source)
        assumptions = assumptions.with_requirement(requirement)
    return replace(inferred, assumptions=assumptions)


def _iter_reshapes(
    traced: jax.stages.Traced, assumptions: SizeAssumptions
) -> Iterator[tuple[Comparison, str | None]]:
    """Yields the equality for each reshape whose sizes are not obviously equal, and its line."""
    seen = set()
    for path in iter_equation_paths(traced.jaxpr.jaxpr):
        equation = path[-1]
        if equation.primitive.name != "reshape":
            continue
        before, after = equation.invars[0].aval.shape, equation.params["new_sizes"]
        sizes = math.prod(before), math.prod(after)
        if sizes[0] == sizes[1]:
            continue
        first, second = (assumptions.from_jax(dim_from_jax(size)) for size in sizes)
        comparison = Comparison("==", first, second)
        if comparison not in seen:
            seen.add(comparison)
            yield comparison, user_line_of_equation(path)
