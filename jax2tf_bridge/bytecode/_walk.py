"""Walks over the operations of a module and counts them.

Values, locations and use lists are skipped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from jax2tf_bridge.bytecode import _layout
from jax2tf_bridge.bytecode._layout import VARINT_SIZES, Cursor, Layout, Section

# Bits that mark the optional parts of an operation. The parts are not stored in this order.
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
class _OperationFrame:
    """The remaining regions, blocks and operations of an operation that is being read."""

    name: int
    regions: int
    end: int | None = None
    blocks: int = 0
    operations: int = 0


class ModuleWalk:
    """A walk over all operations of a module, which counts them.

    Args:
      layout: the layout of the module.
      names: indices of the operation names to search for.
      top_only: whether to skip the regions of top-level operations, if their size is known.

    Attributes:
      counts: the number of operations with each name, by the index of the name.
      child_counts: the same, for direct children of matching operations.
      match_counts: the number of each match, in the order of first occurrence.

    Raises:
      FileFormatError: the section of operations is malformed.
      IndexError: the section ends within an operation.
    """

    def __init__(self, layout: Layout, names: frozenset[int], *, top_only: bool = False) -> None:
        n_names = len(layout.operation_names)
        self.counts, self.child_counts = [0] * n_names, [0] * n_names
        self.match_counts: Counter[OperationMatch] = Counter()
        self._cursor, self._version = layout.operations, layout.version
        self._module = next((i for i, n in enumerate(layout.operation_names) if n == MODULE), None)
        self._names, self._top_only = names, top_only
        self._run()

    def _run(self) -> None:
        # The stack is explicit, so nesting depth is not limited by Python's recursion limit.
        cursor = self._cursor
        n_operations, _ = read_block(cursor, self._version)
        if n_operations != 1:
            cursor.fail(f"there are {n_operations} operations where one module is expected")
        stack = [_OperationFrame(-1, 0, operations=1)]
        while stack:
            frame = stack[-1]
            if frame.operations:
                frame.operations -= 1
                inner = self._read_operation(frame.name, len(stack) - 1)
                if inner is not None:
                    stack.append(inner)
            elif frame.blocks:
                frame.blocks -= 1
                frame.operations, _ = read_block(cursor, self._version)
            elif frame.regions:
                frame.regions -= 1
                frame.blocks = cursor.varint()
                if frame.blocks:
                    cursor.varint()  # the number of values in the region
            else:
                if frame.end not in (None, cursor.at):
                    cursor.fail("regions do not end where their section does")
                stack.pop()
        cursor.check_finished()

    def _read_operation(self, parent: int, depth: int) -> _OperationFrame | None:
        cursor = self._cursor
        name = cursor.index("operation", len(self.counts))
        mask = cursor.byte()
        if mask > ALL:
            cursor.fail(f"an operation has unknown parts ({mask:#x})")
        if not depth and name != self._module:
            cursor.fail("the outermost operation is not a module")
        skip_numbers(cursor, 1)  # its location
        attributes = cursor.varint() if mask & ATTRIBUTES else None
        properties = cursor.varint() if mask & PROPERTIES else None
        n_results = 0
        if mask & RESULTS:
            n_results = cursor.varint()
            skip_numbers(cursor, n_results)
        for part in (OPERANDS, SUCCESSORS):
            if mask & part:
                skip_numbers(cursor, cursor.varint())
        if mask & USE_LISTS:
            skip_use_lists(cursor, n_results)
        self.counts[name] += 1
        if parent in self._names:
            self.child_counts[name] += 1
        if name in self._names:
            match = OperationMatch(name, attributes, properties, depth, n_results)
            self.match_counts[match] += 1
            if len(self.match_counts) > _MAX_MATCHES:
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
        cursor.fail(f"there is section {number} where regions are expected")
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
