"""Reads FlatBuffers, with every offset checked and all work bounded; and describes their tables.

The `flatbuffers` package reads whatever the offsets say: bytes from elsewhere make it raise any
exception, or run for hours over tables that share their parts. Here every offset and length is
compared with the bytes that are there before it is followed. Nesting is limited, and so is all
work together: each byte of the buffer may be read a few times, not more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from mmap import mmap
from typing import Any, TypeAlias

from jax2tf_bridge.errors import FileFormatError

Readable: TypeAlias = bytes | bytearray | memoryview | mmap

MAX_DEPTH = 200
"""How deep tables may be nested; writers refuse what is deeper."""

CODES = {
    "bool": "B",
    "ubyte": "B",
    "byte": "b",
    "ushort": "H",
    "short": "h",
    "uint": "I",
    "int": "i",
    "ulong": "Q",
    "long": "q",
}
"""Scalar types of FlatBuffers' schemas, by their codes in struct and NumPy."""

_TWO_U16 = struct.Struct("<2H")
_U16, _U32, _I32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")

# Writers may share strings and tables, so bytes may be read more often than once; a buffer made
# to be read forever needs far more.
_READS_OF_A_BYTE = 16
_FREE_READS = 1 << 16
_TABLE_COST = 8


class Field(IntEnum):
    """One field of a table, whose fields are a subclass, in the schema's order.

    A field's number is its slot. A row is the type, in the words of FlatBuffers' schemas, and the
    default, which is 0 if it is left out:

    >>> class Mesh(Field):
    ...     AXIS_NAMES = "[string]"
    ...     SIZE = "uint", 1
    ...     CORES = "uint", None
    >>> [int(field) for field in Mesh], Mesh.AXIS_NAMES.element, Mesh.SIZE.default
    ([0, 1, 2], 'string', 1)

    Attributes:
      element: the type; for a vector, the type of its elements.
      is_vector: true for a vector.
      is_scalar: true for a single number.
      default: value of a scalar that was not written; None if there is no value then.
      scalar: packs the number, or the offset to what is no number.
      lowest, highest: the range of the numbers.
    """

    element: str
    is_vector: bool
    is_scalar: bool
    default: int | None
    scalar: struct.Struct
    lowest: int
    highest: int

    def __new__(cls, type_name: str, default: int | None = 0) -> Field:
        """Numbers the fields in the order in which they come."""
        field = int.__new__(cls, len(cls.__members__))
        field._value_ = int(field)
        field.element, field.is_vector = type_name.strip("[]"), type_name.startswith("[")
        field.is_scalar, field.default = type_name in CODES, default
        code = CODES.get(field.element, "I")
        field.scalar = struct.Struct(f"<{code}")
        field.highest = 2 ** (8 * field.scalar.size - code.islower()) - 1
        field.lowest = -1 - field.highest if code.islower() else 0
        return field

    @property
    def label(self) -> str:
        """Returns the name as the schema and messages have it."""
        return self.name.lower()


Offset: TypeAlias = int
"""Where something was written."""

Fields: TypeAlias = "Mapping[Any, Value] | Iterator[tuple[Field, Value]]"
"""A table's values by its fields: a mapping, or pairs of which each is written when it comes."""

Value: TypeAlias = "int | str | bytes | bytearray | Fields | Sequence[Any] | None"
"""A field's value: a scalar, text, bytes, a table or a vector of these.

For all but scalars, a number is the offset of what was written before.
"""


