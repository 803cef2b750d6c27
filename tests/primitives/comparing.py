"""Compares arrays with what JAX answers; needs NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.primitives.arguments import Array


def cotangent(shape: tuple[int, ...], dtype: Any) -> Array:
    """Numbers of either sign for one result; a row of a batch has those of the batch's row."""
    count = int(np.prod(shape))
    values = np.cos(1.7 * np.arange(count) + 0.3)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * np.sin(0.9 * np.arange(count) + 1)
    return np.asarray(values.reshape(shape)).astype(dtype)


def is_inexact(x: Any) -> bool:
    """Returns whether the elements are floats of any width, or complex."""
    dtype = np.dtype(x.dtype)
    return dtype.kind in "fc" or "float" in dtype.name


def difference(got: Array, expected: Array, tolerance: float) -> str:
    """In what `got` is not `expected`; empty if they agree."""
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"is {got.dtype}{got.shape}, expected {expected.dtype}{expected.shape}"
    if not is_inexact(expected):
        wrong = got != expected
        a, b = got, expected
    else:
        wide = np.complex128 if expected.dtype.kind == "c" else np.float64
        a, b = got.astype(wide), expected.astype(wide)
        finite = np.abs(b[np.isfinite(b)])
        # Sums have errors of the size of their largest terms.
        scale = max(1.0, float(np.max(finite, initial=0)))
        wrong = ~np.isclose(a, b, rtol=tolerance, atol=tolerance * min(scale, 10.0), equal_nan=True)
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"differs at {place} and {int(wrong.sum()) - 1} more: expected {b[place]}, got {a[place]}"
    )
