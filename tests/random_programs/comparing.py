"""Compares results with those of jax.jit."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.random_programs.values import Array, kind_of

TOLERANCES = {
    "float16": 2.0**-7,
    "bfloat16": 2.0**-5,
    "float32": 2.0**-17,
    "float64": 2.0**-44,
    "complex64": 2.0**-16,
    "complex128": 2.0**-43,
}
"""Relative, by dtype: 8 units in the last place of float16, 4 of bfloat16, and 64 to 256 of others,
for which XLA and TensorFlow have approximations of their own. Other dtypes are compared exactly."""


def smallest(dtype: str) -> float:
    """The smallest normal number: what is smaller may become zero."""
    part = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    return float(ml_dtypes.finfo(part).smallest_normal)  # type: ignore[no-untyped-call]


def wrong_places(actual: Array, expected: Array) -> Array:
    """Marks the elements that differ by more than the tolerance."""
    dtype = str(expected.dtype)
    if kind_of(dtype) not in "fc":
        return np.asarray(actual != expected)
    if kind_of(dtype) == "c":
        # A part may be as wrong as the other is large.
        scale = np.abs(widened(expected))
        scale = np.where(np.isfinite(scale), scale, 0)
        return np.asarray(
            _differ(widened(actual).real, widened(expected).real, dtype, scale)
            | _differ(widened(actual).imag, widened(expected).imag, dtype, scale)
        )
    return _differ(widened(actual), widened(expected), dtype, np.float64(0))


def widened(array: Array) -> Array:
    """Converts an array to float64 or complex128."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _differ(actual: Array, expected: Array, dtype: str, scale: Array | np.float64) -> Array:
    tolerance = TOLERANCES[dtype]
    with np.errstate(all="ignore"):
        close = np.abs(actual - expected) <= (
            2 * smallest(dtype) + tolerance * np.maximum(np.abs(expected), scale)
        )
        close &= np.isfinite(expected) & np.isfinite(actual)
        equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        near_overflow = np.isinf(actual) & (np.abs(expected) >= _largest(dtype) * (1 - tolerance))
        near_overflow |= np.isinf(expected) & (np.abs(actual) >= _largest(dtype) * (1 - tolerance))
    return np.asarray(~(close | equal | (near_overflow & (np.sign(actual) == np.sign(expected)))))


def _largest(dtype: str) -> float:
    part = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    return float(ml_dtypes.finfo(part).max)  # type: ignore[no-untyped-call]


def kind_of_difference(actual: Array, expected: Array, wrong: Array) -> str:
    """Says in a few words how the marked elements differ: "nan for inf", "values"."""
    kinds = {
        f"{_word(a)} for {_word(e)}"
        for a, e in zip(actual[wrong].ravel()[:50], expected[wrong].ravel()[:50], strict=True)
    }
    return ", ".join(sorted(kinds))


def _word(number: object) -> str:
    kind = kind_of(np.asarray(number).dtype)
    if kind not in "fc":
        return "value"
    wide = widened(np.asarray(number))
    if np.isnan(wide):
        return "nan"
    return "inf" if np.isinf(wide) else "value"
