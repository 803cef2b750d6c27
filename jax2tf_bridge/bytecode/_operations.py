"""Walks over the operations of a module, counts them, and finds the user's source lines.

Values, locations and use lists are skipped. The walk keeps its own stack, so nesting depth is not
limited by Python's recursion limit.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from jax2tf_bridge.bytecode import _layout
from jax2tf_bridge.bytecode._attributes import Attributes
from jax2tf_bridge.bytecode._cursor import VARINT_SIZES, Cursor
from jax2tf_bridge.bytecode._layout import EntryTable, Layout, Section
from jax2tf_bridge.errors import FileFormatError

# Bits for the optional parts of an operation; the parts are stored in another order.
ATTRIBUTES, RESULTS, OPERANDS, SUCCESSORS, REGIONS, USE_LISTS, PROPERTIES = (
    1 << bit for bit in range(7)
)
ALL = (1 << 7) - 1

MODULE = "builtin.module"

_MAX_MATCHES = 1 << 20
"""Maximum number of distinct matches: more than any real module has; bounds memory."""


@dataclass(frozen=True, slots=True)
class OperationMatch:
    """An operation that matched the search; operations with equal fields are one match.

    Attributes:
      name: the index of its name.
      attributes: the index of its dictionary of attributes.
      properties: the index of its native properties.
      depth: the number of enclosing operations.
      results: the number of its results.
    """

    name: int
    attributes: int | None
    properties: int | None
    depth: int
    results: int


@dataclass(slots=True)
class ModuleWalk:
    """The result of a walk over a module's operations.

    Attributes:
      counts: the number of operations with each name, by the index of the name.
      counts_in_sought: the same, for direct children of matching operations.
      match_counts: the number of each match, in the order of first occurrence.
    """

    counts: list[int]
    child_counts: list[int]
    match_counts: Counter[OperationMatch] = field(default_factory=Counter)


@dataclass(slots=True)
class _OperationFrame:
    """The remaining regions, blocks and operations of an operation that is being read."""

    name: int
    regions: int
    end: int | None = None
    blocks: int = 0
    operations: int = 0


def walk(layout: Layout, names: frozenset[int], *, top_only: bool = False) -> ModuleWalk:
    """Walks over all operations.

    Args:
      layout: the layout of the module.
      names: indices of the operation names to search for.
      top_only: whether to skip the regions of top-level operations, if their size is known.

    Raises:
      FileFormatError: the section of operations is malformed.
    """
    try:
        return _Walker(layout, names, top_only).run()
    except IndexError:
        raise FileFormatError(
            "The StableHLO module cannot be read: its section of operations ends within an "
            "operation. Write the file again."
        ) from None


class _Walker:
    """A stack machine that reads the operations."""

    def __init__(self, layout: Layout, names: frozenset[int], top_only: bool) -> None:
        self._cursor = layout.operations
        self._version, self._n_names = layout.version, len(layout.operation_names)
        self._module = next((i for i, n in enumerate(layout.operation_names) if n == MODULE), None)
        self._names, self._top_only = names, top_only
        self._walk = ModuleWalk([0] * self._n_names, [0] * self._n_names)

    def run(self) -> ModuleWalk:
        cursor = self._cursor
        outermost = _OperationFrame(-1, 0)
        stack = [outermost]
        self._begin_block(outermost)
        if outermost.operations != 1:
            cursor.fail(f"{outermost.operations} operations stand in the place of one module")
        while stack:
            frame = stack[-1]
            if frame.operations:
                frame.operations -= 1
                inner = self._read_operation(frame.name, len(stack) - 1)
                if inner is not None:
                    stack.append(inner)
            elif frame.blocks:
                frame.blocks -= 1
                self._begin_block(frame)
            elif frame.regions:
                frame.regions -= 1
                self._begin_region(frame)
            else:
                if frame.end not in (None, cursor.at):
                    cursor.fail("regions do not end where their section does")
                stack.pop()
        cursor.check_finished()
        return self._walk

    def _begin_region(self, frame: _OperationFrame) -> None:
        frame.blocks = self._cursor.varint()
        if frame.blocks:
            self._cursor.varint()  # the number of values in the region

    def _begin_block(self, frame: _OperationFrame) -> None:
        frame.operations, _ = read_block(self._cursor, self._version)

    def _read_operation(self, parent: int, depth: int) -> _OperationFrame | None:
        cursor = self._cursor
        name = cursor.index("operation", self._n_names)
        mask = cursor.byte()
        if mask > ALL:
            cursor.fail(f"an operation has parts {mask:#x} that are not known")
        if not depth and name != self._module:
            cursor.fail("the outermost operation is no module")
        self._skip(1)  # its location
        attributes = cursor.varint() if mask & ATTRIBUTES else None
        properties = cursor.varint() if mask & PROPERTIES else None
        n_results = 0
        if mask & RESULTS:
            n_results = cursor.varint()
            self._skip(n_results)
        for part in (OPERANDS, SUCCESSORS):
            if mask & part:
                self._skip(cursor.varint())
        if mask & USE_LISTS:
            skip_use_lists(cursor, n_results)
        self._walk.counts[name] += 1
        if parent in self._names:
            self._walk.child_counts[name] += 1
        if name in self._names:
            matches = self._walk.match_counts
            matches[OperationMatch(name, attributes, properties, depth, n_results)] += 1
            if len(matches) > _MAX_MATCHES:
                cursor.fail(f"there are more than {_MAX_MATCHES} functions, constants and calls")
        return self._enter_regions(name, depth) if mask & REGIONS else None

    def _enter_regions(self, name: int, depth: int) -> _OperationFrame | None:
        # Regions that are isolated from outer values are in a section, so they can be skipped.
        regions, _, section = read_regions(self._cursor, self._version)
        if section is None:
            return _OperationFrame(name, regions)
        if self._top_only and depth:
            return None
        self._cursor.at = section.at
        return _OperationFrame(name, regions, section.end)

    def _skip(self, count: int) -> None:
        skip_numbers(self._cursor, count)


def read_block(cursor: Cursor, version: int) -> tuple[int, list[int]]:
    """Reads the header of a block: its number of operations, and its arguments' types."""
    operations, has_arguments = cursor.read_flagged()
    types: list[int] = []
    if not has_arguments:
        return operations, types
    for _ in range(cursor.count("arguments")):
        if version >= _layout.OPTIONAL_LOCATIONS:
            kind, has_location = cursor.read_flagged()
        else:
            kind, has_location = cursor.varint(), True
        types.append(kind)
        if has_location:
            cursor.varint()
    if version >= _layout.USE_LISTS and cursor.byte() & USE_LISTS:
        skip_use_lists(cursor, len(types))
    return operations, types


def read_regions(cursor: Cursor, version: int) -> tuple[int, bool, Cursor | None]:
    """Reads the header of an operation's regions.

    Returns:
      The number of regions; whether they are isolated from outer values; and a cursor over their
      section, which is skipped, or None if they are not in a section.
    """
    regions, isolated = cursor.read_flagged()
    if not isolated or version < _layout.LAZY_REGIONS:
        return regions, isolated, None
    number, section = _layout.read_section(cursor)
    if number != Section.OPERATIONS:
        cursor.fail(f"section {number} stands in the place of regions")
    return regions, isolated, section


def skip_use_lists(cursor: Cursor, n_values: int) -> None:
    """Skips the use lists, which store the order of values' uses if it is not the default."""
    for _ in range(cursor.varint() if n_values > 1 else 1):
        if n_values > 1:
            skip_numbers(cursor, 1)  # the index of the value
        skip_numbers(cursor, cursor.read_flagged()[0])


def skip_numbers(cursor: Cursor, count: int) -> None:
    """Skips `count` varints.

    Raises:
      IndexError: the data ends within a varint.
    """
    data, at = cursor.data, cursor.at
    for _ in range(count):
        at += VARINT_SIZES[data[at]]
    cursor.at = at


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
