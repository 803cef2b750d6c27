"""Pools of values that a .jaxfn file stores once and refers to by index.

Values are numbered in the order in which they are added. Texts are concatenated, as UTF-8.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.serialization._flatbuffer import Field, FlatBufferTable
from jax2tf_bridge.serialization.jaxfn import _schema as schema

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class Pool(Generic[H]):
    """Numbered values without duplicates.

    A pool must not contain equal values of different types, such as 1 and True.

    >>> pool = Pool[str]()
    >>> [pool.index(text) for text in "abca"], pool.values()
    ([0, 1, 2, 0], ('a', 'b', 'c'))
    """

    def __init__(self) -> None:
        self._indices: dict[H, int] = {}

    def index(self, value: H) -> int:
        """Returns the index of a value. Adds the value if it is new."""
        return self._indices.setdefault(value, len(self._indices))

    def indices(self, values: Iterable[H]) -> list[int]:
        """Returns the index of each value. Adds the values that are new."""
        return [self.index(value) for value in values]

    def optional_index(self, value: H | None) -> int | None:
        """Returns the index of a value, which is added if it is new; None for None."""
        return None if value is None else self.index(value)

    def values(self) -> tuple[H, ...]:
        """Returns all values in the order of their indices."""
        return tuple(self._indices)


def encode_texts(texts: Sequence[str]) -> list[bytes]:
    """Encodes each text as UTF-8.

    Raises:
      SerializationError: a text contains a lone surrogate.
    """
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError as e:
        raise SerializationError(
            f"{e.object!r:.200} cannot be written as UTF-8: {e.reason}."
        ) from e


def decode_texts(file: FlatBufferTable) -> list[str]:
    """Reads the texts of a file; `file` is the root table.

    Raises:
      FileFormatError: the texts are not UTF-8, or their sizes are wrong.
    """
    joined = file.string(schema.File.TEXT, "") or ""
    sizes = file.integers(schema.File.TEXT_SIZES)
    # The texts are usually ASCII, where sizes in bytes are sizes in characters.
    data = joined if joined.isascii() else joined.encode()
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


def look_up_all(table: FlatBufferTable, field: Field, pool: Sequence[T]) -> tuple[T, ...]:
    """Returns the values in `pool` at the indices in a field.

    Raises:
      FileFormatError: an index is out of range.
    """
    indices = table.integers(field)
    if not indices:
        return ()
    try:
        return tuple([pool[i] for i in indices])
    except IndexError:
        raise table.error(field, f"indices below {len(pool)}", f"{max(indices)}") from None


def look_up(table: FlatBufferTable, field: Field, pool: Sequence[T]) -> T:
    """Returns the value in `pool` at the index in a field.

    Raises:
      FileFormatError: an index is out of range.
    """
    index = table.integer(field)
    if index >= len(pool):
        raise table.error(field, f"an index below {len(pool)}", f"{index}")
    return pool[index]


def look_up_optional(table: FlatBufferTable, field: Field, pool: Sequence[T]) -> T | None:
    """Returns the value in `pool` at the index in a field; None if the field was not written.

    Raises:
      FileFormatError: an index is out of range.
    """
    return look_up(table, field, pool) if table.has(field) else None


def optional_bytes(table: FlatBufferTable, field: Field) -> bytes | None:
    """Returns a copy of the bytes in a field; None if the field was not written.

    Charges the budget, since a hostile file may refer to the same bytes a million times.
    """
    return bytes(table.integers(field)) if table.has(field) else None
