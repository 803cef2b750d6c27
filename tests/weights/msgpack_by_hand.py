"""Writes msgpack byte by byte, including forms that no packer writes."""

from __future__ import annotations

import struct


def uint(value: int) -> bytes:
    return b"\xcf" + struct.pack(">Q", value)


def text(value: str | bytes) -> bytes:
    """Writes a str; bytes are copied as they are."""
    data = value.encode() if isinstance(value, str) else value
    return b"\xdb" + struct.pack(">I", len(data)) + data


def binary(data: bytes) -> bytes:
    return b"\xc6" + struct.pack(">I", len(data)) + data


def sequence(*items: bytes) -> bytes:
    """Writes an array of encoded objects."""
    return b"\xdd" + struct.pack(">I", len(items)) + b"".join(items)


def mapping(*items: bytes) -> bytes:
    """Writes a map of alternating encoded keys and values."""
    return b"\xdf" + struct.pack(">I", len(items) // 2) + b"".join(items)


def extension(code: int, data: bytes) -> bytes:
    return b"\xc9" + struct.pack(">Ib", len(data), code) + data


def array(shape: bytes, dtype: bytes, data: bytes, *, code: int = 1) -> bytes:
    """Writes an array of encoded parts; code 3 is a NumPy scalar."""
    return extension(code, sequence(shape, dtype, data))


def floats(*shape: int, count: int) -> bytes:
    """Writes an array of float32 that claims `shape`, and has `count` elements: 0.0, 1.0, ..."""
    sizes = sequence(*map(uint, shape))
    return array(sizes, text("float32"), binary(struct.pack(f"<{count}f", *range(count))))


def numbered(*items: bytes) -> bytes:
    """Writes a map with the keys "0", "1" and so on, like shapes and chunks of large arrays."""
    return mapping(*(part for i, item in enumerate(items) for part in (text(str(i)), item)))


def chunked(shape: bytes, chunks: bytes, *more: bytes) -> bytes:
    marker = text("__msgpack_chunked_array__"), b"\xc3"
    return mapping(*marker, text("shape"), shape, text("chunks"), chunks, *more)
