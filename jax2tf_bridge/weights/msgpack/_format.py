"""Constants of Flax's msgpack format, for reading and writing.

A tree is one msgpack object. Maps, arrays, nil, booleans, 64-bit integers, float64, UTF-8 strings
and binaries are stored as such; extension types hold the rest:

  ARRAY           the msgpack array (shape, dtype's name as str, elements as bin); row-major,
                  little-endian, one byte per element of fewer than 8 bits
  COMPLEX         the msgpack array (real, imag), both float64
  NUMPY_SCALAR    like ARRAY, with the shape ()

Other codes are not Flax's and become msgpack.ExtType; -1 is msgpack's own, msgpack.Timestamp.

An array of more than MAX_CHUNK_SIZE bytes, at the top or nested in maps only, is the map
{CHUNKED_KEY: True, SHAPE_KEY: {"0": 5, "1": 7}, CHUNKS_KEY: {"0": array, "1": array}} of one-
dimensional arrays.  Inside a list it is an ordinary ARRAY, of at most MAX_ITEM_SIZE bytes.
"""

from __future__ import annotations

from typing import Final

ARRAY: Final = 1
COMPLEX: Final = 2
NUMPY_SCALAR: Final = 3
EXTENSIONS: Final = frozenset({ARRAY, COMPLEX, NUMPY_SCALAR})

MAX_CHUNK_SIZE: Final = 2**30
"""Maximum size of a chunk in bytes; arrays up to this size are not chunked."""

CHUNKED_KEY: Final = "__msgpack_chunked_array__"
SHAPE_KEY: Final = "shape"
CHUNKS_KEY: Final = "chunks"

MAX_ITEM_SIZE: Final = 2**32 - 1
"""Maximum number of bytes of a str, bin or extension, and of items of a map or array."""

MAX_DEPTH: Final = 512
"""Maximum nesting depth of maps and arrays; every release of msgpack reads that depth."""
