"""Compares what a consumer answers with what JAX answered; needs only numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def differences(
    what: str, got: Sequence[Any], expected: Sequence[npt.NDArray[Any]], tolerance: float
) -> list[str]:
    """Lists what differs, a line for each result: the count, a dtype, a shape, or values.

    The tolerance is absolute and relative; nan equals nan.

    >>> differences("result", [np.float32([1, 2])], [np.float32([1, 2.5])], 0.1)
    ['result 0: differs by up to 0.5 (tolerance 0.1), at (1,): expected 2.5, got 2.0']
    """
    if len(got) != len(expected):
        return [f"{what}s: expected {len(expected)}, got {len(got)}"]
    lines = (_difference(np.asarray(g), e, tolerance) for g, e in zip(got, expected, strict=True))
    return [f"{what} {i}: {line}" for i, line in enumerate(lines) if line]


def _difference(got: npt.NDArray[Any], expected: npt.NDArray[Any], tolerance: float) -> str | None:
    if got.dtype != expected.dtype:
        return f"expected dtype {expected.dtype.name}, got {got.dtype.name}"
    if got.shape != expected.shape:
        return f"expected shape {expected.shape}, got {got.shape}"
    if tolerance == 0 or expected.dtype.kind in "biu":
        wrong = (_bytes(got) != _bytes(expected)).any(-1)
    else:
        a, b = _wide(got), _wide(expected)
        close = np.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        wrong = ~close
    if not wrong.any():
        return None
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    apart = np.abs(_wide(got) - _wide(expected))[wrong]
    largest = np.max(np.nan_to_num(apart, nan=np.inf))
    return (
        f"differs by up to {largest:.3g} (tolerance {tolerance:g}), at {place}: "
        f"expected {_wide(expected)[place]}, got {_wide(got)[place]}"
    )


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    flat = np.frombuffer(array.tobytes(), np.uint8)
    return flat.reshape(*array.shape, array.dtype.itemsize)


def _wide(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """In 64 bits, also the floats that numpy itself does not know."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
