"""The dtypes of arrays and numbers that are implicitly accepted, by the rules of JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import WIDENED, find_dtype


def is_accepted_as(leaf: Any, dtype: str, *, accepts_bfloat16: bool = False) -> bool:
    """Returns whether an array or number is implicitly accepted as one of a dtype.

    The rules are those of JAX and `convert`: 64-bit values are accepted as 32-bit ones, and 8-bit
    dtypes hold the values that JAX stores in fewer bits.

    Args:
      leaf: the array or number.
      dtype: the dtype.
      accepts_bfloat16: whether float32 also holds bfloat16, as in models for converters.
    """
    actual = dtype_name(leaf)
    if actual is None:
        return can_hold_number(leaf, dtype)
    if accepts_bfloat16 and (actual, dtype) == ("bfloat16", "float32"):
        return True
    return can_become(actual, dtype) or WIDENED.get(actual) == dtype


def dtype_name(leaf: Any) -> str | None:
    """Returns JAX's name of the dtype; None for a Python number, which has no dtype."""
    if isinstance(leaf, (bool, int, float, complex)):
        return None
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    return str(getattr(dtype, "name", dtype))


def can_hold_number(number: complex, expected: str) -> bool:
    """Returns whether a dtype can represent a Python number, up to rounding."""
    row = find_dtype(expected)
    if row is not None and row.is_integer:
        is_signed = row.kind == "int"
        bits = row.bits - is_signed
        minimum = -(1 << bits) if is_signed else 0
        return isinstance(number, int) and minimum <= number < 1 << bits
    if expected == "bool":
        return isinstance(number, bool)
    return not isinstance(number, complex) or (row is not None and row.kind == "complex")


def can_become(actual: str, expected: str) -> bool:
    """Returns whether JAX implicitly accepts a dtype as another: 64 bits as 32 bits."""
    row = find_dtype(actual)
    return actual == expected or (row is not None and row.without_x64 == expected)
