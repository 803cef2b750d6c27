"""Compares arrays with JAX's answers; needs neither JAX nor TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.consumers.one_by_one import note_error

FLOAT16_TOLERANCE = 5e-2
"""Relative tolerance of a model that computes in float16, whose numbers have 11 bits."""


def compare(
    where: str,
    names: Sequence[str],
    got: Sequence[Any],
    expected: Sequence[Any],
    tolerance: float,
    *,
    floor: float = 0.0,
    noted: str | None = None,
) -> Iterator[str]:
    """Yields what differs by more than the tolerance, relative to the largest number.

    Args:
      where: what the lines begin with.
      names: of the arrays.
      got: tensors, or what NumPy makes arrays of.
      expected: arrays; those of integers must be equal.
      tolerance: relative.
      floor: what the tolerance is relative to, at least.
      noted: what the largest error is noted as; that of integers that differ is 1.
    """
    if len(got) != len(expected):
        yield f"{where}: expected {len(expected)} arrays, got {len(got)}"
        return
    for name, tensor, wanted in zip(names, got, expected, strict=True):
        array = np.asarray(tensor)
        if (array.dtype, array.shape) != (wanted.dtype, wanted.shape):
            kinds = [f"{a.dtype.name}{list(a.shape)}" for a in (wanted, array)]
            yield f"{where}{name}: expected {kinds[0]}, got {kinds[1]}"
        elif wanted.dtype.kind in "biu":
            if noted is not None:
                note_error(noted, float((array != wanted).any()))
            if (array != wanted).any():
                yield f"{where}{name}: {np.sum(array != wanted)} of {wanted.size} differ"
        elif wanted.size:
            if strange := _strange(array, wanted):
                yield f"{where}{name}: {strange}"
                continue
            finite = np.isfinite(wanted)
            apart = largest(array[finite].astype(np.float64) - wanted[finite].astype(np.float64))
            scale = max(largest(wanted[finite]), floor)
            if noted is not None:
                note_error(noted, apart / scale if scale else apart)
            if not apart <= tolerance * scale:
                yield f"{where}{name}: differs by {apart:.2g} of {scale:.2g} (at most {tolerance})"


def _strange(array: Any, wanted: Any) -> str | None:
    """Says how many infinite elements and NaN are others; None if all are the same."""
    is_other = ~np.isfinite(wanted) | ~np.isfinite(array)
    got, expected = array[is_other], wanted[is_other]
    differ = ~((got == expected) | (np.isnan(got) & np.isnan(expected)))
    if not differ.any():
        return None
    pair = expected[differ][0], got[differ][0]
    return "{} infinite elements or NaN differ, as {} and {}".format(int(differ.sum()), *pair)


def largest(array: Any) -> float:
    """Returns the largest absolute value; 0 for none."""
    return float(np.max(np.abs(array.astype(np.float64)), initial=0.0))
