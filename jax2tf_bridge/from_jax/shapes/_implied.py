"""Finds what a traced function takes for granted about its sizes, without JAX having asked.

JAX does not ask whether a reshape keeps the number of elements. Where it does not, compiling the
module for the sizes of a call fails with a dump of it; as a requirement it is checked before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import jax

from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.lowering._effects import equations
from jax2tf_bridge.from_jax.shapes._inconclusive_errors import never_holds_error
from jax2tf_bridge.from_jax.shapes._knowledge import Knowledge, Requirement
from jax2tf_bridge.from_jax.shapes._symbols import dim_from_jax
from shape_poly import Comparison, Proven, Refuted, prove, weakest_requirement


def with_implied(knowledge: Knowledge, traced: jax.stages.Traced, name: str) -> Knowledge:
    """The knowledge, with what the trace takes for granted as requirements.

    Raises:
      InconclusiveShapeError: it never holds.
    """
    for comparison, source in _reshapes(traced, knowledge):
        scope = knowledge.full_scope
        verdict = prove(comparison, scope)
        if isinstance(verdict, Proven):
            continue
        counterexample = verdict.counterexample if isinstance(verdict, Refuted) else {}
        weakest = weakest_requirement(comparison, scope)
        if weakest is None:
            raise never_holds_error(name, comparison, counterexample, scope, source, None)
        requirement = Requirement(weakest, comparison, counterexample, source)
        knowledge = knowledge.with_requirement(requirement)
    return knowledge


def _reshapes(
    traced: jax.stages.Traced, knowledge: Knowledge
) -> Iterator[tuple[Comparison, str | None]]:
    """For each reshape whose sizes are not plainly the same that they are equal, and its line."""
    seen = set()
    for equation in equations(traced.jaxpr.jaxpr):
        if equation.primitive.name != "reshape":
            continue
        before, after = equation.invars[0].aval.shape, equation.params["new_sizes"]
        sizes = math.prod(before), math.prod(after)
        if sizes[0] == sizes[1]:
            continue
        first, second = (knowledge.from_jax(dim_from_jax(size)) for size in sizes)
        comparison = Comparison("==", first, second)
        if comparison not in seen:
            seen.add(comparison)
            yield comparison, _jax_compat.source_of_equation(equation)
