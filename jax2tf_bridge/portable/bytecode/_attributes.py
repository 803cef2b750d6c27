"""Reads the attributes that a summary needs: strings, dictionaries, tensors and types.

What an attribute refers to is given by its index and read when it is asked for, so that nothing
here recurses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jax2tf_bridge.portable.bytecode._layout import EntryTable, Strings

# By dialect and by the number that an attribute begins with.
_STRINGS = frozenset({("builtin", 2), ("builtin", 3), ("vhlo", 14)})
_DICTIONARIES = frozenset({("builtin", 1), ("vhlo", 6)})
_TYPES = frozenset({("builtin", 6), ("vhlo", 17)})
_TENSOR = ("vhlo", 15)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A constant's value: the index of its type, and which bytes of the section it is."""

    type: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class TypeReference:
    """An attribute that names a type, by the type's index."""

    type: int


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Names, and the indices of the attributes that they stand for."""

    entries: tuple[tuple[str, int], ...]


Attribute: TypeAlias = str | Tensor | TypeReference | Dictionary | None
"""None stands for all other kinds."""


class Attributes:
    """A table of attributes."""

    def __init__(self, table: EntryTable, strings: Strings, n_types: int) -> None:
        self._table, self._strings, self._n_types = table, strings, n_types
        self._known: dict[int, Attribute] = {}

    def read(self, index: int) -> Attribute:
        """Reads the attribute; None if it is of another kind, known or not.

        Raises:
          FileFormatError: there is none of this index, or its bytes are not what its kind says.
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
            of, size = cursor.index("type", self._n_types), cursor.count("bytes")
            value = Tensor(of, cursor.skip(size, "a tensor"), size)
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
        cursor.finished()
        return value

    def string(self, index: int) -> str | None:
        """Reads the string; None if the attribute is none; it follows no reference."""
        # A dictionary may name itself: so this does not go through `read`.
        entry = self._table[index]
        return self._strings[entry.cursor.varint()] if entry.kind in _STRINGS else None
