"""Sizes at which a function can run, for variables without a given size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.portable import Aval
from shape_poly import Comparison, SymbolicScope, sample_sizes, variables_of

_TYPICAL = (4, 3, 5, 8, 2, 6, 7, 16, 1, 9, 10, 12, 15, 24, 32, 64, 128, 224, 256, 512)
_SMALLEST = (*range(1, 33), 48, 64, 96, 100, 128, 224, 256, 299, 384, 512, 768, 1000, 1024)
_MAX_SIZE = 1024
"""Maximum size that is chosen; larger sizes take long to run, so users have to name them."""


def find_typical_sizes(
    name: str, avals: Iterable[Aval], constraints: Sequence[Comparison], given: Mapping[str, int]
) -> dict[str, int]:
    """Finds small sizes for all variables.

    Args:
      name: the name of the signature, for messages.
      avals: the avals whose shapes contain the variables.
      constraints: the constraints on the variables.
      given: the sizes of some variables.

    Raises:
      ShapeError: no sizes were found that satisfy the constraints.
    """
    return _find_sizes(name, avals, constraints, given, _TYPICAL)


def find_smallest_sizes(
    name: str, avals: Iterable[Aval], constraints: Sequence[Comparison], given: Mapping[str, int]
) -> dict[str, int]:
    """Finds the smallest sizes for all variables; arguments as in `find_typical_sizes`."""
    return _find_sizes(name, avals, constraints, given, _SMALLEST)


def _find_sizes(
    name: str,
    avals: Iterable[Aval],
    constraints: Sequence[Comparison],
    given: Mapping[str, int],
    candidates: Sequence[int],
) -> dict[str, int]:
    names = {v for aval in avals for d in aval.op_shape for v in variables_of(d)} | set(given)
    free = sorted(names - set(given))
    sizes = next(
        sample_sizes(
            [*given, *free],
            SymbolicScope(constraints, check=False),
            among={variable: [size] for variable, size in given.items()},
            candidates=candidates,
            largest=_MAX_SIZE,
        ),
        None,
    )
    if sizes is None:
        relevant = [str(c) for c in constraints if c.variables() <= names]
        raise ShapeError(
            f"{name}: no sizes of {', '.join(free) or ', '.join(given)} were found that satisfy "
            f"{', '.join(relevant)}. Give {', '.join(free) or 'them'} buckets."
        )
    return sizes
