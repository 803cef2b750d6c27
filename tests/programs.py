"""The table of programs that the whole chain is tested with; needs JAX, not TensorFlow."""

from __future__ import annotations

from tests.program_cases import linear_algebra, models, operations, types_and_trees
from tests.program_cases.record import Call, Example, Program

_MODULES = (models, operations, types_and_trees, linear_algebra)

PROGRAMS: tuple[Program, ...] = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, Program)
)
"""Every program, in the order in which the modules have them."""

SEVENTEEN: tuple[Program, ...] = tuple(p for p in PROGRAMS if p.seventeen)
"""Those that are counted for each pair of a JAX and a TensorFlow release."""


def by_name(name: str) -> Program:
    """The program of that name.

    Raises:
      KeyError: there is none; the names are listed.
    """
    found = {p.name: p for p in PROGRAMS}
    if name not in found:
        raise KeyError(f"no program {name!r} among {', '.join(found)}")
    return found[name]


__all__ = ["PROGRAMS", "SEVENTEEN", "Call", "Example", "Program", "by_name"]
