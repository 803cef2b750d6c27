"""Flax's msgpack format: its constants, and the headers of msgpack objects.

A tree is one msgpack object. Maps, arrays, nil, booleans, 64-bit integers, float64, UTF-8 strings
and binaries are stored as such; extension types hold the rest:

  ARRAY_CODE      the msgpack array (shape, dtype's name as str, elements as bin); row-major,
                  little-endian, one byte per element of fewer than 8 bits
  COMPLEX_CODE    the msgpack array (real, imag), both float64
  SCALAR_CODE     like ARRAY_CODE, with the shape ()

Other codes are not Flax's and become msgpack.ExtType; -1 is msgpack's own, msgpack.Timestamp.

An array of more than MAX_CHUNK_SIZE bytes, at the top or nested in maps only, is the map
{CHUNKED_KEY: True, SHAPE_KEY: {"0": 5, "1": 7}, CHUNKS_KEY: {"0": array, "1": array}} of one-
dimensional arrays. Inside a list it is an ordinary array, of at most MAX_ITEM_SIZE bytes.

A header is a small value, or a kind and a length. See
https://github.com/msgpack/msgpack/blob/master/spec.md for the table of headers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

ARRAY_CODE: Final = 1
COMPLEX_CODE: Final = 2
SCALAR_CODE: Final = 3
CODES: Final = frozenset({ARRAY_CODE, COMPLEX_CODE, SCALAR_CODE})
"""Codes of extension types."""

MAX_CHUNK_SIZE: Final = 2**30
"""Maximum size of a chunk in bytes; arrays up to this size are not chunked."""

CHUNKED_KEY: Final = "__msgpack_chunked_array__"
SHAPE_KEY: Final = "shape"
CHUNKS_KEY: Final = "chunks"

MAX_ITEM_SIZE: Final = 2**32 - 1
"""Maximum number of bytes of a str, bin or extension, and of items of a map or array."""

MAX_DEPTH: Final = 512
"""Maximum nesting depth of maps and arrays; every release of msgpack reads that depth."""

VALUE: Final = 0
STR: Final = 1
BIN: Final = 2
EXTENSION: Final = 3
ARRAY: Final = 4
MAP: Final = 5
UNUSED: Final = 6

KINDS: Final = ("a value", "a str", "a bin", "an extension", "an array", "a map", "byte 0xc1")

_Unpack: TypeAlias = Callable[[bytes, int], tuple[Any, ...]]


class Fault(Exception):
    """Error at an offset of invalid msgpack, with the expected and the actual object."""

    def __init__(self, at: int, expected: str, got: str) -> None:
        super().__init__(at, expected, got)
        self.at, self.expected, self.got = at, expected, got


class MsgpackHeader(NamedTuple):
    """Header, identified by its first byte.

    Attributes:
      kind: the kind of the object.
      argument: the value, or the length of the contents, if the first byte has it.
      unpack: reads the argument from the bytes after the first; None if the first byte has it.
      width: the number of these bytes.
    """

    kind: int
    argument: Any
    unpack: _Unpack | None = None
    width: int = 0


def _iter_headers() -> Iterator[MsgpackHeader]:
    for byte in range(0x80):
        yield MsgpackHeader(VALUE, byte)
    for kind, lengths in ((MAP, 16), (ARRAY, 16), (STR, 32)):
        for length in range(lengths):
            yield MsgpackHeader(kind, length)
    yield MsgpackHeader(VALUE, None)
    yield MsgpackHeader(UNUSED, None)
    yield MsgpackHeader(VALUE, False)
    yield MsgpackHeader(VALUE, True)
    for kind, codes in ((BIN, "BHI"), (EXTENSION, "BHI"), (VALUE, "fdBHIQbhiq")):
        yield from _iter_headers_with_argument(kind, codes)
    for length in (1, 2, 4, 8, 16):
        yield MsgpackHeader(EXTENSION, length)
    for kind, codes in ((STR, "BHI"), (ARRAY, "HI"), (MAP, "HI")):
        yield from _iter_headers_with_argument(kind, codes)
    for byte in range(-0x20, 0):
        yield MsgpackHeader(VALUE, byte)


def _iter_headers_with_argument(kind: int, codes: str) -> Iterator[MsgpackHeader]:
    for code in codes:
        packed = struct.Struct(f">{code}")
        yield MsgpackHeader(kind, None, packed.unpack_from, packed.size)


HEADERS: Final = tuple(_iter_headers())
"""Headers, indexed by the first byte."""


def read_header(data: bytes, at: int, end: int, base: int = 0) -> tuple[int, Any, int]:
    """Reads a header; returns its kind, its argument, and the offset after it.

    Args:
      data: bytes of the source from the offset `base`.
      at: the offset of the header in `data`.
      end: the limit of the header in `data`.
      base: the offset of `data`, for errors.

    Raises:
      Fault: the header exceeds the limit.
    """
    if at >= end:
        raise Fault(base + at, "a msgpack object", "the end")
    kind, argument, unpack, width = HEADERS[data[at]]
    at += 1
    if unpack is not None:
        if at + width > end:
            raise make_end_fault(base + at, width, end - at)
        (argument,) = unpack(data, at)
        at += width
    return kind, argument, at


def make_end_fault(at: int, needed: int, left: int) -> Fault:
    return Fault(at, f"{needed} more bytes", f"{left} until the end")


def describe_header(kind: int, argument: Any) -> str:
    """Describes a header, for messages.

    >>> describe_header(STR, 5), describe_header(VALUE, None)
    ('a str of 5', 'None')
    """
    if kind in (VALUE, UNUSED):
        return KINDS[UNUSED] if kind == UNUSED else repr(argument)
    return f"{KINDS[kind]} of {argument}"


def make_binary_header(size: int) -> bytes:
    if size < 2**8:
        return struct.pack(">BB", 0xC4, size)
    if size < 2**16:
        return struct.pack(">BH", 0xC5, size)
    return struct.pack(">BI", 0xC6, size)


_FIXED_SIZES = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}


def make_extension_header(code: int, size: int) -> bytes:
    if size in _FIXED_SIZES:
        return struct.pack(">Bb", _FIXED_SIZES[size], code)
    if size < 2**8:
        return struct.pack(">BBb", 0xC7, size, code)
    if size < 2**16:
        return struct.pack(">BHb", 0xC8, size, code)
    return struct.pack(">BIb", 0xC9, size, code)
