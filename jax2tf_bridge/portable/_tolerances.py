"""Tolerances between the results of two programs that XLA compiled."""

from __future__ import annotations

from jax2tf_bridge.portable._dtypes import find_dtype

_TOLERANCES = {"float64": 1e-12, "float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}
_OF_NARROW_FLOATS = 0.3


def tolerance_of(dtype: str) -> float:
    """By how much a result may differ, relative to the largest number in it; 0 for integers.

    Both sides are compiled by XLA, of different releases, for programs with other things around:
    sums are taken in another order, and products are fused with them or not. That is some hundred
    roundings (a rounding of float32 is 6e-8), and a few of the 16-bit dtypes, which are mostly
    summed in float32.

    >>> tolerance_of("complex64"), tolerance_of("int32")
    (0.0001, 0.0)
    """
    row = find_dtype(dtype)
    if row is None or not row.is_differentiable:
        return 0.0
    return _TOLERANCES.get(row.real, _OF_NARROW_FLOATS)
