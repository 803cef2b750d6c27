"""Finds the dtypes of stored arrays by name, in a table: NumPy evaluates no name."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np

from jax2tf_bridge.errors import MissingDependencyError
from jax2tf_bridge.portable import find_dtype

MAX_RANK = 64 if int(np.__version__.split(".")[0]) >= 2 else 32
"""NumPy's limit of dimensions."""

MAX_BYTES = 2**63 - 1
"""NumPy's limit of bytes, counting no dimension of size 0."""

# longdouble, where the machine has it.
_LONG = frozenset({"float96", "float128", "complex192", "complex256"})
_DATES = re.compile(
    r"(datetime64|timedelta64)(\[([1-9][0-9]{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?", re.ASCII
)


def stored_dtype(name: str, file: str | None) -> np.dtype[Any] | str:
    """Returns the dtype of this name, or a text of what was expected instead of the name.

    Args:
      name: as `np.dtype.name` has it; no other spelling.
      file: the file that has the name, for messages.

    Raises:
      MissingDependencyError: it is one of ml_dtypes, which is not installed.

    >>> stored_dtype("float32", None), stored_dtype("datetime64[ns]", None)
    (dtype('float32'), dtype('<M8[ns]'))
    >>> stored_dtype("str96", None)
    'the name of a dtype of numbers, such as float32 or bfloat16'
    """
    if name in _LONG or _DATES.fullmatch(name):
        try:
            return np.dtype(name)
        except TypeError:
            return "a dtype that NumPy has on this machine"
    row = find_dtype(name)
    if row is None:
        return "the name of a dtype of numbers, such as float32 or bfloat16"
    try:
        return row.numpy()
    except ImportError:
        needed_for = f"reading {name} from {file or 'bytes'}"
        raise MissingDependencyError("ml_dtypes", "jax", needed_for) from None
    except AttributeError:
        import ml_dtypes

        version = ml_dtypes.__version__
        return f"a dtype of ml_dtypes {version}, which is installed here (a later one may have it)"


def fits_numpy(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Returns whether NumPy can hold an array of this shape; its rank is checked already.

    >>> fits_numpy((0, 2**40), np.dtype("int8")), fits_numpy((0, 2**64), np.dtype("int8"))
    (True, False)
    """
    return prod(filter(None, shape)) * dtype.itemsize <= MAX_BYTES
