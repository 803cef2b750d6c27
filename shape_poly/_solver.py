"""Solves for the dimension variables, given actual shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shape_poly._expressions import Dim, DimExpr, Variable


def solve_dimensions(
    shapes: Iterable[Sequence[Dim]], actual: Iterable[Sequence[int | None]]
) -> dict[str, int]:
    """The values of the variables for which `shapes` become `actual`.

    Args:
      shapes: the symbolic shapes.
      actual: for each of them the sizes that it has; None where the size is not known.

    Returns:
      The value of every variable that follows, one equation in one unknown after another; a
      variable that does not follow, or that comes out fractional or below 1, is left out.
      Contradictions are not looked for: that is the work of the checks in the module itself.
    """
    open_equations = list(_equations(shapes, actual))
    values: dict[str, int] = {}
    progress = True
    while progress:
        progress = False
        remaining = []
        for dimension, size in open_equations:
            unknown = dimension.variables() - values.keys()
            if len(unknown) > 1:
                remaining.append((dimension, size))
                continue
            for name in unknown:
                value = _solve_linear(dimension, name, size, values)
                if value is not None:
                    values[name] = value
                    progress = True
        open_equations = remaining
    return values


def _equations(
    shapes: Iterable[Sequence[Dim]], actual: Iterable[Sequence[int | None]]
) -> Iterator[tuple[DimExpr, int]]:
    for shape, sizes in zip(shapes, actual, strict=True):
        for dimension, size in zip(shape, sizes, strict=True):
            if isinstance(dimension, DimExpr) and size is not None:
                yield dimension, size


def _solve_linear(dimension: DimExpr, name: str, size: int, values: dict[str, int]) -> int | None:
    if not is_linear(dimension, name):
        return None
    try:
        at_zero = dimension.evaluate({**values, name: 0})
        slope = dimension.evaluate({**values, name: 1}) - at_zero
    except ZeroDivisionError:
        return None
    if slope == 0 or (size - at_zero) % slope:
        return None
    value = (size - at_zero) // slope
    return value if value >= 1 else None


def is_linear(dimension: DimExpr, name: str) -> bool:
    """Whether the variable `name` occurs in it only as itself, times what does not hold it."""
    for monomial, _ in dimension.terms:
        degree = 0
        for atom, exponent in monomial:
            if isinstance(atom, Variable):
                degree += exponent if atom.name == name else 0
            elif any(name in o.variables() for o in atom.operands):
                return False
        if degree > 1:
            return False
    return True
