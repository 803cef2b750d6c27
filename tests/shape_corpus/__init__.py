"""Functions that JAX rejects on export with a plain specification; needs JAX, not TensorFlow."""

from __future__ import annotations

from types import ModuleType

from tests.shape_corpus import (
    attention,
    control_flow,
    convolutions,
    images,
    impossible,
    merges,
    neural_networks,
    padding,
    rearrangements,
    slicing,
    vjp_only,
)
from tests.shape_corpus.shape_case import Label, ShapeCase


def _cases(module: ModuleType) -> tuple[ShapeCase, ...]:
    return tuple(value for value in vars(module).values() if isinstance(value, ShapeCase))


CASES: tuple[ShapeCase, ...] = (
    *_cases(padding),
    *_cases(slicing),
    *_cases(convolutions),
    *_cases(attention),
    *_cases(images),
    *_cases(rearrangements),
    *_cases(control_flow),
    *_cases(merges),
    *_cases(impossible),
    *_cases(neural_networks),
)
"""Functions that JAX does not export."""

VJP_CASES: tuple[ShapeCase, ...] = _cases(vjp_only)
"""Functions that JAX exports, but not their VJPs: label and requirement are the gradient's."""


def labelled(label: Label, cases: tuple[ShapeCase, ...] = CASES) -> tuple[ShapeCase, ...]:
    """Returns the cases of that label."""
    return tuple(case for case in cases if case.label == label)


__all__ = ["CASES", "VJP_CASES", "ShapeCase", "labelled"]
