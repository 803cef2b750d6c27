"""Texts as .jaxfn files hold them: each once, all of them one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.serialization._flatbuffer import Table
from jax2tf_bridge.serialization.jaxfn import _schema as schema

T = TypeVar("T")


def encode_texts(texts: Sequence[str]) -> list[bytes]:
    """Each text as UTF-8.

    Raises:
      SerializationError: one of them has no such form.
    """
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError as e:
        raise SerializationError(
            f"A file holds text as UTF-8, which {e.object!r:.200} is not: {e.reason}."
        ) from e


def decode_texts(file: Table) -> list[str]:
    """Reads the texts of a file; `file` is the root.

    Raises:
      FileFormatError: they are no UTF-8, or of other sizes.
    """
    whole = file.string(schema.File.TEXT, "") or ""
    sizes = file.integers(schema.File.TEXT_SIZES, "u32")
    # Mostly all is ASCII, where sizes count characters as well.
    data = whole if whole.isascii() else whole.encode()
    if sum(sizes) != len(data):
        raise file.error(schema.File.TEXT_SIZES, f"{len(data)} bytes together", f"{sum(sizes)}")
    texts, end = [], 0
    for size in sizes:
        start, end = end, end + size
        part = data[start:end]
        if isinstance(part, bytes):
            try:
                part = part.decode()
            except UnicodeDecodeError as e:
                problem = f"{e.reason} at byte {start + e.start}"
                raise file.error(schema.File.TEXT_SIZES, "whole characters", problem) from e
        texts.append(part)
    return texts


def each(table: Table, field: int, pool: Sequence[T]) -> tuple[T, ...]:
    """Looks up what the indices of a field stand for in a pool.

    Raises:
      FileFormatError: one of them is none of it.
    """
    indices = table.integers(field, "u32")
    if not indices:
        return ()
    try:
        return tuple([pool[i] for i in indices])
    except IndexError:
        raise table.error(field, f"indices below {len(pool)}", f"{max(indices)}") from None


def one(table: Table, field: int, pool: Sequence[T]) -> T:
    """Looks up what the index in a field stands for in a pool.

    Raises:
      FileFormatError: it is none of it.
    """
    index = table.integer(field, "u32")
    if index >= len(pool):
        raise table.error(field, f"an index below {len(pool)}", f"{index}")
    return pool[index]


def optional(table: Table, field: int, pool: Sequence[T]) -> T | None:
    """Looks up what the index in a field stands for in a pool; None if it was not written.

    Raises:
      FileFormatError: it is none of it.
    """
    return one(table, field, pool) if table.has(field) else None


def optional_bytes(table: Table, field: int) -> bytes | None:
    """Copies a field's bytes; None if it was not written.

    They count as read, since a file may name the same bytes a million times.
    """
    return bytes(table.integers(field, "u8")) if table.has(field) else None
