"""Writes FlatBuffers by the fields of their tables, with the builder of the flatbuffers package.

Reading lives apart, since it needs neither this package nor NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.serialization._flatbuffer import CODES, Field, Fields, Offset, Value

_PREPEND = {
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


class Writer:
    """Writer of one FlatBuffer, whose root comes last.

    >>> class Mesh(Field):
    ...     AXIS_NAMES = "[string]"
    ...     DEVICES = "uint", 1
    >>> writer = Writer()
    >>> mesh = writer.table({Mesh.AXIS_NAMES: ["x", "y"], Mesh.DEVICES: 8})
    >>> len(writer.finish(mesh))
    52
    """

    def __init__(self, size: int = 1024, *, skip_empty: bool = False) -> None:
        """Makes room for `size` bytes; `skip_empty` leaves out empty vectors, except bytes."""
        self._builder = flatbuffers.Builder(size)
        self._skip_empty = skip_empty

    def table(self, fields: Fields) -> Offset:
        """Writes a table, without the fields that are None and the scalars at their defaults."""
        builder, written = self._builder, self._written(fields)
        builder.StartObject(1 + max((field for field, _ in written), default=-1))
        for field, value in written:
            if field.is_scalar:
                getattr(builder, _PREPEND[field.element])(field, value, field.default)
            else:
                builder.PrependUOffsetTRelativeSlot(field, value, 0)
        return int(builder.EndObject())

    def written(self, fields: Fields) -> dict[Field, Value]:
        """Writes the texts, vectors and tables of fields; returns each field's scalar or offset."""
        return dict(self._written(fields))

    def _written(self, fields: Fields) -> list[tuple[Field, int]]:
        pairs = fields if isinstance(fields, Iterator) else fields.items()
        found = [(field, self._write(field, value)) for field, value in pairs]
        return [(field, value) for field, value in found if value is not None]

    def _write(self, field: Field, value: Value) -> int | None:
        if value is None:
            return None
        if isinstance(value, int):
            if field.is_scalar and not field.lowest <= value <= field.highest:
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
        if isinstance(value, (list, tuple)):  # mostly: asking for Mapping takes longer
            return self._vector(field, value)
        if isinstance(value, (Mapping, Iterator)):
            return self.table(value)
        return self._vector(field, value)

    def _vector(self, field: Field, values: Any) -> int | None:
        builder = self._builder
        if not values and self._skip_empty:
            return None
        if field.element in CODES:
            try:
                array = np.array(values, _DTYPES[field.element])
            except OverflowError:
                raise _out_of_range(field, values) from None
            return int(builder.CreateNumpyVector(array))
        offsets = [self._write(field, value) for value in values]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())

    def finish(self, root: Offset, identifier: bytes | None = None, room: int = 0) -> memoryview:
        """Returns the file around a root.

        Args:
          root: the offset of the root table.
          identifier: the four bytes that name the format.
          room: how many zero bytes follow, for a header; a multiple of 8.
        """
        builder = self._builder
        if room:
            builder.Prep(8, room)
            builder.Pad(room)
        builder.Finish(root, file_identifier=identifier)
        # As Output() does, with one copy less.
        return memoryview(builder.Bytes)[builder.Head() :]


def _out_of_range(field: Field, values: Sequence[int]) -> SerializationError:
    low, high = field.lowest, field.highest
    got = next((value for value in values if not low <= value <= high), values)
    return SerializationError(f"{field.label} must be from {low} to {high} in a file. Got: {got}")
