"""Answers questions about sizes while JAX is still tracing, as far as the scope proves them.

So all of them are found in one trace, and the function is traced a second time under the answers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import jax

from jax2tf_bridge.from_jax._jax_compat_sizes import AnsweringScope
from jax2tf_bridge.from_jax.shapes._assumptions import SizeAssumptions
from jax2tf_bridge.from_jax.shapes._errors import first_line
from jax2tf_bridge.from_jax.shapes._questions import Question, question_of
from jax2tf_bridge.from_jax.shapes._traced_function import TracedFunction
from shape_poly import Comparison, DimExpr, Proven, operation, prove

logger = logging.getLogger("jax2tf_bridge")

MAX_FACTS = 100
"""Limits the facts that JAX is told: a loop over sizes may ask forever."""

_OVERFLOW = 2**31
"""With integers as large JAX compares sizes to see whether they fit, and goes on if it cannot."""


class AnsweredTrace:
    """A trace of a function, and the answers to the questions that come up in it.

    Attributes:
      assumptions: what is known, with the facts that answered so far.
    """

    def __init__(self, assumptions: SizeAssumptions, function: TracedFunction) -> None:
        """Begins with these assumptions; `function` is traced under them."""
        self.assumptions = assumptions
        self._function = function

    def trace(self) -> jax.stages.Traced:
        """Traces the function, and answers as long as it does; raises what JAX raises.

        A trace counts only if all facts were known from its start: one size may be written in two
        ways before and after an answer, and JAX takes them for different ones.
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
            logger.debug("Tracing %s again under all that holds", self._function.name)

    def _answer(self, error: Exception) -> Iterator[Sequence[str]]:
        """Yields all constraints for JAX if the question has an answer that is proven."""
        known, question = self.assumptions, self._question(error)
        if question is None or question.constants or len(known.facts) >= MAX_FACTS:
            return
        told, scope = {f.comparison for f in known.facts}, known.scope_of_jax()
        for option in question.options:
            if told.issuperset(option) or any(map(_is_about_overflow, option)):
                return
            if all(isinstance(prove(c, scope), Proven) for c in option):
                self.assumptions = known.with_facts(c for o in option for c in facts_of(o))
                logger.debug(
                    "Tracing %s goes on, since %s holds. JAX asked: %s",
                    self._function.name,
                    "; ".join(map(str, option)),
                    first_line(error),
                )
                yield from self.assumptions.constraints_to_try()
                return

    def _question(self, error: Exception) -> Question | None:
        return question_of(error, self.assumptions.variables_of_jax(self._function.variables))


def facts_of(comparison: Comparison) -> Iterator[Comparison]:
    """Yields a comparison and, where JAX would go on with an even division, its quotient."""
    yield comparison
    remainder = comparison.left.as_operation() if isinstance(comparison.left, DimExpr) else None
    if remainder is None or remainder.kind != "mod" or comparison.operator != "==":
        return
    dividend, divisor = remainder.operands
    if divisor.constant_value() is None:
        written = operation("floordiv", dividend, divisor, simplify=False)
        simplified = written.simplified()
        # To JAX it must be simpler, not another division by sizes.
        if isinstance(simplified, int) or 2 * simplified.size <= written.size:
            yield Comparison("==", written, simplified)


def _is_about_overflow(comparison: Comparison) -> bool:
    difference = comparison.difference()
    terms = {} if isinstance(difference, int) else dict(difference.terms)
    return any(abs(coefficient) >= _OVERFLOW - 1 for coefficient in terms.values())
