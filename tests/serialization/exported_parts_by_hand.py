"""Parts of JAX's exported functions made by hand: meshes, shardings, pytree nodes, VJPs."""

from __future__ import annotations

from typing import Any

from jax2tf_bridge import Aval, TreeSpec
from jax2tf_bridge.portable._tree_spec import LEAF
from jax2tf_bridge.serialization.jax_exported._schema import (
    AvalField,
    DeviceField,
    ExportedField,
    MeshField,
    NamedShardingField,
    PartitionField,
    ShardingField,
    SpecField,
    TreeField,
)
from tests.serialization.exported_by_hand import ByHand, Write, avals, table, tree, vector
from tests.serialization.records import call_tree


def mesh(device: str | None = None, **changes: Write) -> Write:
    references: dict[int, Write] = {
        MeshField.AXIS_SIZES: lambda t: t.scalars("Uint32", [2, 3]),
        MeshField.AXIS_NAMES: lambda t: t.strings(["x", "y"]),
        MeshField.AXIS_TYPES: lambda t: t.scalars("Int8", [1, 2]),
        **{MeshField[name.upper()]: write for name, write in changes.items()},
    }
    if device is not None:
        kind: dict[int, Write] = {DeviceField.DEVICE_KIND: lambda t: t.string(device)}
        references[MeshField.ABSTRACT_DEVICE] = table(3, kind)
    return table(4, references)


def named(
    inline: Write | None = None, index: int = 0, axes: tuple[str, ...] = ("y",), spec: bool = True
) -> Write:
    partition = table(1, {PartitionField.AXES: lambda t: t.strings(axes)})
    references: dict[int, Write] = {} if inline is None else {NamedShardingField.MESH: inline}
    if spec:
        references[NamedShardingField.SPEC] = table(
            3, {SpecField.PARTITIONS: vector(partition, table(1))}
        )
    return table(4, references, {NamedShardingField.ABSTRACT_MESH_IDX: ("Uint32", index)})


def inline(named_sharding: Write) -> dict[int, Write]:
    return {
        ExportedField.IN_SHARDINGS: vector(table(3, {ShardingField.NAMED_SHARDING: named_sharding}))
    }


def node(kind: int, names: list[str] | None = None, children: int = 0, **more: Write) -> Write:
    references: dict[int, Write] = {TreeField[name.upper()]: write for name, write in more.items()}
    if names is not None:
        references[TreeField.CHILDREN_NAMES] = lambda t: t.strings(names)
    if children:
        references[TreeField.CHILDREN] = vector(*[table(5)] * children)
    return table(5, references, {TreeField.KIND: ("Int8", kind)})


def aval(shape: str = "2", dtype: int = 1, space: int = 0, kind: int = 0) -> Write:
    numbers: dict[int, Any] = {
        AvalField.KIND: ("Int8", kind),
        AvalField.DTYPE: ("Int8", dtype),
        AvalField.MEMORY_SPACE: ("Int8", space),
    }
    return vector(table(4, {AvalField.SHAPE: lambda t: t.strings([shape])}, numbers))


def vjp(outs: int = 1, version: int = 3) -> Write:
    array = Aval((2,), "float32")
    return ByHand(
        {
            ExportedField.IN_TREE: tree(call_tree(LEAF, LEAF)),
            ExportedField.IN_AVALS: avals(array, array),
            ExportedField.OUT_TREE: tree(TreeSpec("tuple", children=(LEAF,) * outs)),
            ExportedField.OUT_AVALS: avals(*[array] * outs),
        },
        {ExportedField.SERIALIZATION_VERSION: ("Uint16", version)},
    ).place
