"""The dtypes of arrays in files of weights: by name, out of a table, never evaluated by NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from jax2tf_bridge.errors import MissingDependencyError

MAX_RANK = 64 if int(np.__version__.split(".")[0]) >= 2 else 32
"""So many dimensions NumPy's arrays have at most."""

MAX_BYTES = 2**63 - 1
"""So large NumPy's arrays are at most, counting no dimension of size 0."""

_NUMPY = frozenset(
    {
        "bool",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        *("float16", "float32", "float64", "complex64", "complex128"),
        # Of longdouble, where the machine has them.
        *("float96", "float128", "complex192", "complex256"),
    }
)
_ML_DTYPES = frozenset(
    {
        *("bfloat16", "bcomplex32", "complex32"),
        *("int1", "int2", "int4", "uint1", "uint2", "uint4"),
        *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
        *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    }
)
_DATES = re.compile(
    r"(datetime64|timedelta64)(\[([1-9][0-9]{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?", re.ASCII
)


def stored_dtype(name: str, file: str | None) -> np.dtype[Any] | str:
    """The dtype of this name, or why there is none: what was expected instead.

    Args:
      name: as `np.dtype.name` has it; no other spelling.
      file: where it is from, for messages.

    Raises:
      MissingDependencyError: it is one of ml_dtypes, which is not installed.
    """
    if name in _NUMPY or _DATES.fullmatch(name):
        try:
            return np.dtype(name)
        except TypeError:
            return "a dtype that NumPy has on this machine"
    if name not in _ML_DTYPES:
        return "the name of a dtype of numbers, such as float32 or bfloat16"
    try:
        import ml_dtypes
    except ImportError:
        needed_for = f"reading {name} from {file or 'bytes'}"
        raise MissingDependencyError("ml_dtypes", "jax", needed_for) from None
    found = getattr(ml_dtypes, name, None)
    if found is None:
        version = ml_dtypes.__version__
        return f"a dtype of ml_dtypes {version}, which is installed here (a later one may have it)"
    dtype: np.dtype[Any] = np.dtype(found)
    return dtype
