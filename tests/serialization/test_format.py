"""Checks the .jaxfn format: its header, its history, and that tables and schema agree."""

from __future__ import annotations

import inspect
import re
import struct
import zlib

import flatbuffers
import pytest

from jax2tf_bridge.serialization import Field, serialize

# The test compares the reader's constants with the schema for other tools.
from jax2tf_bridge.serialization._flatbuffer import CODES
from jax2tf_bridge.serialization.jaxfn import _format
from tests.house.imports import ROOT
from tests.serialization import fbs
from tests.serialization.records import simple

TABLES = {
    name.removesuffix("Record"): kind
    for name, kind in vars(_format).items()
    if isinstance(kind, type) and issubclass(kind, Field) and kind is not Field
}
_DEFAULTS = {"": 0, "null": None, "true": True}


def test_tables_are_those_of_the_schema() -> None:
    expected = {
        table: [
            (
                name.upper(),
                re.sub("|".join(fbs.enums()), "ubyte", type_name),
                _DEFAULTS[default] if default in _DEFAULTS else int(default),
            )
            for name, type_name, default in fields
        ]
        for table, fields in fbs.tables().items()
    }
    found = {
        table: [(f.name, f"[{f.element}]" if f.is_vector else f.element, f.default) for f in fields]
        for table, fields in TABLES.items()
    }
    assert found == expected


def test_enums_are_those_of_the_schema() -> None:
    assert fbs.enums() == {
        "NodeKind": [*_format.NODE_KINDS[:-1], "named_custom"],
        "KeyKind": list(_format.KEY_KINDS),
        "MemorySpace": list(_format.MEMORY_SPACES),
        "AxisType": ["automatic", *_format.AXIS_TYPES[1:]],
    }


def test_every_type_is_one_of_flatbuffers_or_a_table() -> None:
    known = {*CODES, "string", *TABLES}
    assert {field.element for table in TABLES.values() for field in table} <= known


@pytest.mark.checkout
def test_identifier_is_the_schemas() -> None:
    text = fbs.schema_text()
    assert f'file_identifier "{_format.IDENTIFIER.decode()}";' in text
    assert 'file_extension "jaxfn";' in text


def test_layout_is_the_documented_one() -> None:
    data = serialize(simple())
    root, identifier, version, checksum, structure, size = struct.unpack_from("<I4sIIQQ", data)
    assert (identifier, version, size) == (b"JXFN", _format.FIRST_VERSION, len(data))
    assert data[structure:] == b"the module"
    assert checksum == zlib.crc32(data[16:structure], zlib.crc32(data[:12]))
    assert _format.HEADER_SIZE == 32 <= root < structure
    # It is a FlatBuffer with an identifier, to other tools too.
    assert flatbuffers.util.BufferHasIdentifier(data, 0, b"JXFN")
    assert fbs.Root(data).length("functions") == 1


@pytest.mark.checkout
def test_history_says_why_and_the_documentation_has_it() -> None:
    assert list(_format.HISTORY) == list(range(1, _format.VERSION + 1))
    page = (ROOT / "docs" / "file-format.md").read_text()
    for version, reason in _format.HISTORY.items():
        assert re.search(rf"^\| {version} \| {re.escape(reason)} \|$", page, re.MULTILINE)
    layout = inspect.getdoc(_format)
    assert layout is not None
    for line in re.findall(r"^    (\d+-\d*) +(.*)$", layout, re.MULTILINE):
        assert f"| {line[0]} | {line[1]} |" in page
