"""JAX's exported functions made by hand, field by field, for tests that need no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from jax2tf_bridge import PortableFunction
from jax2tf_bridge.portable import LEAF, Aval, TreeSpec
from jax2tf_bridge.serialization import Field

# Hand-made files differ from real ones in single fields, so they are written with the writer and
# the fields of the bridge.
from jax2tf_bridge.serialization._flatbuffer import Fields, FlatBufferWriter, Value
from jax2tf_bridge.serialization.jax_exported import ExportedField, TreeField

# Private: files with fields that the writer never writes.
from jax2tf_bridge.serialization.jax_exported._schema import (
    AvalField,
    DeviceField,
    MeshField,
    NamedShardingField,
    PartitionField,
    ShardingField,
    SpecField,
)
from jax2tf_bridge.serialization.jax_exported._write import (
    make_aval_table,
    write_tree,
)
from tests.serialization.records import call_tree, changed, simple

MODULE = b"ML\xefR\x0dStableHLO_v1.13.1\x00and so on"
ByHand: TypeAlias = "Value | Callable[[FlatBufferWriter], Value]"
"""Value of a field, or a function that writes it."""


def avals(*them: Aval) -> list[Fields]:
    return [make_aval_table(aval) for aval in them]


def tree(spec: TreeSpec) -> Callable[[FlatBufferWriter], Value]:
    return lambda writer: write_tree(writer, spec)


def exported(writer: FlatBufferWriter, fields: Mapping[Field, ByHand]) -> Value:
    """Writes a function of one float32 array; the fields that are given replace its own."""
    array = Aval((2,), "float32")
    everything: dict[Field, ByHand] = {
        ExportedField.FUNCTION_NAME: "f",
        ExportedField.IN_TREE: tree(call_tree(LEAF)),
        ExportedField.IN_AVALS: avals(array),
        ExportedField.OUT_TREE: tree(LEAF),
        ExportedField.OUT_AVALS: avals(array),
        ExportedField.PLATFORMS: ["cpu"],
        ExportedField.MODULE: MODULE,
        ExportedField.MODULE_KEPT_VAR_IDX: [0],
        ExportedField.SERIALIZATION_VERSION: 3,
        ExportedField.CALLING_CONVENTION_VERSION: 10,
        ExportedField.NR_DEVICES: 1,
        **fields,
    }
    return writer.write_table(
        {field: value(writer) if callable(value) else value for field, value in everything.items()}
    )


def by_hand(fields: Mapping[Any, ByHand] | None = None) -> bytes:
    """Writes the bytes of a function of one array, with these fields in the place of its own."""
    writer = FlatBufferWriter()
    root = exported(writer, fields or {})
    assert isinstance(root, int)
    return bytes(writer.finish(root))


def writable(**changes: Any) -> PortableFunction:
    """A portable function of one array to one array, with these fields in place of its own."""
    own: dict[str, Any] = {"module": MODULE, "stablehlo_version": (1, 13, 1)}
    return changed(simple(), **{**own, **changes})


def mesh(device: str | None = None, **changes: Value) -> Fields:
    return {
        MeshField.AXIS_SIZES: [2, 3],
        MeshField.AXIS_NAMES: ["x", "y"],
        MeshField.AXIS_TYPES: [1, 2],
        MeshField.ABSTRACT_DEVICE: None if device is None else {DeviceField.DEVICE_KIND: device},
        **{MeshField[name.upper()]: value for name, value in changes.items()},
    }


def named(
    of_mesh: Fields | None = None, index: int = 0, axes: tuple[str, ...] = ("y",), spec: bool = True
) -> Fields:
    partitions: list[Fields] = [{PartitionField.AXES: axes}, {}]
    return {
        NamedShardingField.MESH: of_mesh,
        NamedShardingField.SPEC: {SpecField.PARTITIONS: partitions} if spec else None,
        NamedShardingField.ABSTRACT_MESH_IDX: index,
    }


def inline(named_sharding: Fields) -> dict[Field, ByHand]:
    return {ExportedField.IN_SHARDINGS: [{ShardingField.NAMED_SHARDING: named_sharding}]}


def node(kind: int, names: list[str] | None = None, children: int = 0, **more: Value) -> Fields:
    nothing: Fields = {}
    return {
        **{TreeField[name.upper()]: value for name, value in more.items()},
        TreeField.CHILDREN_NAMES: names,
        TreeField.CHILDREN: [nothing] * children if children else None,
        TreeField.KIND: kind,
    }


def aval(shape: str = "2", dtype: int = 1, space: int = 0, kind: int = 0) -> list[Fields]:
    return [
        {
            AvalField.KIND: kind,
            AvalField.SHAPE: [shape],
            AvalField.DTYPE: dtype,
            AvalField.MEMORY_SPACE: space,
        }
    ]


def vjp(outs: int = 1, version: int = 3) -> Callable[[FlatBufferWriter], Value]:
    array = Aval((2,), "float32")
    fields: dict[Field, ByHand] = {
        ExportedField.IN_TREE: tree(call_tree(LEAF, LEAF)),
        ExportedField.IN_AVALS: avals(array, array),
        ExportedField.OUT_TREE: tree(TreeSpec("tuple", children=(LEAF,) * outs)),
        ExportedField.OUT_AVALS: avals(*[array] * outs),
        ExportedField.SERIALIZATION_VERSION: version,
    }
    return lambda writer: exported(writer, fields)
