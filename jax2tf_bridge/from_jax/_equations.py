"""Walks over the equations of jaxprs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def iter_equations(jaxpr: Any) -> Iterator[Any]:
    """Yields every equation of a jaxpr and of the jaxprs inside it."""
    return (path[-1] for path in iter_equation_paths(jaxpr))


def iter_equation_paths(jaxpr: Any, outer: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields every equation with its enclosing equations as a tuple, the outermost first."""
    for equation in jaxpr.eqns:
        path = (*outer, equation)
        yield path
        for inner in _iter_inner_jaxprs(equation):
            yield from iter_equation_paths(inner, path)


def iter_inner_equations(equation: Any) -> Iterator[Any]:
    """Yields every equation of the jaxprs inside an equation."""
    for inner in _iter_inner_jaxprs(equation):
        yield from iter_equations(inner)


def _iter_inner_jaxprs(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for inner in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(inner, "eqns"):
                yield inner
