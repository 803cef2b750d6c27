"""Protocol buffers on the wire, read with every length checked.

https://protobuf.dev/programming-guides/encoding has the format. Nothing is copied: bytes, texts and
messages are views into what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = int | memoryview

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIGN = 1 << 63


class WireError(ValueError):
    """Bytes that are no message; the text is the end of a sentence."""


def fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Reads the fields of a message in their order, by number.

    Numbers come unsigned, whatever the field's type is (see `signed`), others as views.

    Raises:
      WireError: the bytes are no message.
    """
    position, end = 0, len(message)
    while position < end:
        tag, position = varint(message, position)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field has the number 0")
        if kind == _VARINT:
            value, position = varint(message, position)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = varint(message, position)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise WireError(f"a field is of the unknown kind {kind}")
        if size > end - position:
            raise WireError("a field is longer than the message")
        content = message[position : position + size]
        yield number, content if kind == _BYTES else int.from_bytes(content, "little")
        position += size


def varint(data: memoryview, position: int) -> tuple[int, int]:
    """Reads the number at a position, and where the next byte is.

    Raises:
      WireError: there is none.
    """
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise WireError("it ends within a number")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (2 * _SIGN - 1), position
    raise WireError("a number is longer than 64 bits")


def signed(number: int) -> int:
    """Reads an int32 or int64, which is on the wire as 64 bits.

    >>> signed(2**64 - 1)
    -1
    """
    return number - 2 * _SIGN if number >= _SIGN else number


def numbers(value: Value) -> Iterator[int]:
    """Reads the numbers of a repeated field, packed or alone; see `signed`.

    Raises:
      WireError: it ends within a number.
    """
    if isinstance(value, int):
        yield value
        return
    position = 0
    while position < len(value):
        number, position = varint(value, position)
        yield number


def as_number(value: Value) -> int:
    """Reads a field that must be a number.

    Raises:
      WireError: it is none.
    """
    if not isinstance(value, int):
        raise WireError("a field that is a number has bytes")
    return value


def as_bytes(value: Value) -> memoryview:
    """Reads a field that must be bytes or a message.

    Raises:
      WireError: it is a number.
    """
    if isinstance(value, int):
        raise WireError("a field of bytes has a number")
    return value


def as_text(value: Value) -> str:
    """Reads a field that must be text.

    Raises:
      WireError: it is none.
    """
    try:
        return str(as_bytes(value), "utf-8")
    except UnicodeDecodeError as e:
        raise WireError("a text is no UTF-8") from e
