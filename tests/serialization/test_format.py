"""The .jaxfn format: its header, its history, and that reader, schema and generated code agree."""

from __future__ import annotations

import enum
import hashlib
import inspect
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from jax2tf_bridge.serialization import serialize
from jax2tf_bridge.serialization.jaxfn import _format
from jax2tf_bridge.serialization.jaxfn import _schema as _jaxfn_schema
from jax2tf_bridge.serialization.jaxfn._generated import jaxfn_generated
from tests.house.imports import ROOT
from tests.serialization.records import simple

SCHEMA = Path(_format.__file__).parent / "schema" / "jaxfn.fbs"
GENERATED = Path(str(jaxfn_generated.__file__))
TABLES = {
    name: kind
    for name, kind in vars(_jaxfn_schema).items()
    if isinstance(kind, type) and issubclass(kind, enum.IntEnum) and kind is not enum.IntEnum
}
# Additional vtable slots of schema fields, as flatc numbers them.
_ADD = re.compile(r"def (\w+?)Add(\w+)\(.*\n\s+builder\.Prepend\w+Slot\((\d+),")


def _camel(field: str) -> str:
    return "".join(part.capitalize() for part in field.split("_"))


def test_field_ids_are_those_of_the_generated_code() -> None:
    found: dict[str, dict[str, int]] = {}
    for table, field, number in _ADD.findall(GENERATED.read_text()):
        found.setdefault(table, {})[field] = int(number)
    expected = {
        name: {_camel(field.name): field.value for field in fields}
        for name, fields in TABLES.items()
    }
    assert found == expected


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("NodeKind", [*_jaxfn_schema.NODE_KINDS[:-1], "named_custom"]),
        ("KeyKind", list(_jaxfn_schema.KEY_KINDS)),
        ("MemorySpace", list(_jaxfn_schema.MEMORY_SPACES)),
        ("AxisType", ["automatic", *_jaxfn_schema.AXIS_TYPES[1:]]),
    ],
)
def test_enums_are_those_of_the_generated_code(name: str, values: list[str]) -> None:
    made = getattr(jaxfn_generated, name)
    found = {key: value for key, value in vars(made).items() if not key.startswith("__")}
    assert found == {value: i for i, value in enumerate(values)}


@pytest.mark.checkout
def test_generated_code_is_of_this_schema() -> None:
    """Without flatc; scripts/generate_schema --check compares the code itself."""
    header = GENERATED.read_text().splitlines()[:4]
    digest = hashlib.sha256(SCHEMA.read_bytes()).hexdigest()
    assert header[3] == f"# SHA-256 of the schema: {digest}", "run scripts/generate_schema"
    assert "do not edit it" in header[0]
    assert header[2].split()[1:4] == ["flatc", "--python", "--gen-onefile"]


@pytest.mark.checkout
def test_identifier_is_the_schemas() -> None:
    text = SCHEMA.read_text()
    assert f'file_identifier "{_format.IDENTIFIER.decode()}";' in text
    assert 'file_extension "jaxfn";' in text


@pytest.mark.checkout
def test_script_is_executable_python() -> None:
    path = ROOT / "scripts" / "generate_schema"
    assert path.stat().st_mode & 0o111
    compile(path.read_text(), str(path), "exec")


def test_layout_is_the_documented_one() -> None:
    data = serialize(simple())
    root, identifier, version, checksum, structure, size = struct.unpack_from("<I4sIIQQ", data)
    assert (identifier, version, size) == (b"JXFN", _format.FIRST_VERSION, len(data))
    assert data[structure:] == b"the module"
    assert checksum == zlib.crc32(data[16:structure], zlib.crc32(data[:12]))
    assert _format.HEADER_SIZE == 32 <= root < structure
    # It is a FlatBuffer with an identifier, to other tools too.
    reader: Any = jaxfn_generated.File
    assert reader.FileBufferHasIdentifier(data, 0)
    file = reader.GetRootAs(data)
    assert file.FunctionsLength() == 1
    assert file.Functions(0).ModuleSize() == len(b"the module")
    assert file.Functions(0).ModuleCrc32() == zlib.crc32(b"the module")


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
