"""Files that are damaged or forged, and what a reader must do with them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from jax2tf_bridge import DisabledSafetyCheck, PortableFunction
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import (
    LEAF,
    AbstractDevice,
    AbstractMesh,
    Aval,
    GraphFunction,
    Sharding,
    TreeSpec,
)
from jax2tf_bridge.serialization import deserialize, serialize

# Hand-made files differ from real ones in single fields, so they are written with the writer and
# the fields of the bridge.
from jax2tf_bridge.serialization._flatbuffer import Fields, FlatBufferWriter, Value
from jax2tf_bridge.serialization.jaxfn import _format
from shape_poly import DimExpr
from tests.serialization.records import changed, constant, simple, with_vjps

MESH = AbstractMesh(
    ("x", "u", "r"), (2, 1, 1), ("auto", "auto", "auto"), AbstractDevice("TPU v5", "tpu", 1)
)
TREE = TreeSpec(
    "dict",
    keys=("a", 1, (None, b"b", 2.5)),
    children=(
        LEAF,
        TreeSpec("namedtuple", "Point", ("x", "y"), (LEAF, TreeSpec("none"))),
        TreeSpec("custom", "Node", (), (LEAF,), serialized_name="a.node", auxdata=b"aux"),
    ),
)


def everything() -> PortableFunction:
    """A small portable function of which no field is empty, with a VJP."""
    aval = Aval((DimExpr.variable("b"), 3), "float32", memory_space="host")
    portable = changed(
        simple(TREE),
        in_avals=(aval, Aval((), "key<fry>", (2,)), aval),
        kept_arguments=(0, 2),
        dropped_platforms=(("tpu", "a custom call"),),
        constraints=("b >= 2",),
        requirements=("mod(b, 2) == 0",),
        disabled_checks=(DisabledSafetyCheck.platform(),),
        ordered_effects=("Print",),
        unordered_effects=("Callback",),
        in_shardings=(Sharding(MESH, (("x",), ()), ("u",), ("r",), "pinned_host"), None, None),
        out_shardings=(Sharding(hlo=b"op"),),
        uses_global_constants=True,
        lifted_constants=(constant(Aval((3,), "int16"), b"abcdef", "weights"),),
        graph_functions=(GraphFunction("sine", b"a graph"), GraphFunction("", b"another")),
    )
    return with_vjps(portable, b"the module of the VJP")


DATA = serialize(everything())
STRUCTURE_SIZE = struct.unpack_from("<Q", DATA, 16)[0]


def sealed(data: bytes | bytearray) -> bytes:
    """Data whose structure has the right checksum: made on purpose, not damaged."""
    size = struct.unpack_from("<Q", data, 16)[0]
    checksum = zlib.crc32(data[16:size], zlib.crc32(data[:12]))
    return bytes(data[:12] + struct.pack("<I", checksum) + data[16:])


def refused(data: bytes, *parts: str) -> FileFormatError:
    """Returns the error for data that must not be read; its text has all of the parts."""
    with pytest.raises(FileFormatError) as caught:
        deserialize(data, file="model.jaxfn")
    assert caught.value.file == "model.jaxfn"
    text = str(caught.value)
    assert text.startswith("model.jaxfn ")
    for part in parts:
        assert part in text
    assert len(text) < 2000
    return caught.value


def read_or_refused(data: bytes) -> bool:
    """Returns whether the data was read; if so, the function can be shown and written."""
    try:
        portable = deserialize(data, file="model.jaxfn")
    except FileFormatError:
        return False
    repr(portable)
    serialize(portable)
    return True


def forged(**fields: Any) -> bytes:
    """Writes a file of one function with these fields in place of the right ones.

    Those of other tables than Function are named as trees__kinds.
    """
    tables: dict[str, dict[str, Any]] = {
        "Trees": {"kinds": bytes([2, 2, 4, 0]), "counts": [2, 0, 0]},
        "Avals": {"dtypes": [1], "ranks": [0]},
        "Lowering": {
            "stablehlo_version": [0, 14, 24],
            "platforms": [0],
            "producer": 0,
            "target_name": 0,
        },
        "Function": {"name": 0, "lowering": 0, "out_avals": [0], "module_crc32": 0},
        "File": {
            "text": b"ffloat32b2*2(b)",
            "text_sizes": [1, 7, 1, 3, 3],
            "bridge_version": 0,
            "vjp_missing_because": 0,
        },
    }
    for name, value in fields.items():
        table, _, field = name.rpartition("__")
        tables[table.title() or "Function"][field] = value
    made = {name: rows(name, **values) for name, values in tables.items()}
    return file_of(
        functions=[made["Function"]],
        lowerings=[made["Lowering"]],
        avals=made["Avals"],
        trees=made["Trees"],
        **tables["File"],
    )


def rows(table: str, **values: Value) -> Fields:
    """Makes a table of the schema, by its fields' names."""
    fields = getattr(_format, f"{table}Record")
    return {fields[name.upper()]: value for name, value in values.items()}


def file_of(writer: FlatBufferWriter | None = None, **values: Value) -> bytes:
    """Writes a file with these fields in its root, and without modules."""
    writer = writer or FlatBufferWriter(skip_empty=True)
    root = writer.write_table(rows("File", **values))
    structure = bytearray(writer.finish(root, _format.IDENTIFIER, _format.HEADER_ROOM))
    _format.fill_header(structure, 0)
    return bytes(structure)
