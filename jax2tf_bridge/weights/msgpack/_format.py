"""Flax's form of trees in msgpack: the constants that writing and reading share.

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

from typing import Final

ARRAY: Final = 1
COMPLEX: Final = 2
NUMPY_SCALAR: Final = 3
EXTENSIONS: Final = frozenset({ARRAY, COMPLEX, NUMPY_SCALAR})

MAX_CHUNK_SIZE: Final = 2**30
"""Bytes in a chunk, at most; arrays up to this size are not chunked."""

CHUNKED_KEY: Final = "__msgpack_chunked_array__"
SHAPE_KEY: Final = "shape"
CHUNKS_KEY: Final = "chunks"

MAX_ITEM_SIZE: Final = 2**32 - 1
"""msgpack's limit of bytes in a str, bin or extension, and of items in a map or array."""

MAX_DEPTH: Final = 512
"""Maps and arrays within each other, at most: every release of msgpack reads that many."""
