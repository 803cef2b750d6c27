"""Sizes in bytes of the arrays in portable functions and files."""

from __future__ import annotations

from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._dtypes import find_dtype
from shape_poly import DimExpr

_MAX_BYTES = 2**63 - 1


def array_size(aval: Aval) -> int | str:
    """Returns the size of an array in bytes, or the reason why it has none as a clause.

    >>> array_size(Aval((2, 3), "bfloat16")), array_size(Aval((3,), "int4"))
    (12, 'its dtype is int4, of which an element is not a known number of bytes')
    """
    row = find_dtype(aval.dtype)
    size = None if row is None else row.itemsize
    if size is None:
        return f"its dtype is {aval.dtype:.40}, of which an element is not a known number of bytes"
    sizes = [int(dim) for dim in aval.shape if not isinstance(dim, DimExpr) and dim >= 0]
    if len(sizes) != len(aval.shape):
        return "its sizes are not all known"
    if 0 in sizes:
        return 0
    for dim in sizes:
        size *= dim
        # Checked in every step, because a product of a million large numbers takes hours.
        if size > _MAX_BYTES:
            return f"it has more than {_MAX_BYTES} bytes"
    return size
