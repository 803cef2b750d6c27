"""Reads FlatBuffers with checked offsets and bounded work, and writes them.

The `flatbuffers` package trusts all offsets. With untrusted bytes it may raise any exception, or
run for hours over tables that share their parts. The reader of this module checks every offset and
length against the size of the buffer before it follows it. It limits the nesting and the total
work: each byte of the buffer may be read a few times, not more. The writer uses the package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from mmap import mmap
from typing import Any, TypeAlias

import flatbuffers
import numpy as np

from jax2tf_bridge.errors import FileFormatError, SerializationError

Readable: TypeAlias = bytes | bytearray | memoryview | mmap

MAX_DEPTH = 200
"""Maximum nesting depth of tables, for readers and writers."""

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
"""Maps each scalar type of FlatBuffers schemas to its code in struct and NumPy."""

_TWO_U16 = struct.Struct("<2H")
_U16, _U32, _I32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")

# Writers may share strings and tables, so a byte may be read more than once. A hostile buffer
# needs far more reads than this.
_MAX_READS_PER_BYTE = 16
_FREE_READS = 1 << 16
_TABLE_COST = 8


class Field(IntEnum):
    """Field of a table. A table is a subclass that lists its fields in the order of the schema.

    The number of a field is its slot. Its value is the type, as FlatBuffers schemas write it, and
    optionally the default, which is otherwise 0:

    >>> class Mesh(Field):
    ...     AXIS_NAMES = "[string]"
    ...     SIZE = "uint", 1
    ...     CORES = "uint", None
    >>> [int(field) for field in Mesh], Mesh.AXIS_NAMES.element, Mesh.SIZE.default
    ([0, 1, 2], 'string', 1)

    Attributes:
      element: the type of the field; for a vector, the type of its elements.
      is_vector: whether the field is a vector.
      is_scalar: whether the field is a single number.
      default: the value of a scalar that was not written; None if it then has no value.
      scalar: packs and unpacks a number of the field, or an offset if it does not hold numbers.
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
        """Makes a field with the next free slot."""
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
        """Returns the name of the field in the schema and in messages."""
        return self.name.lower()


Offset: TypeAlias = int
"""Position of a written object, as the builder counts it."""

Fields: TypeAlias = "Mapping[Any, Value] | Iterator[tuple[Field, Value]]"
"""Values of a table by field: a mapping, or an iterator of pairs, which are written in turn."""

Value: TypeAlias = "int | str | bytes | bytearray | Fields | Sequence[Any] | None"
"""Value of a field: a scalar, text, bytes, a table, or a vector of these.

If the field is not a scalar, an integer is the offset of a value that was written before.
"""