class Reader:
    """Reader of one FlatBuffer.

    Every method, here and in Table, raises FileFormatError for bytes that are no FlatBuffer or
    hold something else than what is asked for; and no other exception, whatever the bytes.
    """

    def __init__(self, data: Readable, *, what: str, file: str | None = None) -> None:
        """Takes the bytes, which must not change.

        Args:
          data: the FlatBuffer.
          what: names the format in messages.
          file: where it was read from.
        """
        view = memoryview(data)
        self.view = view.cast("B") if view.c_contiguous else memoryview(bytes(view))
        self.size, self.what, self.file = len(self.view), what, file
        self.budget = _READS_OF_A_BYTE * self.size + _FREE_READS

    @property
    def identifier(self) -> bytes:
        """Reads the four bytes that name the format of the file."""
        if self.size < 8:
            raise self.error("", "at least 8 bytes", f"{self.size}")
        return bytes(self.view[4:8])

    def root(self) -> Table:
        """Reads the root table."""
        return Table(self, self.follow(0, ""), "", 1)

    def again(self) -> Reader:
        """Returns a reader of the same bytes whose budget is whole."""
        return Reader(self.view, what=self.what, file=self.file)

    def error(
        self, path: str, expected: str, got: str, position: int | None = None
    ) -> FileFormatError:
        """Returns the error for bytes at `path` that are not what is `expected`."""
        where = "" if position is None else f" (byte {position})"
        return self.problem(
            f"{path or 'the start'}{where}",
            f"expected {expected}, got {got}. The bytes are cut short, damaged, or of another "
            "format: compare their size with what was written, or write them again.",
        )

    def problem(self, path: str, problem: str) -> FileFormatError:
        """Returns the error for a problem at `path` although the bytes are right."""
        what = self.what if self.file is None else f"{self.what} in {self.file}"
        return FileFormatError(f"{what} cannot be read: {path}: {problem}", file=self.file)

    def spend(self, cost: int, path: str) -> None:
        """Charges the budget for reading `cost` bytes."""
        self.budget -= cost
        if self.budget < 0:
            raise self.error(
                path,
                f"to read each of {self.size} bytes at most {_READS_OF_A_BYTE} times",
                "parts that are shared more often than any writer shares them",
            )

    def within(self, position: int, size: int, path: str, expected: str) -> None:
        """Checks that there are `size` bytes at `position`."""
        if position < 0 or position + size > self.size:
            raise self.error(
                path,
                f"{expected} of {size} bytes",
                f"a place outside of the {self.size} bytes",
                position,
            )

    def follow(self, position: int, path: str) -> int:
        """Follows the offset at `position`."""
        self.within(position, 4, path, "an offset")
        (offset,) = _U32.unpack_from(self.view, position)
        if offset == 0:
            raise self.error(path, "an offset", "0", position)
        return position + int(offset)

    def vector(self, position: int, width: int, path: str) -> tuple[int, int]:
        """Returns where the elements of the vector at `position` begin, and their number."""
        self.within(position, 4, path, "the length of a vector")
        (length,) = _U32.unpack_from(self.view, position)
        if length * width > self.size - position - 4:
            raise self.error(
                path,
                f"at most {max(self.size - position - 4, 0) // width} elements, since the "
                "bytes end there",
                f"{length}",
                position,
            )
        return position + 4, int(length)

    def string_at(self, position: int, path: str) -> str:
        """Reads the string at `position`."""
        start, length = self.vector(position, 1, path)
        self.spend(4 + length, path)
        self.within(start + length, 1, path, "the zero after a string")
        if self.view[start + length] != 0:
            raise self.error(
                path, "a zero after the string", f"{self.view[start + length]}", start + length
            )
        try:
            return str(self.view[start : start + length], "utf-8")
        except UnicodeDecodeError as e:
            raise self.error(path, "text in UTF-8", e.reason, start + e.start) from e


