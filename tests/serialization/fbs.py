"""Reads schema/jaxfn.fbs as other tools would, and files by nothing but that schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import flatbuffers
from flatbuffers import number_types

from jax2tf_bridge.serialization import jaxfn

SCHEMA = Path(jaxfn.__file__).parent / "schema" / "jaxfn.fbs"
_FLAGS = {"uint": number_types.Uint32Flags, "ulong": number_types.Uint64Flags}


def schema_text() -> str:
    """Reads the schema without its comments."""
    return re.sub(r"//.*", "", SCHEMA.read_text())


def enums() -> dict[str, list[str]]:
    """Reads the values of each enum, all of which are bytes."""
    found = re.findall(r"enum (\w+) : ubyte \{(.*?)\}", schema_text(), re.DOTALL)
    return {name: re.findall(r"\w+", body) for name, body in found}


def tables() -> dict[str, list[tuple[str, str, str]]]:
    """Reads the fields of each table: name, type, default."""
    field = re.compile(r"(\w+):\s*(\[?\w+\]?)(?:\s*=\s*(\w+))?\s*;")
    found = re.findall(r"table (\w+) \{(.*?)\}", schema_text(), re.DOTALL)
    return {name: field.findall(body) for name, body in found}


class Root:
    """Root of a file, read with the flatbuffers package."""

    def __init__(self, data: bytes) -> None:
        position = flatbuffers.encode.Get(flatbuffers.packer.uoffset, data, 0)
        self._table: Any = flatbuffers.table.Table(bytearray(data), position)
        self._fields = tables()["File"]

    def _place(self, name: str) -> tuple[str, int]:
        slot = [field for field, _, _ in self._fields].index(name)
        return self._fields[slot][1].strip("[]"), self._table.Offset(4 + 2 * slot)

    def text(self, name: str) -> bytes:
        _, place = self._place(name)
        return bytes(self._table.String(place + self._table.Pos))

    def numbers(self, name: str) -> list[int]:
        element, place = self._place(name)
        return list(map(int, self._table.GetVectorAsNumpy(_FLAGS[element], place)))

    def length(self, name: str) -> int:
        return int(self._table.VectorLen(self._place(name)[1]))
