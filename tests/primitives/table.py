"""All cases, from every module of them."""

from __future__ import annotations

from collections import Counter

from tests.primitives import (
    contractions,
    control,
    devices,
    distributions,
    elementwise,
    fourier,
    indexing,
    matrices,
    networks,
    numpy_matrices,
    others,
    randomness,
    reductions,
    scipy_matrices,
    shapes,
    special,
)
from tests.primitives.case import Case

_MODULES = (
    elementwise,
    shapes,
    indexing,
    reductions,
    contractions,
    control,
    devices,
    randomness,
    fourier,
    networks,
    matrices,
    numpy_matrices,
    scipy_matrices,
    special,
    distributions,
    others,
)

SUBJECTS: dict[str, tuple[Case, ...]] = {
    module.__name__.rpartition(".")[2]: module.CASES for module in _MODULES
}
"""The cases by their modules."""

CASES: tuple[Case, ...] = tuple(case for cases in SUBJECTS.values() for case in cases)
"""All of them, in JAX releases that have their functions and in others."""

repeated = [name for name, count in Counter(c.name for c in CASES).items() if count > 1]
if repeated:
    raise ValueError(f"two cases are called {', '.join(repeated)}: give them labels")
