"""Answers questions about sizes while JAX is still tracing, as far as the scope proves them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge.from_jax._jax_compat_sizes import AnsweringScope
from jax2tf_bridge.from_jax.lowering._effects import equations
from jax2tf_bridge.from_jax.shapes._assumptions import SizeAssumptions
from jax2tf_bridge.from_jax.shapes._errors import first_line
from jax2tf_bridge.from_jax.shapes._questions import Question, question_of
from jax2tf_bridge.from_jax.shapes._symbols import dim_from_jax
from jax2tf_bridge.from_jax.shapes._traced_function import TracedFunction
from shape_poly import Comparison, Dim, DimExpr, Proven, operation, prove

logger = logging.getLogger("jax2tf_bridge")

MAX_FACTS = 100
"""Limits the facts that JAX is told: a loop over sizes may ask forever."""

_OVERFLOW = 2**31
"""JAX compares sizes with the largest integers, and goes on without an answer."""


class Answers:
    """Answers to the questions of one trace.

    Attributes:
      assumptions: what is known, with the facts that answered so far.
    """

    def __init__(self, assumptions: SizeAssumptions, function: TracedFunction) -> None:
        """Begins with these assumptions; `function` is traced under them."""
        self.assumptions = assumptions
        self._function = function

    def trace(self) -> jax.stages.Traced:
        """Traces the function, and answers as long as it does; raises what JAX raises.

        What comes of it is as if all facts had been known from the start. If that is not sure, the
        function is traced again under these facts.
        """
        while True:
            before = self.assumptions
            scope = AnsweringScope(before.constraints_of_jax(), self._answer)
            try:
                traced = self._function.trace(before, scope)
            except Exception as e:
                if self.assumptions is before or self._asks_as_made_anew(e, scope):
                    raise
            else:
                if self.assumptions is before or _is_as_made_anew(traced, scope):
                    return traced
            finally:
                scope.close()
            logger.debug("Tracing %s again under all that holds", self._function.name)

    def _answer(self, error: Exception) -> Sequence[str] | None:
        """Returns all constraints for JAX if the question has an answer that is proven."""
        known, question = self.assumptions, self._question(error)
        if question is None or question.constants or len(known.facts) >= MAX_FACTS:
            return None
        told, scope = {f.comparison for f in known.facts}, known.scope_of_jax()
        for option in question.options:
            if told.issuperset(option) or any(map(_is_about_overflow, option)):
                return None
            if all(isinstance(prove(c, scope), Proven) for c in option):
                self.assumptions = known.with_facts(c for o in option for c in facts_of(o))
                logger.debug(
                    "Tracing %s goes on, since %s holds. JAX asked: %s",
                    self._function.name,
                    "; ".join(map(str, option)),
                    first_line(error),
                )
                return self.assumptions.constraints_of_jax()
        return None

    def _question(self, error: Exception) -> Question | None:
        return question_of(error, self.assumptions.variables_of_jax(self._function.variables))

    def _asks_as_made_anew(self, error: Exception, scope: jax_export.SymbolicScope) -> bool:
        """Checks the sizes of the question that an error asks as `_is_as_made_anew` does."""
        question = self._question(error)
        if question is None:
            return False
        sizes = [size for o in question.options for c in o for size in (c.left, c.right)]
        return all(_is_unchanged(size, scope) for size in (*sizes, *question.constants))


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


def _is_as_made_anew(traced: jax.stages.Traced, scope: jax_export.SymbolicScope) -> bool:
    """Checks that JAX, now that it knows more, still writes each size of a trace as it did."""
    sizes: dict[int, Any] = {}
    for equation in equations(traced.jaxpr.jaxpr):
        for value in (*(v.aval.shape for v in equation.outvars), *equation.params.values()):
            sizes.update((id(size), size) for size in _sizes(value))
    # Many are equal, and a text is quicker to compare.
    texts = {str(size) for size in sizes.values()}
    return all(str(_made_anew(text, scope)) == text for text in texts)


def _is_unchanged(size: Dim, scope: jax_export.SymbolicScope) -> bool:
    made = _made_anew(str(size), scope)
    return made is not None and dim_from_jax(made) == size


def _made_anew(size: str, scope: jax_export.SymbolicScope) -> Any:
    try:
        (made,) = jax_export.symbolic_shape(size, scope=scope)
    except Exception:  # of many types; what JAX does not take, it would not have made
        return None
    return made


def _sizes(value: Any) -> Iterator[Any]:
    """Yields the symbolic sizes in a shape or a parameter of an equation."""
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _sizes(each)
    elif jax_export.is_symbolic_dim(value):
        yield value