class FlatBufferReader:
    """Reader of one FlatBuffer.

    All methods of this class and of FlatBufferTable raise FileFormatError if the bytes are not a
    FlatBuffer, or do not hold what the caller expects. They never raise another exception.
    """

    def __init__(self, data: Readable, *, what: str, file: str | None = None) -> None:
        """Wraps the bytes, which must not change.

        Args:
          data: the FlatBuffer.
          what: the name of the format, for messages.
          file: the name of the file, for messages.
        """
        view = memoryview(data)
        self.view = view.cast("B") if view.c_contiguous else memoryview(bytes(view))
        self.size, self.what, self.file = len(self.view), what, file
        self.budget = _MAX_READS_PER_BYTE * self.size + _FREE_READS

    def root(self) -> FlatBufferTable:
        """Returns the root table."""
        return FlatBufferTable(self, self.follow(0, ""), "", 1)

    def with_full_budget(self) -> FlatBufferReader:
        """Returns a reader of the same bytes with a full budget."""
        return FlatBufferReader(self.view, what=self.what, file=self.file)

    def error(
        self, path: str, expected: str, got: str, position: int | None = None
    ) -> FileFormatError:
        """Returns the error for bytes at `path` that are not the `expected` ones."""
        byte_text = "" if position is None else f" (byte {position})"
        return self.content_error(
            f"{path or 'the start'}{byte_text}",
            f"expected {expected}, got {got}. The bytes are cut short, damaged, or of another "
            "format: compare their size with what was written, or write them again.",
        )

    def content_error(self, path: str, problem: str) -> FileFormatError:
        """Returns the error for unusable content at `path`, in bytes that are not damaged."""
        what = self.what if self.file is None else f"{self.what} in {self.file}"
        return FileFormatError(f"{what} cannot be read: {path}: {problem}", file=self.file)

    def spend(self, cost: int, path: str) -> None:
        """Charges the budget for reading `cost` bytes."""
        self.budget -= cost
        if self.budget < 0:
            raise self.error(
                path,
                f"to read each of {self.size} bytes at most {_MAX_READS_PER_BYTE} times",
                "parts that are shared more often than any writer shares them",
            )

    def check_bounds(self, position: int, size: int, path: str, expected: str) -> None:
        """Raises an error unless there are `size` bytes at `position`."""
        if position < 0 or position + size > self.size:
            raise self.error(
                path,
                f"{expected} of {size} bytes",
                f"a place outside of the {self.size} bytes",
                position,
            )

    def follow(self, position: int, path: str) -> int:
        """Returns the position that the offset at `position` points to."""
        self.check_bounds(position, 4, path, "an offset")
        (offset,) = _U32.unpack_from(self.view, position)
        if offset == 0:
            raise self.error(path, "an offset", "0", position)
        return position + int(offset)

    def vector(self, position: int, width: int, path: str) -> tuple[int, int]:
        """Returns the position of the first element of the vector at `position`, and its length."""
        self.check_bounds(position, 4, path, "the length of a vector")
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
        self.check_bounds(start + length, 1, path, "the zero after a string")
        if self.view[start + length] != 0:
            raise self.error(
                path, "a zero after the string", f"{self.view[start + length]}", start + length
            )
        try:
            return str(self.view[start : start + length], "utf-8")
        except UnicodeDecodeError as e:
            raise self.error(path, "text in UTF-8", e.reason, start + e.start) from e


