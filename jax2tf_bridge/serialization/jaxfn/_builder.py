"""Builds the FlatBuffer of a .jaxfn file, with the code that flatc made of the schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import flatbuffers
import numpy as np

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.serialization.jaxfn import _format
from jax2tf_bridge.serialization.jaxfn._generated import jaxfn_generated

Offset: TypeAlias = int


class Builder:
    """Adds a string, vectors and tables to a buffer; each method returns where it is."""

    def __init__(self) -> None:
        self._builder: Any = flatbuffers.Builder(1024)

    def string(self, data: bytes) -> Offset:
        """Writes a string of UTF-8."""
        return int(self._builder.CreateString(data))

    def offsets(self, offsets: Sequence[Offset]) -> Offset | None:
        """Writes a vector of tables; None, for a field that is not written, if there are none."""
        if not offsets:
            return None
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return int(self._builder.EndVector())

    def bytes(self, data: bytes | bytearray | None) -> Offset | None:
        """Writes a vector of bytes; None for None."""
        return None if data is None else int(self._builder.CreateByteVector(bytes(data)))

    def integers(self, values: Sequence[int], dtype: str) -> Offset | None:
        """Writes a vector of integers of a NumPy dtype; None if there are none.

        Raises:
          SerializationError: one is out of its range.
        """
        if not values:
            return None
        try:
            array = np.array(values, dtype)
        except OverflowError as e:
            raise SerializationError(
                f"A file holds {np.dtype(dtype).name} here, and a number is out of its range: {e}."
            ) from e
        return int(self._builder.CreateNumpyVector(array))

    def table(self, name: str, /, **fields: Offset | bool | None) -> Offset:
        """Writes a table of the schema, by its fields' names; None for what is not written."""
        getattr(jaxfn_generated, f"{name}Start")(self._builder)
        for field, value in fields.items():
            if value is not None:
                camel = "".join(part.capitalize() for part in field.split("_"))
                getattr(jaxfn_generated, f"{name}Add{camel}")(self._builder, value)
        return int(getattr(jaxfn_generated, f"{name}End")(self._builder))

    def finished(self, root: Offset) -> bytearray:
        """Finishes the buffer around its root, with room for the header, which is zero."""
        # So that nothing needs to be filled up between the identifier and the room.
        self._builder.Prep(8, _format.HEADER_ROOM)
        self._builder.Pad(_format.HEADER_ROOM)
        self._builder.Finish(root, file_identifier=_format.IDENTIFIER)
        return bytearray(self._builder.Output())
