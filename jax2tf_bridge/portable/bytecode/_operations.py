"""Walks over the operations of a module and counts them.

Values, locations and the order of uses are passed over. The walk keeps its own stack, so that
nothing nests too deep for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable.bytecode import _layout
from jax2tf_bridge.portable.bytecode._cursor import VARINT_SIZES, Cursor
from jax2tf_bridge.portable.bytecode._layout import Layout, Section

# The parts that an operation may have; they stand in another order.
ATTRIBUTES, RESULTS, OPERANDS, SUCCESSORS, REGIONS, USE_LISTS, PROPERTIES = (
    1 << bit for bit in range(7)
)
ALL = (1 << 7) - 1

MODULE = "builtin.module"

_MOST_FOUND = 1 << 20
"""More than any module has, so that what is kept of a hostile one stays small."""


@dataclass(frozen=True, slots=True)
class Found:
    """An operation that was looked for; the same for those that have all of this in common.

    Attributes:
      name: the index of its name.
      attributes: the index of its dictionary of attributes.
      properties: the index of its native properties.
      depth: how many operations are around it.
      results: how many it has.
    """

    name: int
    attributes: int | None
    properties: int | None
    depth: int
    results: int


@dataclass(slots=True)
class Walk:
    """A report of one walk over a module's operations.

    Attributes:
      counts: how often each operation was seen, by the index of its name.
      counts_in_sought: the same, of those that stand right in one that was looked for.
      found: how often those that were looked for were seen, in the order of the first.
    """

    counts: list[int]
    counts_in_sought: list[int]
    found: Counter[Found] = field(default_factory=Counter)


@dataclass(slots=True)
class _Frame:
    """An operation whose regions are being read: what of them is left."""

    name: int
    regions: int
    end: int | None = None
    blocks: int = 0
    operations: int = 0


def walk(layout: Layout, names: frozenset[int], *, top_only: bool = False) -> Walk:
    """Walks over all operations.

    Args:
      layout: of the module.
      names: the indices of the operations' names that are looked for.
      top_only: passes over the regions of the operations in the module where their size is known.

    Raises:
      FileFormatError: the section does not hold what the format says.
    """
    try:
        return _Walker(layout, names, top_only).run()
    except IndexError:
        raise FileFormatError(
            "The StableHLO module cannot be read: its section of operations ends within an "
            "operation. Write the file again."
        ) from None


class _Walker:
    """Reads with positions in plain ints: operations are most of what is read."""

    def __init__(self, layout: Layout, names: frozenset[int], top_only: bool) -> None:
        self._cursor = layout.operations
        self._version, self._n_names = layout.version, len(layout.operation_names)
        self._module = next((i for i, n in enumerate(layout.operation_names) if n == MODULE), None)
        self._names, self._top_only = names, top_only
        self._walk = Walk([0] * self._n_names, [0] * self._n_names)

    def run(self) -> Walk:
        cursor = self._cursor
        outermost = _Frame(-1, 0)
        stack = [outermost]
        self._begin_block(outermost)
        if outermost.operations != 1:
            cursor.fail(f"{outermost.operations} operations stand in the place of one module")
        while stack:
            frame = stack[-1]
            if frame.operations:
                frame.operations -= 1
                inner = self._operation(frame.name, len(stack) - 1)
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
        cursor.finished()
        return self._walk

    def _begin_region(self, frame: _Frame) -> None:
        frame.blocks = self._cursor.varint()
        if frame.blocks:
            self._cursor.varint()  # how many values the region has

    def _begin_block(self, frame: _Frame) -> None:
        frame.operations, _ = read_block(self._cursor, self._version)

    def _operation(self, parent: int, depth: int) -> _Frame | None:
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
            self._walk.counts_in_sought[name] += 1
        if name in self._names:
            found = self._walk.found
            found[Found(name, attributes, properties, depth, n_results)] += 1
            if len(found) > _MOST_FOUND:
                cursor.fail(f"there are more than {_MOST_FOUND} functions, constants and calls")
        return self._inside(name, depth) if mask & REGIONS else None

    def _inside(self, name: int, depth: int) -> _Frame | None:
        """Finds an operation's regions, which lie in a section where nothing reaches into them."""
        regions, _, section = read_regions(self._cursor, self._version)
        if section is None:
            return _Frame(name, regions)
        if self._top_only and depth:
            return None
        self._cursor.at = section.at
        return _Frame(name, regions, section.end)

    def _skip(self, count: int) -> None:
        skip_numbers(self._cursor, count)


def read_block(cursor: Cursor, version: int) -> tuple[int, list[int]]:
    """Reads the beginning of a block: how many operations it has, and its arguments' types."""
    operations, has_arguments = cursor.flagged()
    types: list[int] = []
    if not has_arguments:
        return operations, types
    for _ in range(cursor.count("arguments")):
        if version >= _layout.OPTIONAL_LOCATIONS:
            kind, has_location = cursor.flagged()
        else:
            kind, has_location = cursor.varint(), True
        types.append(kind)
        if has_location:
            cursor.varint()
    if version >= _layout.USE_LISTS and cursor.byte() & USE_LISTS:
        skip_use_lists(cursor, len(types))
    return operations, types


def read_regions(cursor: Cursor, version: int) -> tuple[int, bool, Cursor | None]:
    """Reads the beginning of an operation's regions.

    Returns:
      How many they are; whether nothing in them names values from outside; and, for some of
      those, the section in which they lie, which is passed over.
    """
    regions, isolated = cursor.flagged()
    if not isolated or version < _layout.LAZY_REGIONS:
        return regions, isolated, None
    number, section = _layout.read_section(cursor)
    if number != Section.OPERATIONS:
        cursor.fail(f"section {number} stands in the place of regions")
    return regions, isolated, section


def skip_use_lists(cursor: Cursor, n_values: int) -> None:
    """Passes over the order in which values are used, where that is not the usual one."""
    for _ in range(cursor.varint() if n_values > 1 else 1):
        if n_values > 1:
            skip_numbers(cursor, 1)  # which value
        skip_numbers(cursor, cursor.flagged()[0])


def skip_numbers(cursor: Cursor, count: int) -> None:
    """Passes over numbers.

    Raises:
      IndexError: the data ends within one.
    """
    data, at = cursor.data, cursor.at
    for _ in range(count):
        at += VARINT_SIZES[data[at]]
    cursor.at = at
