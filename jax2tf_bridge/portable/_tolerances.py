"""Tolerances for comparing the results of two programs that XLA compiled."""

from __future__ import annotations

from jax2tf_bridge.portable._dtypes import find_dtype

_TOLERANCES = {"float64": 1e-12, "float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}
_NARROW_FLOAT_TOLERANCE = 0.3


def tolerance_of(dtype: str) -> float:
    """Returns the tolerance of a result, relative to its largest number; 0 for integers.

    Different XLA releases compile the two programs: they sum in different orders and fuse products
    differently. This amounts to some hundred roundings in float32 (6e-8 each), but only a few in
    the 16-bit dtypes, which are mostly summed in float32.

    >>> tolerance_of("complex64"), tolerance_of("int32")
    (0.0001, 0.0)
    """
    row = find_dtype(dtype)
    if row is None or not row.is_differentiable:
        return 0.0
    return _TOLERANCES.get(row.real, _NARROW_FLOAT_TOLERANCE)
