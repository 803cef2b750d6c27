"""Finds the user's source line in the locations of operations."""

from __future__ import annotations

import re

from jax2tf_bridge.portable.bytecode._attributes import Attributes
from jax2tf_bridge.portable.bytecode._layout import EntryTable

# Codes of the builtin locations.
_CALL_SITE, _FILE, _FUSED, _FUSED_WITH, _NAME, _RANGE = 10, 11, 12, 13, 14, 22

_MAX_STEPS = 64
"""Maximum number of nested locations that are visited."""

_FILE_NAME = re.compile(r'[^"<>]+\.\w+')


class Locations:
    """A reader of source lines from a table of attributes."""

    def __init__(self, table: EntryTable, attributes: Attributes, longest: int) -> None:
        """Creates a reader; once all lines together exceed `longest` characters, it gives None."""
        self._table, self._attributes, self._characters_left = table, attributes, longest
        self._known: dict[int, str | None] = {}
        self._files: dict[int, str | None] = {}
        self._places: dict[tuple[str, int], str | None] = {}

    def source(self, index: int) -> str | None:
        """Returns the innermost source line, such as "model.py:12"; None if there is none.

        Raises:
          FileFormatError: the index is out of range, or the attribute is truncated.
        """
        if index not in self._known:
            self._known[index] = self._find_source(index)
        return self._known[index]

    def _find_source(self, index: int) -> str | None:
        pending = [index]
        for _ in range(_MAX_STEPS):
            if not pending:
                break
            entry = self._table[pending.pop()]
            code, cursor = entry.code, entry.cursor
            if entry.dialect != "builtin":
                continue
            if code in (_FILE, _RANGE):
                file = self._read_file_name(cursor.varint())
                has_line = code == _FILE or cursor.varint() > 0
                if file is not None and has_line:
                    return self._format_line(file, cursor.varint())
            elif code == _NAME:
                cursor.varint()
                pending.append(cursor.varint())
            elif code == _CALL_SITE:
                callee, caller = cursor.varint(), cursor.varint()
                pending += [caller, callee]
            elif code in (_FUSED, _FUSED_WITH):
                count = min(cursor.count("locations"), _MAX_STEPS)
                pending += reversed([cursor.varint() for _ in range(count)])
        return None

    def _read_file_name(self, index: int) -> str | None:
        """Reads a name; returns None if it is not a file name."""
        if index not in self._files:
            name = self._attributes.string(index)
            is_file = name is not None and _FILE_NAME.fullmatch(name)
            self._files[index] = name if is_file else None
        return self._files[index]

    def _format_line(self, file: str, line: int) -> str | None:
        text = self._places.get((file, line))
        if text is None and len(file) < self._characters_left:
            text = self._places[file, line] = f"{file}:{line}"
            self._characters_left -= len(text)
        return text
