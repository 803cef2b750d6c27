"""Reads MLIR bytecode: numbers, sections, and the tables that operations refer to.

The format is described at https://mlir.llvm.org/docs/BytecodeFormat/.
"""

from __future__ import annotations

import enum
import mmap
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias, TypeVar

from jax2tf_bridge.errors import FileFormatError

T = TypeVar("T")

Data: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

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


# Size of a varint by its first byte, whose trailing zero bits count the bytes that follow.
VARINT_SIZES = bytes((first & -first).bit_length() if first else 9 for first in range(256))


class Cursor:
    """A position in one section, which advances as values are read.

    Attributes:
      data: the bytes that contain the section.
      at: the index of the next byte to read.
      end: the index of the first byte after the section.
      what: the name of the section, for messages.
      base: the offset of `data` in the module, for messages and alignment.
    """

    __slots__ = ("at", "base", "data", "end", "what")

    def __init__(
        self,
        data: bytes | memoryview,
        what: str,
        at: int = 0,
        end: int | None = None,
        base: int = 0,
    ) -> None:
        self.data, self.what, self.at, self.base = data, what, at, base
        self.end = len(data) if end is None else end

    def fail(self, problem: str) -> NoReturn:
        raise FileFormatError(
            f"The StableHLO module cannot be read: in {self.what}, at byte {self.base + self.at}, "
            f"{problem}. Write the file again; if it is whole, a newer jax2tf-bridge may read it."
        )

    @property
    def left(self) -> int:
        return self.end - self.at

    def byte(self) -> int:
        if self.at >= self.end:
            self.fail("the data ends where a byte was expected")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        """Reads a variable-length integer: 1 to 9 bytes, at most 64 bits."""
        at = self.at
        if at >= self.end:
            self.fail("the data ends where a number was expected")
        first = self.data[at]
        if first & 1:
            self.at = at + 1
            return first >> 1
        size = VARINT_SIZES[first]
        if at + size > self.end:
            self.fail("the data ends within a number")
        self.at = at + size
        if size == 9:
            return int.from_bytes(self.data[at + 1 : at + 9], "little")
        return int.from_bytes(self.data[at : at + size], "little") >> size

    def signed_varint(self) -> int:
        """Reads a signed varint, whose lowest bit is the sign."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def bits(self, width: int) -> int:
        """Reads a number of `width` bits, at most 64, as an unsigned integer."""
        value = self.byte() if width <= 8 else self.signed_varint()
        return value & ((1 << width) - 1)

    def integer(self, width: int, *, signed: bool) -> int:
        """Reads a number of `width` bits, at most 64."""
        value = self.bits(width)
        return value - (1 << width) if signed and value >> (width - 1) else value

    def float64(self) -> float:
        value: float = struct.unpack("<d", struct.pack("<Q", self.bits(64)))[0]
        return value

    def read_flagged(self) -> tuple[int, bool]:
        """Reads a varint; returns it without its lowest bit, and that bit as a flag."""
        value = self.varint()
        return value >> 1, bool(value & 1)

    def count(self, what: str, size: int = 1) -> int:
        """Reads the number of items that follow, of at least `size` bytes each."""
        value = self.varint()
        if value * size > self.left:
            self.fail(f"it declares {value} {what}, but only {self.left} bytes are left")
        return value

    def index(self, what: str, length: int) -> int:
        """Reads an index into a table of `length` entries."""
        return self.checked_index(self.varint(), what, length)

    def checked_index(self, index: int, what: str, length: int) -> int:
        """Returns `index` if it is less than `length`; otherwise raises FileFormatError."""
        if index >= length:
            self.fail(f"it refers to {what} {index}, but the table has {length} entries")
        return index

    def skip(self, size: int, what: str) -> int:
        """Skips `size` bytes; returns the position before them."""
        if size > self.left:
            self.fail(f"it declares {what} of {size} bytes, but only {self.left} bytes are left")
        self.at += size
        return self.at - size

    def align(self, alignment: int) -> None:
        """Skips padding up to the next multiple of `alignment`."""
        if alignment < 1 or alignment & (alignment - 1):
            self.fail(f"the alignment {alignment} is not a power of two")
        self.skip(-(self.base + self.at) % alignment, "padding")

    def split_off(self, size: int, what: str) -> Cursor:
        """Skips the next `size` bytes; returns a cursor over them."""
        start = self.skip(size, what)
        return Cursor(self.data, what, start, start + size, self.base)

    def check_finished(self) -> None:
        if self.left:
            self.fail(f"{self.left} bytes are left over")


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
        return self.dialect, self.code


class EntryTable:
    """A table of the positions and dialects of attributes, or of types."""

    def __init__(
        self, what: str, count: int, offsets: Cursor, data: Cursor, dialects: Sequence[str]
    ) -> None:
        # The sizes of the entries, grouped by dialect, are in `offsets`; the entries in `data`.
        self._what, self._data = what, data
        self._starts = array("Q", [data.at])
        self._custom = bytearray()
        self._group_ends: list[int] = []
        self._group_dialects: list[str] = []
        while len(self) < count:
            dialect = dialects[offsets.index("dialect", len(dialects))]
            group_size = offsets.count(f"{what}s")
            if not 0 < group_size <= count - len(self):
                offsets.fail(f"there are {group_size} {what}s where {count - len(self)} are left")
            for _ in range(group_size):
                size, custom = offsets.read_flagged()
                data.skip(size, what)
                self._starts.append(data.at)
                self._custom.append(custom)
            self._group_ends.append(len(self))
            self._group_dialects.append(dialect)

    def __len__(self) -> int:
        return len(self._custom)

    def __getitem__(self, index: int) -> AttributeEntry:
        self._data.checked_index(index, self._what, len(self))
        dialect = self._group_dialects[bisect_right(self._group_ends, index)]
        data = self._data
        cursor = Cursor(
            data.data, data.what, self._starts[index], self._starts[index + 1], data.base
        )
        return AttributeEntry(dialect, cursor.varint() if self._custom[index] else None, cursor)


_EMPTY_TABLE = b"\x01"  # the varint 0, which is the number of entries


class Properties:
    """A table of operations' native properties, each a sequence of bytes."""

    def __init__(self, section: Cursor) -> None:
        self._starts, self._section = array("Q"), section
        for _ in range(section.count("properties")):
            self._starts.append(section.at)
            section.skip(section.varint(), "properties")
        section.check_finished()

    def __getitem__(self, index: int) -> Cursor:
        section = self._section
        section.checked_index(index, "properties", len(self._starts))
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
      max_characters, max_entries: the maximum total sizes of texts and of dictionaries, because
        shared parts could expand without limit. No real module exceeds them.
    """

    version: int
    producer: str
    strings: Strings
    operation_names: tuple[str, ...]
    attributes: EntryTable
    types: EntryTable
    properties: Properties
    operations: Cursor
    max_characters: int
    max_entries: int


def read_data(data: Data, read: Callable[[memoryview], T]) -> T:
    """Calls `read` with a flat view of the bytes, which are copied only if not contiguous.

    Raises:
      FileFormatError: the operations end too early, or `read` raises it.
    """
    with memoryview(data) as view:
        flat = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        with flat, flat.toreadonly() as readonly:
            try:
                return read(readonly)
            except FileFormatError as e:
                # The traceback's frames hold views, and a mapped file with views cannot be closed.
                raise e.with_traceback(None) from None
            except IndexError:
                raise FileFormatError(
                    "The StableHLO module cannot be read: its section of operations ends within "
                    "an operation. Write the file again."
                ) from None


def read_layout(data: memoryview) -> Layout:
    """Reads the tables of a module; operations and most attributes are not read.

    Raises:
      FileFormatError: the data is not MLIR bytecode, or its version is too new.
    """
    if data[:4] != MAGIC:
        raise FileFormatError(
            "The StableHLO module is not MLIR bytecode, the form of portable artifacts: expected "
            f"{len(MAGIC)} bytes {MAGIC!r} at its beginning. Got: {bytes(data[:4])!r}."
        )
    whole = Cursor(data, "its header", at=len(MAGIC))
    version = whole.varint()
    if version > NEWEST_VERSION:
        whole.fail(
            f"the version of MLIR bytecode is {version}, and 0 to {NEWEST_VERSION} are supported"
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
    no_properties = Cursor(_EMPTY_TABLE, "the section of properties, which is missing")
    return Layout(
        version=version,
        producer=producer,
        strings=strings,
        operation_names=operation_names,
        attributes=attributes,
        types=types,
        properties=Properties(sections.get(Section.PROPERTIES, no_properties)),
        operations=sections[Section.OPERATIONS],
        max_characters=4096 + 32 * len(data),
        max_entries=4096 + 4 * len(data),
    )


def _read_producer(header: Cursor) -> str:
    start = header.at
    length = bytes(header.data[start : start + _MAX_PRODUCER_LENGTH]).find(0)
    if length < 0:
        header.fail("the producer's name has no end")
    header.skip(length + 1, "the producer's name")
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
            whole.fail(f"section {number} is unknown or occurs twice")
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
