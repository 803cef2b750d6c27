"""Writes FlatBuffers by the rows of their tables, with the builder of the flatbuffers package.

Apart from the reader, since reading needs neither this package nor NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.serialization._flatbuffer import CODES, Field, Fields, Offset, Value

_SLOTS = {
    "bool": "Bool",
    "ubyte": "Uint8",
    "byte": "Int8",
    "ushort": "Uint16",
    "short": "Int16",
    "uint": "Uint32",
    "int": "Int32",
    "ulong": "Uint64",
    "long": "Int64",
}


class Writer:
    """Writes tables into one buffer, whose root comes last.

    >>> class Mesh(Field):
    ...     AXIS_NAMES = "[string]"
    ...     DEVICES = "uint", 1
    >>> writer = Writer()
    >>> mesh = writer.table({Mesh.AXIS_NAMES: ["x", "y"], Mesh.DEVICES: 8})
    >>> len(writer.finish(mesh))
    52
    """

    def __init__(self, size: int = 1024, *, skip_empty: bool = False) -> None:
        """With room for `size` bytes at first; `skip_empty` leaves out vectors of nothing.

        Bytes are written even if there are none.
        """
        self._builder = flatbuffers.Builder(size)
        self._skip_empty = skip_empty

    def table(self, fields: Fields) -> Offset:
        """Writes a table; fields that are None, or scalars at their defaults, are left out."""
        builder, written = self._builder, self.written(fields)
        builder.StartObject(1 + max(written, default=-1))
        for field, value in written.items():
            if field.is_scalar:
                getattr(builder, f"Prepend{_SLOTS[field.element]}Slot")(field, value, field.default)
            else:
                builder.PrependUOffsetTRelativeSlot(field, value, 0)
        return int(builder.EndObject())

    def written(self, fields: Fields) -> dict[Field, Value]:
        """Writes the texts, vectors and tables of fields; gives each field's scalar or offset."""
        pairs = fields.items() if isinstance(fields, Mapping) else fields
        found = ((field, self._write(field, value)) for field, value in pairs)
        return {field: value for field, value in found if value is not None}

    def _write(self, field: Field, value: Value) -> int | None:
        if value is None:
            return None
        if isinstance(value, int):
            if field.is_scalar and not _lowest(field) <= value <= _highest(field):
                raise _out_of_range(field, [value])
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
        if isinstance(value, (Mapping, Iterator)):
            return self.table(value)
        return self._vector(field, value)

    def _vector(self, field: Field, values: Any) -> int | None:
        builder = self._builder
        if not values and self._skip_empty:
            return None
        if field.element in CODES:
            dtype = np.dtype(f"<{CODES[field.element]}")
            try:
                array = np.array(values, dtype)
            except OverflowError:
                raise _out_of_range(field, values) from None
            return int(builder.CreateNumpyVector(array))
        offsets = [self._write(field, value) for value in values]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())

    def finish(self, root: Offset, identifier: bytes | None = None, room: int = 0) -> memoryview:
        """Gives the file around a root.

        Args:
          root: what everything hangs on.
          identifier: the four bytes that name the format.
          room: zero bytes behind it, for a header; a multiple of 8.
        """
        builder = self._builder
        if room:
            builder.Prep(8, room)
            builder.Pad(room)
        builder.Finish(root, file_identifier=identifier)
        # As Output() does, with one copy less.
        return memoryview(builder.Bytes)[builder.Head() :]


def _lowest(field: Field) -> int:
    return -1 - _highest(field) if CODES[field.element].islower() else 0


def _highest(field: Field) -> int:
    return int(2 ** (8 * field.scalar.size - CODES[field.element].islower()) - 1)


def _out_of_range(field: Field, values: Sequence[int]) -> SerializationError:
    low, high = _lowest(field), _highest(field)
    got = next((value for value in values if not low <= value <= high), values)
    return SerializationError(f"{field.label} must be from {low} to {high} in a file. Got: {got}")
