"""Pools the values that a .jaxfn file holds once, texts among them, and looks up indices in them.

Values get indices in the order they come. Texts lie one behind the other, as UTF-8.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.serialization._flatbuffer import Field, Table
from jax2tf_bridge.serialization.jaxfn import _schema as schema

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class Pool(Generic[H]):
    """Values without repetitions, in the order in which they came.

    Values of different types that are equal (1, True) must not come into one pool.

    >>> pool = Pool[str]()
    >>> [pool.index(text) for text in "abca"], pool.values()
    ([0, 1, 2, 0], ('a', 'b', 'c'))
    """

    def __init__(self) -> None:
        self._indices: dict[H, int] = {}

    def index(self, value: H) -> int:
        """Returns the index of a value, which is added if it is new."""
        return self._indices.setdefault(value, len(self._indices))

    def indices(self, values: Iterable[H]) -> list[int]:
        """Returns the indices of values, as `index` does."""
        return [self.index(value) for value in values]

    def optional_index(self, value: H | None) -> int | None:
        """Returns the index of a value, as `index` does; None for None."""
        return None if value is None else self.index(value)

    def values(self) -> tuple[H, ...]:
        """Returns all values, each at its index."""
        return tuple(self._indices)


def encode_texts(texts: Sequence[str]) -> list[bytes]:
    """Encodes each text as UTF-8.

    Raises:
      SerializationError: one of them has a lone surrogate.
    """
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError as e:
        raise SerializationError(
            f"{e.object!r:.200} cannot be written as UTF-8: {e.reason}."
        ) from e


def decode_texts(file: Table) -> list[str]:
    """Reads the texts of a file; `file` is the root.

    Raises:
      FileFormatError: they are no UTF-8, or their sizes are wrong.
    """
    whole = file.string(schema.File.TEXT, "") or ""
    sizes = file.integers(schema.File.TEXT_SIZES)
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


def look_up_all(table: Table, field: Field, pool: Sequence[T]) -> tuple[T, ...]:
    """Looks up the values in a pool that a field has the indices of.

    Raises:
      FileFormatError: the pool has no such index.
    """
    indices = table.integers(field)
    if not indices:
        return ()
    try:
        return tuple([pool[i] for i in indices])
    except IndexError:
        raise table.error(field, f"indices below {len(pool)}", f"{max(indices)}") from None


def look_up(table: Table, field: Field, pool: Sequence[T]) -> T:
    """Looks up the value in a pool that a field has the index of.

    Raises:
      FileFormatError: the pool has no such index.
    """
    index = table.integer(field)
    if index >= len(pool):
        raise table.error(field, f"an index below {len(pool)}", f"{index}")
    return pool[index]


def look_up_optional(table: Table, field: Field, pool: Sequence[T]) -> T | None:
    """Looks up the value in a pool that a field has the index of; None if it was not written.

    Raises:
      FileFormatError: the pool has no such index.
    """
    return look_up(table, field, pool) if table.has(field) else None


def optional_bytes(table: Table, field: Field) -> bytes | None:
    """Copies a field's bytes; None if it was not written.

    They are charged to the budget, since a file may name the same bytes a million times.
    """
    return bytes(table.integers(field)) if table.has(field) else None
