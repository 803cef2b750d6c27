"""Reads the sections of MLIR bytecode, and the tables that operations refer to.

The format is described at https://mlir.llvm.org/docs/BytecodeFormat/.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax2tf_bridge.bytecode._cursor import Cursor
from jax2tf_bridge.errors import FileFormatError

MAGIC = b"ML\xefR"
NEWEST_VERSION = 6
"""Newest version of MLIR bytecode that this reader supports."""

DIALECT_VERSIONS = 1
LAZY_REGIONS = 2
USE_LISTS = 3
OPTIONAL_LOCATIONS = 4
PROPERTIES = 5

_MAX_PRODUCER_LENGTH = _MAX_NAME_LENGTH = 256
_MAX_OPERATION_NAMES = 1 << 16
"""Maximum number of operation names: far more than all dialects together have."""


class Section(enum.IntEnum):
    """Kinds of sections; the value is the number at the start of a section."""

    STRINGS = 0
    DIALECTS = 1
    ATTRIBUTES_AND_TYPES = 2
    OFFSETS = 3
    OPERATIONS = 4
    RESOURCES = 5
    RESOURCE_OFFSETS = 6
    DIALECT_VERSIONS = 7
    PROPERTIES = 8


_REQUIRED = (
    *(Section.STRINGS, Section.DIALECTS, Section.ATTRIBUTES_AND_TYPES),
    *(Section.OFFSETS, Section.OPERATIONS),
)


class Strings:
    """A table of strings."""

    def __init__(self, section: Cursor) -> None:
        count = section.count("strings")
        sizes = array("Q", (section.varint() for _ in range(count)))
        # The sizes are stored in reverse order, and include the terminating zero byte.
        sizes.reverse()
        self._section, self._starts = section, array("Q", [section.at])
        self._known: dict[int, str] = {}
        for size in sizes:
            if not size:
                section.fail("a string has no end")
            section.skip(size, "a string")
            self._starts.append(section.at)
        section.check_finished()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> str:
        """Reads a string; invalid UTF-8 is replaced."""
        text = self._known.get(index)
        if text is None:
            self._section.checked_index(index, "string", len(self))
            data = self._section.data[self._starts[index] : self._starts[index + 1] - 1]
            text = self._known[index] = str(data, "utf-8", "replace")
        return text

    def name(self, index: int) -> str:
        """Reads the name of a dialect or an operation."""
        text = self[index]
        if len(text) > _MAX_NAME_LENGTH:
            self._section.fail(f"a name has {len(text)} characters")
        return text


@dataclass(frozen=True, slots=True)
class AttributeEntry:
    """An attribute or a type.

    Attributes:
      dialect: the dialect that it belongs to.
      code: the dialect's number for its kind; None if it is stored as text.
      cursor: a cursor over the rest of its bytes.
    """

    dialect: str
    code: int | None
    cursor: Cursor

    @property
    def kind(self) -> tuple[str, int | None]:
        """The pair of dialect and code."""
        return self.dialect, self.code


class EntryTable:
    """A table of the positions and dialects of attributes, or of types."""

    def __init__(
        self, of: str, count: int, offsets: Cursor, data: Cursor, dialects: Sequence[str]
    ) -> None:
        """Reads the sizes of `count` entries, grouped by dialect, from `offsets`.

        The entries themselves are skipped in `data`.
        """
        self._of, self._data = of, data
        self._starts = array("Q", [data.at])
        self._custom = bytearray()
        self._group_ends: list[int] = []
        self._group_dialects: list[str] = []
        while len(self) < count:
            dialect = dialects[offsets.index("dialect", len(dialects))]
            group_size = offsets.count(f"{of}s")
            if not 0 < group_size <= count - len(self):
                offsets.fail(f"{group_size} {of}s come where {count - len(self)} are left")
            for _ in range(group_size):
                size, custom = offsets.read_flagged()
                data.skip(size, of)
                self._starts.append(data.at)
                self._custom.append(custom)
            self._group_ends.append(len(self))
            self._group_dialects.append(dialect)

    def __len__(self) -> int:
        return len(self._custom)

    def __getitem__(self, index: int) -> AttributeEntry:
        self._data.checked_index(index, self._of, len(self))
        dialect = self._group_dialects[bisect_right(self._group_ends, index)]
        data = self._data
        cursor = Cursor(
            data.data, data.what, self._starts[index], self._starts[index + 1], data.base
        )
        return AttributeEntry(dialect, cursor.varint() if self._custom[index] else None, cursor)


class Properties:
    """A table of operations' native properties, each a sequence of bytes."""

    def __init__(self, section: Cursor | None) -> None:
        """Reads the section of properties; None if the module has none."""
        self._starts, self._section = array("Q"), section
        if section is not None:
            for _ in range(section.count("properties")):
                self._starts.append(section.at)
                section.skip(section.varint(), "properties")
            section.check_finished()

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Cursor:
        if self._section is None or index >= len(self):
            raise IndexError(index)
        section = self._section
        cursor = Cursor(section.data, section.what, self._starts[index], base=section.base)
        return cursor.split_off(cursor.varint(), section.what)


