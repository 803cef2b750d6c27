"""What the first bytes of a msgpack object say: a small value, or what follows and how much.

https://github.com/msgpack/msgpack/blob/master/spec.md has the table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

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
    """What is wrong with the bytes.

    Attributes:
      at: the byte where it is seen.
      expected, got: the two sides of it.
    """

    def __init__(self, at: int, expected: str, got: str) -> None:
        """Place and sides of it."""
        super().__init__(at, expected, got)
        self.at, self.expected, self.got = at, expected, got


class Head(NamedTuple):
    """One entry of the table.

    Attributes:
      kind: what begins here.
      argument: the value, or how much follows, where the first byte says it.
      unpack: reads it from the bytes behind the first; None if there are none.
      width: so many.
    """

    kind: int
    argument: Any
    unpack: _Unpack | None = None
    width: int = 0


def _table() -> Iterator[Head]:
    for byte in range(0x80):
        yield Head(VALUE, byte)
    for kind, lengths in ((MAP, 16), (ARRAY, 16), (STR, 32)):
        for length in range(lengths):
            yield Head(kind, length)
    yield Head(VALUE, None)
    yield Head(UNUSED, None)
    yield Head(VALUE, False)
    yield Head(VALUE, True)
    for kind, codes in (
        *((BIN, "BHI"), (EXTENSION, "BHI"), (VALUE, "fd"), (VALUE, "BHIQ"), (VALUE, "bhiq")),
    ):
        for code in codes:
            packed = struct.Struct(f">{code}")
            yield Head(kind, None, packed.unpack_from, packed.size)
    for length in (1, 2, 4, 8, 16):
        yield Head(EXTENSION, length)
    for kind, codes in ((STR, "BHI"), (ARRAY, "HI"), (MAP, "HI")):
        for code in codes:
            packed = struct.Struct(f">{code}")
            yield Head(kind, None, packed.unpack_from, packed.size)
    for byte in range(-0x20, 0):
        yield Head(VALUE, byte)


HEADS: Final = tuple(_table())
"""By first byte."""


def read_head(data: bytes, at: int, end: int, base: int = 0) -> tuple[int, Any, int]:
    """The head at `at`: its kind, its argument, and where what follows begins.

    Args:
      data: the bytes.
      at: where in them.
      end: what it is within ends here.
      base: where `data` begins in the whole, for faults.

    Raises:
      Fault: it is not within the end.
    """
    if at >= end:
        raise Fault(base + at, "a msgpack object", "the end")
    kind, argument, unpack, width = HEADS[data[at]]
    at += 1
    if unpack is not None:
        if at + width > end:
            raise cut_short(base + at, width, end - at)
        (argument,) = unpack(data, at)
        at += width
    return kind, argument, at


def cut_short(at: int, needed: int, left: int) -> Fault:
    """The fault of bytes that are not all there."""
    return Fault(at, f"{needed} more bytes", f"{left} until the end")


def described(kind: int, argument: Any) -> str:
    """What was found, for messages.

    >>> described(STR, 5), described(VALUE, None)
    ('a str of 5', 'None')
    """
    if kind in (VALUE, UNUSED):
        return KINDS[UNUSED] if kind == UNUSED else repr(argument)
    return f"{KINDS[kind]} of {argument}"
