"""Reads the attributes that a summary needs: strings, dictionaries, tensors and types.

References to other attributes stay indices and are read on demand, so nothing here recurses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jax2tf_bridge.bytecode._layout import EntryTable, Strings

# Kinds of attributes, by dialect and code.
_STRINGS = frozenset({("builtin", 2), ("builtin", 3), ("vhlo", 14)})
_DICTIONARIES = frozenset({("builtin", 1), ("vhlo", 6)})
_TYPES = frozenset({("builtin", 6), ("vhlo", 17)})
_TENSOR = ("vhlo", 15)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A constant's value: the index of its type, and its byte range in the section."""

    type: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class TypeReference:
    """An attribute that refers to a type by index."""

    type: int


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Pairs of a name and the index of an attribute."""

    entries: tuple[tuple[str, int], ...]


Attribute: TypeAlias = str | Tensor | TypeReference | Dictionary | None
"""A summarized attribute; None stands for all other kinds."""


class Attributes:
    """A table of attributes."""

    def __init__(self, table: EntryTable, strings: Strings, n_types: int) -> None:
        self._table, self._strings, self._n_types = table, strings, n_types
        self._known: dict[int, Attribute] = {}

    def read(self, index: int) -> Attribute:
        """Reads an attribute; returns None for all other kinds.

        Raises:
          FileFormatError: the index is out of range, or the bytes are invalid for the kind.
        """
        if index not in self._known:
            self._known[index] = self._read(index)
        return self._known[index]

    def _read(self, index: int) -> Attribute:
        entry = self._table[index]
        kind, cursor = entry.kind, entry.cursor
        value: Attribute = None
        if kind in _STRINGS:
            return self.string(index)
        if kind == _TENSOR:
            type_index, size = cursor.index("type", self._n_types), cursor.count("bytes")
            value = Tensor(type_index, cursor.skip(size, "a tensor"), size)
        elif kind in _TYPES:
            value = TypeReference(cursor.index("type", self._n_types))
        elif kind in _DICTIONARIES:
            entries = []
            for _ in range(cursor.count("entries", 2)):
                name = self.string(cursor.varint())
                if name is None:
                    cursor.fail("a dictionary has a name that is no string")
                entries.append((name, cursor.varint()))
            value = Dictionary(tuple(entries))
        else:
            return None
        cursor.check_finished()
        return value

    def string(self, index: int) -> str | None:
        """Reads a string attribute without following references; None if it is not a string."""
        # A dictionary may refer to itself, so this does not call `read`.
        entry = self._table[index]
        return self._strings[entry.cursor.varint()] if entry.kind in _STRINGS else None