class FlatBufferTable:
    """Table of a FlatBuffer. Its values are read by the fields of its schema.

    Attributes:
      path: the path from the root to the table, such as "vjp.in_tree.children[3]".
    """

    __slots__ = ("_depth", "_fields", "_position", "_reader", "_size", "_vtable", "path")

    def __init__(self, reader: FlatBufferReader, position: int, path: str, depth: int) -> None:
        """Wraps the table at `position`.

        Other modules call FlatBufferReader.root or FlatBufferTable.table instead.
        """
        self._reader, self._position, self.path, self._depth = reader, position, path, depth
        if depth > MAX_DEPTH:
            raise reader.error(path, f"at most {MAX_DEPTH} nested tables", "more")
        reader.spend(_TABLE_COST, path)
        view, end = reader.view, reader.size
        # Inlined because this is the hot path: check_bounds() is only called to raise the error.
        if position + 4 > end:
            reader.check_bounds(position, 4, path, "a table")
        vtable = position - _I32.unpack_from(view, position)[0]
        if vtable < 0 or vtable + 4 > end:
            reader.check_bounds(vtable, 4, path, "a table's list of fields")
        vtable_size, self._size = _TWO_U16.unpack_from(view, vtable)
        if vtable_size < 4 or vtable_size % 2:
            raise reader.error(path, "a list of fields of an even size", f"{vtable_size}", vtable)
        if vtable + vtable_size > end:
            reader.check_bounds(vtable, vtable_size, path, "a table's list of fields")
        if self._size < 4:
            raise reader.error(path, "a table of at least 4 bytes", f"{self._size}", vtable + 2)
        if position + self._size > end:
            reader.check_bounds(position, self._size, path, "a table")
        self._vtable, self._fields = vtable, (vtable_size - 4) // 2

    def field_path(self, field: Field) -> str:
        """Returns the path from the root to `field`."""
        return f"{self.path}.{field.label}" if self.path else field.label

    def error(self, field: Field | None, expected: str, got: str) -> FileFormatError:
        """Returns the error for an unexpected value of `field`, or of the whole table for None."""
        path = self.path if field is None else self.field_path(field)
        return self._reader.error(path, expected, got)

    def content_error(self, field: Field, problem: str) -> FileFormatError:
        """Returns the error for unusable content of `field`, in bytes that are not damaged."""
        return self._reader.content_error(self.field_path(field), problem)

    def spend(self, field: Field, cost: int) -> None:
        """Charges the budget for work on `field` that costs about as much as reading `cost` bytes.

        A value that is stored once and referred to by many indices costs much more to read than
        to store.
        """
        self._reader.spend(cost, self.field_path(field))

    def has(self, field: Field) -> bool:
        """Returns whether the field was written."""
        return self._find_value(field, 0) is not None

    def boolean(self, field: Field) -> bool:
        """Reads a bool."""
        value = self.integer(field)
        if value > 1:
            raise self.error(field, "0 or 1", f"{value}")
        return bool(value)

    def integer(self, field: Field) -> int:
        """Reads an integer; the default of the field, or 0, if it was not written."""
        value = self.optional_integer(field)
        return field.default or 0 if value is None else value

    def optional_integer(self, field: Field) -> int | None:
        """Reads an integer; None if it was not written."""
        scalar = field.scalar
        place = self._find_value(field, scalar.size)
        return None if place is None else int(scalar.unpack_from(self._reader.view, place)[0])

    def string(self, field: Field, default: str | None = None) -> str | None:
        """Reads a string in UTF-8; `default` if it was not written."""
        position = self._find_target(field)
        if position is None:
            return default
        return self._reader.string_at(position, self.field_path(field))

    def strings(self, field: Field) -> tuple[str, ...]:
        """Reads a vector of strings; () if it was not written."""
        path = self.field_path(field)
        return tuple(
            self._reader.string_at(self._reader.follow(place, f"{path}[{i}]"), f"{path}[{i}]")
            for i, place in enumerate(self._find_elements(field, 4))
        )

    def bytes(self, field: Field) -> memoryview | None:
        """Returns a vector of bytes without copying it; None if it was not written."""
        position = self._find_target(field)
        if position is None:
            return None
        path = self.field_path(field)
        start, length = self._reader.vector(position, 1, path)
        self._reader.spend(4 + length, path)
        return self._reader.view[start : start + length]

    def integers(self, field: Field) -> tuple[int, ...]:
        """Reads a vector of integers; () if it was not written."""
        places = self._find_elements(field, field.scalar.size)
        if not places:
            return ()
        code = CODES[field.element]
        return struct.unpack_from(f"<{len(places)}{code}", self._reader.view, places[0])

    def table(self, field: Field) -> FlatBufferTable | None:
        """Reads a nested table; None if it was not written."""
        position = self._find_target(field)
        if position is None:
            return None
        return FlatBufferTable(self._reader, position, self.field_path(field), self._depth + 1)

    def tables(self, field: Field) -> tuple[FlatBufferTable, ...]:
        """Reads a vector of tables; () if it was not written."""
        path, reader, depth = self.field_path(field), self._reader, self._depth + 1
        tables: list[FlatBufferTable] = []
        for i, place in enumerate(self._find_elements(field, 4)):
            element_path = f"{path}[{i}]"
            tables.append(
                FlatBufferTable(reader, reader.follow(place, element_path), element_path, depth)
            )
        return tuple(tables)

    def with_full_budget(self) -> FlatBufferTable:
        """Returns this table with a full budget, to read a part of it later."""
        return FlatBufferTable(
            self._reader.with_full_budget(), self._position, self.path, self._depth
        )

    def vector_position(self, field: Field) -> int | None:
        """Returns the position of a vector, where its length is; None if it was not written."""
        return self._find_target(field)

    def _find_value(self, field: Field, width: int) -> int | None:
        """Returns the position of a field's value; None if it was not written."""
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

    def _find_target(self, field: Field) -> int | None:
        place = self._find_value(field, 4)
        if place is None:
            return None
        (offset,) = _U32.unpack_from(self._reader.view, place)
        # Like __init__: follow() is only called to raise the error, since paths are slow to build.
        return place + int(offset) if offset else self._reader.follow(place, self.field_path(field))

    def _find_elements(self, field: Field, width: int) -> range:
        position = self._find_target(field)
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