@dataclass(frozen=True)
class Layout:
    """A module's tables, and its operations as bytes.

    Attributes:
      version: the version of MLIR bytecode.
      producer: the tool that wrote it, such as "StableHLO_v1.13.0".
      operation_names: full names, such as "vhlo.add_v1".
      operations: the section of the outermost operation.
    """

    version: int
    producer: str
    strings: Strings
    operation_names: tuple[str, ...]
    attributes: EntryTable
    types: EntryTable
    properties: Properties
    operations: Cursor


def read_layout(data: memoryview) -> Layout:
    """Reads the tables of a module; operations and most attributes are not read.

    Raises:
      FileFormatError: the data is not MLIR bytecode, or its version is too new.
    """
    if data[:4] != MAGIC:
        raise FileFormatError(
            "The StableHLO module is no MLIR bytecode, as portable artifacts are: expected "
            f"{len(MAGIC)} bytes {MAGIC!r} at its beginning. Got: {bytes(data[:4])!r}."
        )
    whole = Cursor(data, "its header", at=len(MAGIC))
    version = whole.varint()
    if version > NEWEST_VERSION:
        whole.fail(
            f"the version of MLIR bytecode is {version}, and 0 to {NEWEST_VERSION} are known"
        )
    producer = _read_producer(whole)
    sections = _read_sections(whole)
    strings = Strings(sections[Section.STRINGS])
    dialects, operation_names = _read_dialects(sections[Section.DIALECTS], version, strings)
    offsets, entries = sections[Section.OFFSETS], sections[Section.ATTRIBUTES_AND_TYPES]
    n_attributes, n_types = offsets.count("attributes"), offsets.count("types")
    attributes = EntryTable("attribute", n_attributes, offsets, entries, dialects)
    types = EntryTable("type", n_types, offsets, entries, dialects)
    offsets.check_finished()
    entries.check_finished()
    return Layout(
        version=version,
        producer=producer,
        strings=strings,
        operation_names=operation_names,
        attributes=attributes,
        types=types,
        properties=Properties(sections.get(Section.PROPERTIES)),
        operations=sections[Section.OPERATIONS],
    )


def _read_producer(header: Cursor) -> str:
    start = header.at
    length = bytes(header.data[start : start + _MAX_PRODUCER_LENGTH]).find(0)
    if length < 0:
        header.fail("the name of what wrote it does not end")
    header.skip(length + 1, "the name of what wrote it")
    return str(header.data[start : start + length], "utf-8", "replace")


def read_section(cursor: Cursor) -> tuple[int, Cursor]:
    """Skips the next section; returns its number and a cursor over its bytes."""
    number = cursor.byte()
    size = cursor.varint()
    if number & 0x80:
        cursor.align(cursor.varint())
    return number & 0x7F, cursor.split_off(size, f"section {number & 0x7F}")


def _read_sections(whole: Cursor) -> Mapping[Section, Cursor]:
    sections: dict[Section, Cursor] = {}
    while whole.left:
        number, cursor = read_section(whole)
        if number not in Section.__members__.values() or number in sections:
            whole.fail(f"section {number} is not known, or is there twice")
        section = Section(number)
        cursor.what = f"the section of {section.name.lower().replace('_', ' ')}"
        sections[section] = cursor if section in _UNCOPIED else _copy(cursor)
    missing = [section.name.lower() for section in _REQUIRED if section not in sections]
    if missing:
        whole.fail(f"sections are missing: {', '.join(missing)}")
    return sections


# These contain the constants, so they are not copied but read on demand.
_UNCOPIED = frozenset({Section.ATTRIBUTES_AND_TYPES, Section.RESOURCES})


def _copy(cursor: Cursor) -> Cursor:
    """Copies a section to bytes, which are faster to index than a memoryview."""
    data = bytes(cursor.data[cursor.at : cursor.end])
    return Cursor(data, cursor.what, base=cursor.base + cursor.at)


def _read_dialects(
    section: Cursor, version: int, strings: Strings
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Reads the names of the dialects, and the full names of the operations."""
    dialects = []
    for _ in range(section.count("dialects")):
        if version < DIALECT_VERSIONS:
            dialects.append(strings.name(section.varint()))
            continue
        name, has_version = section.read_flagged()
        dialects.append(strings.name(name))
        if has_version:
            read_section(section)
    if version >= OPTIONAL_LOCATIONS:
        section.count("operations")
    names: list[str] = []
    while section.left:
        dialect = dialects[section.index("dialect", len(dialects))]
        for _ in range(min(section.count("operations"), _MAX_OPERATION_NAMES + 1)):
            name = section.varint() >> (version >= PROPERTIES)
            names.append(f"{dialect}.{strings.name(name)}")
        if len(names) > _MAX_OPERATION_NAMES:
            section.fail(f"there are more than {_MAX_OPERATION_NAMES} kinds of operations")
    return tuple(dialects), tuple(names)
