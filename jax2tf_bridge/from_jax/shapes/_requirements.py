"""Requirements that tracing adds to the user's constraints."""

from __future__ import annotations

import math
from collections.abc import Iterator

import jax

from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._equations import iter_equations
from jax2tf_bridge.from_jax._symbols import dim_from_jax
from jax2tf_bridge.from_jax.shapes._assumptions import Requirement, SizeAssumptions
from jax2tf_bridge.from_jax.shapes._errors import (
    never_holds_error,
    only_one_size_error,
    requirements_error,
)
from jax2tf_bridge.from_jax.shapes._traced_function import ExportOptions, TracedFunction
from shape_poly import (
    Comparison,
    DimExpr,
    Proven,
    Refuted,
    SymbolicScope,
    prove,
    weakest_requirement,
)


def check_requirements_allowed(
    before: SizeAssumptions,
    after: SizeAssumptions,
    function: TracedFunction,
    options: ExportOptions,
) -> None:
    """Rejects requirements that tracing added, unless the user passed AUTO.

    Raises:
      InconclusiveShapeError: requirements were added without permission, or leave no size open.
    """
    check_sizes_stay_open(before, after, function)
    new = _new(before, after)
    if not new or options.infer:
        return
    scopes = function.words.scopes_hold_all
    given = before.scope.constraints if scopes else options.constraints
    raise requirements_error(function, options.call, new, [str(c) for c in given])


def check_sizes_stay_open(
    before: SizeAssumptions, after: SizeAssumptions, function: TracedFunction
) -> None:
    """Rejects requirements that leave only one size for each variable.

    Raises:
      InconclusiveShapeError: only one size is left, and there were more before.
    """
    new = _new(before, after)
    only = _only_sizes(after.full_scope, function.variables) if new else None
    if only is not None and _only_sizes(before.full_scope, function.variables) is None:
        texts = list(dict.fromkeys(str(r.comparison) for r in new))
        raise only_one_size_error(function, texts, only, new[0].source)


def _new(before: SizeAssumptions, after: SizeAssumptions) -> list[Requirement]:
    return [r for r in after.requirements if r not in before.requirements]


def _only_sizes(scope: SymbolicScope, variables: frozenset[str]) -> dict[str, int] | None:
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


def with_reshape_requirements(
    assumptions: SizeAssumptions, traced: jax.stages.Traced, function: TracedFunction
) -> SizeAssumptions:
    """Adds requirements that each reshape of a trace keeps the number of elements.

    JAX does not check that for open sizes. Without a requirement, a call with other sizes would
    fail in the compiler, with a dump of the module.

    Raises:
      InconclusiveShapeError: a reshape never keeps the number of elements.
    """
    for comparison, source in _reshapes(traced, assumptions):
        scope = assumptions.full_scope
        verdict = prove(comparison, scope)
        if isinstance(verdict, Proven):
            continue
        counterexample = verdict.counterexample if isinstance(verdict, Refuted) else {}
        weakest = weakest_requirement(comparison, scope)
        if weakest is None:
            raise never_holds_error(function, comparison, counterexample, scope, source)
        requirement = Requirement(weakest, comparison, counterexample, source)
        assumptions = assumptions.with_requirement(requirement)
    return assumptions


def _reshapes(
    traced: jax.stages.Traced, assumptions: SizeAssumptions
) -> Iterator[tuple[Comparison, str | None]]:
    """Yields the equality for each reshape whose sizes are not obviously equal, and its line."""
    seen = set()
    for equation in iter_equations(traced.jaxpr.jaxpr):
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
            yield comparison, _jax_compat.source_of_equation(equation)
