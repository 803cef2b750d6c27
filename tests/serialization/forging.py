"""Files that are damaged or forged, and what a reader must do with them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from jax2tf_bridge import (
    AbstractDevice,
    AbstractMesh,
    Aval,
    DisabledSafetyCheck,
    FileFormatError,
    PortableFunction,
    Sharding,
    TreeSpec,
)
from jax2tf_bridge.portable._graph_function import GraphFunction
from jax2tf_bridge.portable._tree_spec import LEAF
from jax2tf_bridge.serialization import deserialize, serialize
from jax2tf_bridge.serialization.jaxfn import _format
from jax2tf_bridge.serialization.jaxfn._builder import Builder
from shape_poly import DimExpr
from tests.serialization.records import changed, constant, simple, with_vjps

MESH = AbstractMesh(("x",), (2,), ("auto",), AbstractDevice("TPU v5", "tpu", 1))
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
    """A small record of which no field is empty, with a VJP."""
    aval = Aval((DimExpr.variable("b"), 3), "float32", memory_space="host")
    record = changed(
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
    return with_vjps(record, b"the module of the VJP")


DATA = serialize(everything())
STRUCTURE_SIZE = struct.unpack_from("<Q", DATA, 16)[0]


def sealed(data: bytes | bytearray) -> bytes:
    """Data whose structure has the right checksum: made on purpose, not damaged."""
    size = struct.unpack_from("<Q", data, 16)[0]
    checksum = zlib.crc32(data[16:size], zlib.crc32(data[:12]))
    return bytes(data[:12] + struct.pack("<I", checksum) + data[16:])


def refused(data: bytes, *parts: str) -> FileFormatError:
    """The error for data that must not be read; its text has all of the parts."""
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
    """Whether it was read, and is then a record that can be shown and written."""
    try:
        record = deserialize(data, file="model.jaxfn")
    except FileFormatError:
        return False
    repr(record)
    serialize(record)
    return True


def forged(**fields: Any) -> bytes:
    """A file of one function with these fields in place of the right ones.

    Those of other tables than Function are named as trees__kinds.
    """
    builder = Builder()
    found: dict[str, dict[str, Any]] = {
        "trees": {"kinds": bytes([2, 2, 4, 0]), "counts": [2, 0, 0]},
        "avals": {"dtypes": [1], "ranks": [0]},
        "lowering": {
            "stablehlo_version": [0, 14, 24],
            "platforms": [0],
            "producer": 0,
            "target_name": 0,
        },
        "function": {"name": 0, "lowering": 0, "out_avals": [0], "module_crc32": 0},
        "file": {
            "text": b"ffloat32b2*2(b)",
            "text_sizes": [1, 7, 1, 3, 3],
            "bridge_version": 0,
            "vjp_missing_because": 0,
        },
    }
    for name, value in fields.items():
        place, _, field = name.rpartition("__")
        found[place or "function"][field] = value

    def offset(field: str, value: Any) -> int | None:
        if field == "text":
            return builder.string(value)
        if isinstance(value, bytes):
            return builder.bytes(value)
        if isinstance(value, list):
            dtype = {"sizes": "<i8", "array_sizes": "<u8"}.get(field, "<u4")
            return builder.integers(value, dtype)
        return int(value)

    def table(name: str, place: str, **more: int | None) -> int:
        made = {field: offset(field, value) for field, value in found[place].items()}
        return builder.table(name, **made, **more)

    return finished(
        builder,
        table(
            "File",
            "file",
            functions=builder.offsets([table("Function", "function")]),
            lowerings=builder.offsets([table("Lowering", "lowering")]),
            avals=table("Avals", "avals"),
            trees=table("Trees", "trees"),
        ),
    )


def finished(builder: Builder, root: int) -> bytes:
    """The file around a root that has no modules."""
    structure = builder.finished(root)
    _format.fill_header(structure, 0)
    return bytes(structure)
