"""Values of random programs' arguments."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
    "float16",
    "bfloat16",
    "float32",
    "complex64",
)
X64_DTYPES = (*DTYPES, "int64", "uint64", "float64", "complex128")


def kind_of(dtype: Any) -> str:
    """The kind of a dtype: b, i, u, f or c; bfloat16 is a float.

    >>> kind_of("bfloat16"), kind_of("uint8")
    ('f', 'u')
    """
    kind = np.dtype(dtype).kind
    return "f" if kind == "V" else kind


def make_values(
    rng: np.random.Generator, dtype: str, shape: tuple[int, ...], specials: float
) -> Array:
    """Draws an array: small numbers, and a share of special ones."""
    kind = kind_of(dtype)
    if kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if kind in "iu":
        low = 0 if kind == "u" else -9
        usual = np.asarray(rng.integers(low, 10, shape)).astype(dtype)
        return _mixed(rng, usual, _integers(dtype), specials)
    if kind == "c":
        part = "float32" if dtype == "complex64" else "float64"
        real, imaginary = (make_values(rng, part, shape, specials / 2) for _ in range(2))
        joined = np.empty(shape, dtype)
        joined.real, joined.imag = real, imaginary
        return joined
    small = np.where(
        rng.random(shape) < 0.3, rng.integers(-4, 5, shape), rng.normal(0, 2, shape)
    ).astype(dtype)
    return _mixed(rng, small, _floats(dtype), specials)


def _mixed(rng: np.random.Generator, usual: Array, special: Array, share: float) -> Array:
    chosen = rng.random(usual.shape) < share
    return np.where(chosen, special[rng.integers(0, len(special), usual.shape)], usual)


def _integers(dtype: str) -> Array:
    info = np.iinfo(dtype)
    numbers = [info.max, info.min, info.max - 1, info.max // 2 + 1, 0, 1, info.bits, info.bits - 1]
    if info.min < 0:
        numbers += [-1, info.min + 1]
    return np.array(numbers, dtype)


def _floats(dtype: str) -> Array:
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    numbers = ["nan", "inf", "-inf", "-0.0", "0", "1", "-1", "0.5", "300", "-1e4", "3e4"]
    values = [np.array(float(text)).astype(dtype) for text in numbers]
    limits = [info.max, info.min, info.smallest_normal, info.eps]
    return np.array([*values, *(np.array(limit).astype(dtype) for limit in limits)], dtype)
