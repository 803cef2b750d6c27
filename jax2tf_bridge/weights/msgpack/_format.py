"""Flax's form of trees in msgpack: what writing and reading have in common.

A tree is one msgpack object: maps, arrays, nil, booleans, 64-bit integers, float64, UTF-8 strings
and binaries are what they are, and extension types hold the rest:

  ARRAY           the msgpack array (shape, dtype's name as str, elements as bin); row-major, one
                  byte for elements narrower than that, little-endian
  COMPLEX         the msgpack array (real, imag), both float64
  NUMPY_SCALAR    as ARRAY, of shape ()

Other codes are not Flax's and pass as msgpack.ExtType; -1 is msgpack's own, msgpack.Timestamp.

An array of more than MAX_CHUNK_SIZE bytes, at the top or reached through maps alone, is the map
{CHUNKED_KEY: True, SHAPE_KEY: {"0": 5, "1": 7}, CHUNKS_KEY: {"0": array, "1": array}} of one-
dimensional arrays.  Below a list it is an ARRAY as any other, up to MAX_ITEM_SIZE.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from jax2tf_bridge.errors import MissingDependencyError
from jax2tf_bridge.weights._array_dtypes import stored_dtype

ARRAY: Final = 1
COMPLEX: Final = 2
NUMPY_SCALAR: Final = 3
EXTENSIONS: Final = frozenset({ARRAY, COMPLEX, NUMPY_SCALAR})

MAX_CHUNK_SIZE: Final = 2**30
"""Bytes of the elements in a chunk, at most; arrays up to this size are not chunked."""

CHUNKED_KEY: Final = "__msgpack_chunked_array__"
SHAPE_KEY: Final = "shape"
CHUNKS_KEY: Final = "chunks"

MAX_ITEM_SIZE: Final = 2**32 - 1
"""Of a str, a bin or an extension in bytes, of a map or an array in items: msgpack's own limit."""

MAX_DEPTH: Final = 512
"""Of maps and arrays within each other: every release of msgpack reads that many."""


def dtype_named(name: str) -> np.dtype[Any] | None:
    """The dtype, in the machine's byte order, of which files hold arrays under this name.

    None for names that readers refuse: of strings, bytes, objects and structures, and of dtypes
    that are not there: float128 on some machines, those of ml_dtypes where that is not installed.

    >>> dtype_named("float32"), dtype_named("datetime64[ns]"), dtype_named("str96")
    (dtype('float32'), dtype('<M8[ns]'), None)
    """
    try:
        found = stored_dtype(name, None)
    except MissingDependencyError:
        return None
    return found if isinstance(found, np.dtype) else None
