"""Writes FlatBuffers from the fields of their tables, with the flatbuffers package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.serialization._flatbuffer import CODES, Field, Fields, Offset, Value

_PREPEND_METHODS = {
    "bool": "PrependBoolSlot",
    "ubyte": "PrependUint8Slot",
    "byte": "PrependInt8Slot",
    "ushort": "PrependUint16Slot",
    "short": "PrependInt16Slot",
    "uint": "PrependUint32Slot",
    "int": "PrependInt32Slot",
    "ulong": "PrependUint64Slot",
    "long": "PrependInt64Slot",
}
_DTYPES = {name: np.dtype(f"<{code}") for name, code in CODES.items()}


class FlatBufferWriter:
    """Writer of one FlatBuffer. The root table is written last.

    >>> class Mesh(Field):
    ...     AXIS_NAMES = "[string]"
    ...     DEVICES = "uint", 1
    >>> writer = FlatBufferWriter()
    >>> mesh = writer.table({Mesh.AXIS_NAMES: ["x", "y"], Mesh.DEVICES: 8})
    >>> len(writer.finish(mesh))
    52
    """

    def __init__(self, size: int = 1024, *, skip_empty: bool = False) -> None:
        """Allocates `size` bytes. `skip_empty` omits empty vectors, except vectors of bytes."""
        self._builder = flatbuffers.Builder(size)
        self._skip_empty = skip_empty

    def table(self, fields: Fields) -> Offset:
        """Writes a table. Omits fields that are None, and scalars that equal their default."""
        builder, written = self._builder, self._write_all(fields)
        builder.StartObject(1 + max((field for field, _ in written), default=-1))
        for field, value in written:
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
                raise _out_of_range_error(field, [value])
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
            return self.table(value)
        return self._write_vector(field, value)

    def _write_vector(self, field: Field, values: Any) -> int | None:
        builder = self._builder
        if not values and self._skip_empty:
            return None
        if field.element in CODES:
            try:
                array = np.array(values, _DTYPES[field.element])
            except OverflowError:
                raise _out_of_range_error(field, values) from None
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


def _out_of_range_error(field: Field, values: Sequence[int]) -> SerializationError:
    low, high = field.lowest, field.highest
    got = next((value for value in values if not low <= value <= high), values)
    return SerializationError(f"{field.label} must be from {low} to {high} in a file. Got: {got}")
