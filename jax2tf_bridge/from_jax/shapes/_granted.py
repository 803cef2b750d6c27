"""Whether the user allows what tracing had to require of the sizes."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge.from_jax.lowering._lowering import ExportOptions
from jax2tf_bridge.from_jax.shapes._inconclusive_errors import (
    only_one_size_error,
    requirements_error,
)
from jax2tf_bridge.from_jax.shapes._inference import Subject
from jax2tf_bridge.from_jax.shapes._knowledge import Knowledge, Requirement
from shape_poly import Comparison, DimExpr, Proven, Refuted, SymbolicScope, prove


def granted(
    before: Knowledge, after: Knowledge, subject: Subject, options: ExportOptions
) -> Knowledge:
    """The knowledge after tracing, if what is new in it may be required.

    Raises:
      InconclusiveShapeError: there are requirements, and they may not be added; or they leave no
        size open.
    """
    leaving_sizes_open(before, after, subject)
    new = _new(before, after)
    if not new or options.infer:
        return after
    words = subject.words
    given = before.scope.constraints if words.scopes_hold_all else options.constraints
    raise requirements_error(
        subject.name, options.call, new, given=[str(c) for c in given], words=words
    )


def leaving_sizes_open(before: Knowledge, after: Knowledge, subject: Subject) -> Knowledge:
    """The knowledge afterwards, if it leaves more than one size to some variable.

    Raises:
      InconclusiveShapeError: it does not, and did before.
    """
    new = _new(before, after)
    only = _only_sizes(after.full_scope, subject.variables) if new else None
    if only is not None and _only_sizes(before.full_scope, subject.variables) is None:
        raise only_one_size_error(subject.name, _texts(new), only, new[0].source, subject.words)
    return after


def _new(before: Knowledge, after: Knowledge) -> list[Requirement]:
    return [r for r in after.requirements if r not in before.requirements]


def _texts(requirements: Sequence[Requirement]) -> list[str]:
    return list(dict.fromkeys(str(r.comparison) for r in requirements))


def _only_sizes(scope: SymbolicScope, variables: frozenset[str]) -> dict[str, int] | None:
    """The sizes that the scope leaves if it leaves one for each variable; None if more."""
    # That some variable is 0 is refuted by the smallest sizes that there are.
    found = prove(
        Comparison("==", sum(map(DimExpr.variable, sorted(variables)), start=0), 0), scope
    )
    if not isinstance(found, Refuted):
        return None
    sizes = {name: found.counterexample[name] for name in sorted(variables)}
    fixed = all(
        isinstance(prove(Comparison("==", DimExpr.variable(name), size), scope), Proven)
        for name, size in sizes.items()
    )
    return sizes if fixed else None
