"""Sizes in bytes of arrays that portable functions and files hold."""

from __future__ import annotations

from types import MappingProxyType

from jax2tf_bridge.portable._portable_function import Aval
from shape_poly import DimExpr

_LARGEST = 2**63 - 1
_ITEM_SIZES = MappingProxyType(
    {
        "bool": 1,
        **{f"{kind}{bits}": bits // 8 for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
        **{f"float{bits}": bits // 8 for bits in (16, 32, 64)},
        "bfloat16": 2,
        "complex64": 8,
        "complex128": 16,
        "float8_e3m4": 1,
        "float8_e4m3": 1,
        "float8_e4m3b11fnuz": 1,
        "float8_e4m3fn": 1,
        "float8_e4m3fnuz": 1,
        "float8_e5m2": 1,
        "float8_e5m2fnuz": 1,
        "float8_e8m0fnu": 1,
    }
)
"""Of the dtypes that are whole bytes; how narrower ones are packed is up to who holds them."""


def array_size(aval: Aval) -> int | str:
    """Counts an array's bytes, or says why it cannot be held: the end of a sentence.

    >>> array_size(Aval((2, 3), "bfloat16")), array_size(Aval((3,), "int4"))
    (12, 'its dtype is int4, of which an element is not a known number of bytes')
    """
    size = _ITEM_SIZES.get(aval.dtype)
    if size is None:
        return f"its dtype is {aval.dtype:.40}, of which an element is not a known number of bytes"
    sizes = [int(dim) for dim in aval.shape if not isinstance(dim, DimExpr) and dim >= 0]
    if len(sizes) != len(aval.shape):
        return "its sizes are not all known"
    if 0 in sizes:
        return 0
    for dim in sizes:
        size *= dim
        # Checked each time: a product of a million large numbers takes hours.
        if size > _LARGEST:
            return f"it has more than {_LARGEST} bytes"
    return size
