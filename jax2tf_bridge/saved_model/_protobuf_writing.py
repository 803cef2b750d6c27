"""Writes fields of protocol buffers.

https://protobuf.dev/programming-guides/encoding has the format.
"""

from __future__ import annotations

_VARINT, _BYTES = 0, 2


def varint(value: int) -> bytes:
    """Writes a number; a negative one takes 10 bytes."""
    value &= 2**64 - 1
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def tag(number: int, kind: int) -> bytes:
    """Writes what stands before a field's content."""
    return varint(number << 3 | kind)


def bytes_field(number: int, content: bytes | str) -> bytes:
    """Writes a field of bytes, text, or a message that is written already."""
    data = content.encode() if isinstance(content, str) else content
    return tag(number, _BYTES) + varint(len(data)) + data


def varint_field(number: int, value: int) -> bytes:
    """Writes a field of a number."""
    return tag(number, _VARINT) + varint(value)