_DTYPES = {name: np.dtype(f"<{code}") for name, code in CODES.items()}
_PREPEND_METHODS = {n: f"Prepend{dtype.name.capitalize()}Slot" for n, dtype in _DTYPES.items()}


class FlatBufferWriter:
    """Writer of one FlatBuffer. The root table is written last.

    >>> class Mesh(Field):
    ...     AXIS_NAMES = "[string]"
    ...     DEVICES = "uint", 1
    >>> writer = FlatBufferWriter()
    >>> mesh = writer.write_table({Mesh.AXIS_NAMES: ["x", "y"], Mesh.DEVICES: 8})
    >>> len(writer.finish(mesh))
    52
    """

    def __init__(self, size: int = 1024, *, skip_empty: bool = False) -> None:
        """Allocates `size` bytes. `skip_empty` omits empty vectors, except vectors of bytes."""
        self._builder = flatbuffers.Builder(size)
        self._skip_empty = skip_empty

    def write_table(self, fields: Fields) -> Offset:
        """Writes a table. Omits fields that are None, and scalars that equal their default."""
        builder, values = self._builder, self._write_all(fields)
        builder.StartObject(1 + max((field for field, _ in values), default=-1))
        for field, value in values:
            if field.is_scalar:
                getattr(builder, _PREPEND_METHODS[field.element])(field, value, field.default)
            else:
                builder.PrependUOffsetTRelativeSlot(field, value, 0)
        return int(builder.EndObject())

    def write_parts(self, fields: Fields) -> dict[Field, Value]:
        """Writes texts, vectors and nested tables; returns the scalar or offset of each field."""
        return dict(self._write_all(fields))

    def _write_all(self, fields: Fields) -> list[tuple[Field, int]]:
        pairs = fields if isinstance(fields, Iterator) else fields.items()
        values = [(field, self._write(field, value)) for field, value in pairs]
        return [(field, value) for field, value in values if value is not None]

    def _write(self, field: Field, value: Value) -> int | None:
        if value is None:
            return None
        if isinstance(value, int):
            if field.is_scalar and not field.lowest <= value <= field.highest:
                raise _make_range_error(field, [value])
            return value
        if isinstance(value, str):
            try:
                return int(self._builder.CreateString(value))
            except UnicodeEncodeError as e:
                raise SerializationError(f"{value!r} cannot be written as UTF-8: {e.reason}") from e
        if isinstance(value, (bytes, bytearray)):
            if field.element == "string":
                return int(self._builder.CreateString(value))
            return int(self._builder.CreateByteVector(bytes(value)))
        if isinstance(value, (list, tuple)):  # first, since a test for Mapping is slow
            return self._write_vector(field, value)
        if isinstance(value, (Mapping, Iterator)):
            return self.write_table(value)
        return self._write_vector(field, value)

    def _write_vector(self, field: Field, values: Any) -> int | None:
        builder = self._builder
        if not values and self._skip_empty:
            return None
        if field.element in CODES:
            try:
                array = np.array(values, _DTYPES[field.element])
            except OverflowError:
                raise _make_range_error(field, values) from None
            return int(builder.CreateNumpyVector(array))
        offsets = [self._write(field, value) for value in values]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())

    def finish(self, root: Offset, identifier: bytes | None = None, room: int = 0) -> memoryview:
        """Returns the finished file.

        Args:
          root: the offset of the root table.
          identifier: the four bytes that identify the format.
          room: the number of zero bytes to leave after the identifier for a header; a multiple
            of 8.
        """
        builder = self._builder
        if room:
            builder.Prep(8, room)
            builder.Pad(room)
        builder.Finish(root, file_identifier=identifier)
        # Like Output(), but without a copy.
        return memoryview(builder.Bytes)[builder.Head() :]


def _make_range_error(field: Field, values: Sequence[int]) -> SerializationError:
    low, high = field.lowest, field.highest
    got = next((value for value in values if not low <= value <= high), values)
    return SerializationError(f"{field.label} must be from {low} to {high} in a file. Got: {got}")
