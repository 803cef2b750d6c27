"""Finds the user's place in the locations that operations carry."""

from __future__ import annotations

import re

from jax2tf_bridge.portable.bytecode._attributes import Attributes
from jax2tf_bridge.portable.bytecode._layout import EntryTable

# Builtin locations by the numbers that they begin with.
_CALL_SITE, _FILE, _FUSED, _FUSED_WITH, _NAME, _RANGE = 10, 11, 12, 13, 14, 22

_MOST_STEPS = 64
"""Locations within one that are looked at."""

_FILE_NAME = re.compile(r'[^"<>]+\.\w+')


class Locations:
    """A table of attributes, of which some are locations."""

    def __init__(self, table: EntryTable, attributes: Attributes, longest: int) -> None:
        """`longest` is how many characters all places may take together; others are not told."""
        self._table, self._attributes, self._characters_left = table, attributes, longest
        self._known: dict[int, str | None] = {}
        self._files: dict[int, str | None] = {}
        self._places: dict[tuple[str, int], str | None] = {}

    def source(self, index: int) -> str | None:
        """Finds the innermost place in a file, as "model.py:12"; None if there is none.

        Raises:
          FileFormatError: there is no attribute of this index, or its bytes end within it.
        """
        if index not in self._known:
            self._known[index] = self._source(index)
        return self._known[index]

    def _source(self, index: int) -> str | None:
        left = [index]
        for _ in range(_MOST_STEPS):
            if not left:
                break
            entry = self._table[left.pop()]
            code, cursor = entry.code, entry.cursor
            if entry.dialect != "builtin":
                continue
            if code in (_FILE, _RANGE):
                file = self._file(cursor.varint())
                has_line = code == _FILE or cursor.varint() > 0
                if file is not None and has_line:
                    return self._place(file, cursor.varint())
            elif code == _NAME:
                cursor.varint()
                left.append(cursor.varint())
            elif code == _CALL_SITE:
                callee, caller = cursor.varint(), cursor.varint()
                left += [caller, callee]
            elif code in (_FUSED, _FUSED_WITH):
                count = min(cursor.count("locations"), _MOST_STEPS)
                left += reversed([cursor.varint() for _ in range(count)])
        return None

    def _file(self, index: int) -> str | None:
        """Reads a name, if it is one of a file."""
        if index not in self._files:
            name = self._attributes.string(index)
            is_file = name is not None and _FILE_NAME.fullmatch(name)
            self._files[index] = name if is_file else None
        return self._files[index]

    def _place(self, file: str, line: int) -> str | None:
        found = self._places.get((file, line))
        if found is None and len(file) < self._characters_left:
            found = self._places[file, line] = f"{file}:{line}"
            self._characters_left -= len(found)
        return found