class Table:
    """One table of a FlatBuffer, whose values are read by the fields of its schema.

    Attributes:
      path: how the table is reached from the root, as "vjp.in_tree.children[3]".
    """

    __slots__ = ("_depth", "_fields", "_position", "_reader", "_size", "_vtable", "path")

    def __init__(self, reader: Reader, position: int, path: str, depth: int) -> None:
        """Takes the table at `position`; use Reader.root and Table.table."""
        self._reader, self._position, self.path, self._depth = reader, position, path, depth
        if depth > MAX_DEPTH:
            raise reader.error(path, f"at most {MAX_DEPTH} tables within each other", "more")
        reader.spend(_TABLE_COST, path)
        view, end = reader.view, reader.size
        # within() is asked only to say what is wrong: this is where reading spends its time.
        if position + 4 > end:
            reader.within(position, 4, path, "a table")
        vtable = position - _I32.unpack_from(view, position)[0]
        if vtable < 0 or vtable + 4 > end:
            reader.within(vtable, 4, path, "a table's list of fields")
        vtable_size, self._size = _TWO_U16.unpack_from(view, vtable)
        if vtable_size < 4 or vtable_size % 2:
            raise reader.error(path, "a list of fields of an even size", f"{vtable_size}", vtable)
        if vtable + vtable_size > end:
            reader.within(vtable, vtable_size, path, "a table's list of fields")
        if self._size < 4:
            raise reader.error(path, "a table of at least 4 bytes", f"{self._size}", vtable + 2)
        if position + self._size > end:
            reader.within(position, self._size, path, "a table")
        self._vtable, self._fields = vtable, (vtable_size - 4) // 2

    def field_path(self, field: Field) -> str:
        """Returns how `field` is reached from the root."""
        return f"{self.path}.{field.label}" if self.path else field.label

    def error(self, field: Field | None, expected: str, got: str) -> FileFormatError:
        """Returns the error for a `field`, or the table itself, that holds something else."""
        path = self.path if field is None else self.field_path(field)
        return self._reader.error(path, expected, got)

    def problem(self, field: Field, problem: str) -> FileFormatError:
        """Returns the error for a problem with `field` although the bytes are right."""
        return self._reader.problem(self.field_path(field), problem)

    def spend(self, field: Field, cost: int) -> None:
        """Charges the budget for work of about `cost` bytes that follows from `field`.

        A value that is stored once and named by many indices costs much more to read than to store.
        """
        self._reader.spend(cost, self.field_path(field))

    def has(self, field: Field) -> bool:
        """Tells whether the field was written."""
        return self._place(field, 0) is not None

    def boolean(self, field: Field) -> bool:
        """Reads a bool."""
        value = self.integer(field)
        if value > 1:
            raise self.error(field, "0 or 1", f"{value}")
        return bool(value)

    def integer(self, field: Field) -> int:
        """Reads an integer; its default, or 0, if it was not written."""
        value = self.optional_integer(field)
        return field.default or 0 if value is None else value

    def optional_integer(self, field: Field) -> int | None:
        """Reads an integer; None if it was not written."""
        scalar = field.scalar
        place = self._place(field, scalar.size)
        return None if place is None else int(scalar.unpack_from(self._reader.view, place)[0])

    def string(self, field: Field, default: str | None = None) -> str | None:
        """Reads a string, which must be UTF-8; `default` if it was not written."""
        position = self._target(field)
        if position is None:
            return default
        return self._reader.string_at(position, self.field_path(field))

    def strings(self, field: Field) -> tuple[str, ...]:
        """Reads the strings of a vector; none if it was not written."""
        path = self.field_path(field)
        return tuple(
            self._reader.string_at(self._reader.follow(place, f"{path}[{i}]"), f"{path}[{i}]")
            for i, place in enumerate(self._places(field, 4))
        )

    def bytes(self, field: Field) -> memoryview | None:
        """Reads the bytes of a vector, without copying them; None if it was not written."""
        position = self._target(field)
        if position is None:
            return None
        path = self.field_path(field)
        start, length = self._reader.vector(position, 1, path)
        self._reader.spend(4 + length, path)
        return self._reader.view[start : start + length]

    def integers(self, field: Field) -> tuple[int, ...]:
        """Reads the integers of a vector; none if it was not written."""
        places = self._places(field, field.scalar.size)
        if not places:
            return ()
        code = CODES[field.element]
        return struct.unpack_from(f"<{len(places)}{code}", self._reader.view, places[0])

    def table(self, field: Field) -> Table | None:
        """Reads a table within this one; None if it was not written."""
        position = self._target(field)
        if position is None:
            return None
        return Table(self._reader, position, self.field_path(field), self._depth + 1)

    def tables(self, field: Field) -> tuple[Table, ...]:
        """Reads the tables of a vector; none if it was not written."""
        path, reader, depth = self.field_path(field), self._reader, self._depth + 1
        found: list[Table] = []
        for i, place in enumerate(self._places(field, 4)):
            own_path = f"{path}[{i}]"
            found.append(Table(reader, reader.follow(place, own_path), own_path, depth))
        return tuple(found)

    def again(self) -> Table:
        """Returns this table in a reader whose budget is whole, for a part that is read later."""
        return Table(self._reader.again(), self._position, self.path, self._depth)

    def _place(self, field: Field, width: int) -> int | None:
        """Finds where a field's value lies in the table."""
        if field >= self._fields:
            return None
        entry = self._vtable + 4 + 2 * field
        (offset,) = _U16.unpack_from(self._reader.view, entry)
        if offset == 0:
            return None
        if offset < 4 or offset + width > self._size:
            raise self._reader.error(
                self.field_path(field),
                f"a value within its table of {self._size} bytes",
                f"one of {width} bytes at {offset}",
                entry,
            )
        return self._position + int(offset)

    def _target(self, field: Field) -> int | None:
        place = self._place(field, 4)
        if place is None:
            return None
        (offset,) = _U32.unpack_from(self._reader.view, place)
        # As in __init__: the path is put together only to say what is wrong.
        return place + int(offset) if offset else self._reader.follow(place, self.field_path(field))

    def _places(self, field: Field, width: int) -> range:
        """Finds where the elements of a vector lie."""
        position = self._target(field)
        if position is None:
            return range(0)
        reader = self._reader
        if position + 4 > reader.size:
            reader.vector(position, width, self.field_path(field))
        start = position + 4
        size = int(_U32.unpack_from(reader.view, position)[0]) * width
        if size > reader.size - start:
            reader.vector(position, width, self.field_path(field))
        reader.budget -= 4 + size
        if reader.budget < 0:
            reader.spend(0, self.field_path(field))
        return range(start, start + size, width)
