"""Writes the tables of files of jax.export: trees, abstract values, shardings, effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jax2tf_bridge.portable import (
    AbstractDevice,
    AbstractMesh,
    Aval,
    DisabledSafetyCheck,
    Sharding,
    TreeSpec,
)
from jax2tf_bridge.serialization._flatbuffer import Field, Fields, Offset, Value
from jax2tf_bridge.serialization._flatbuffer_writer import FlatBufferWriter
from jax2tf_bridge.serialization.jax_exported._schema import (
    AXIS_TYPES,
    DTYPES,
    MEMORY_SPACES,
    WRITTEN_VERSION,
    AvalField,
    CheckField,
    CheckKind,
    DeviceField,
    EffectField,
    ExportedField,
    MeshField,
    NamedShardingField,
    PartitionField,
    ShardingField,
    SpecField,
    TreeField,
    TreeKind,
)

_TREE_KINDS = {
    "leaf": TreeKind.LEAF,
    "none": TreeKind.NONE,
    "tuple": TreeKind.TUPLE,
    "list": TreeKind.LIST,
    "dict": TreeKind.DICT,
    "namedtuple": TreeKind.CUSTOM,
    "custom": TreeKind.CUSTOM,
}
_UNSPECIFIED, _HLO = 0, 1


def write_tree(writer: FlatBufferWriter, spec: TreeSpec) -> Offset:
    """Writes a pytree. Its named tuples and custom nodes must have serialized names."""
    is_custom = spec.kind in ("namedtuple", "custom")
    return writer.table(
        {
            TreeField.CHILDREN: [write_tree(writer, child) for child in spec.children] or None,
            TreeField.CHILDREN_NAMES: list(map(str, spec.keys)) if spec.kind == "dict" else None,
            TreeField.CUSTOM_NAME: spec.serialized_name if is_custom else None,
            TreeField.CUSTOM_AUXDATA: spec.auxdata or b"" if is_custom else None,
            TreeField.KIND: _TREE_KINDS[spec.kind],
        }
    )


def aval_table(aval: Aval) -> Fields:
    """Makes the table of an abstract value. The format must support its dtype."""
    return {
        AvalField.SHAPE: list(map(str, aval.shape)),
        AvalField.DTYPE: DTYPES.index(aval.dtype),
        # Starts at 1, since index 0 stands for an unknown memory space.
        AvalField.MEMORY_SPACE: MEMORY_SPACES.index(aval.memory_space, 1),
    }


def write_mesh(writer: FlatBufferWriter, mesh: AbstractMesh) -> Offset:
    """Writes an abstract mesh."""
    device = mesh.device
    device_offset = None if device is None else writer.table(_device_table(device))
    return writer.table(
        {
            MeshField.AXIS_SIZES: mesh.axis_sizes,
            MeshField.AXIS_NAMES: mesh.axis_names,
            MeshField.AXIS_TYPES: [AXIS_TYPES.index(axis, 1) for axis in mesh.axis_types],
            MeshField.ABSTRACT_DEVICE: device_offset,
        }
    )


def _device_table(device: AbstractDevice) -> Fields:
    return {
        DeviceField.DEVICE_KIND: device.kind,
        DeviceField.PLATFORM: device.platform or None,
        DeviceField.NUM_CORES: device.num_cores,
    }


def write_named_sharding(
    writer: FlatBufferWriter, sharding: Sharding, meshes: Sequence[AbstractMesh]
) -> Offset:
    """Writes a sharding over a mesh. `meshes` must contain the mesh."""
    assert sharding.mesh is not None
    spec = writer.table(
        {
            SpecField.PARTITIONS: [{PartitionField.AXES: axes} for axes in sharding.partitions],
            SpecField.REDUCED: sharding.reduced,
            SpecField.UNREDUCED: sharding.unreduced,
        }
    )
    return writer.table(
        {
            NamedShardingField.MESH: write_mesh(writer, sharding.mesh),
            NamedShardingField.SPEC: spec,
            NamedShardingField.MEMORY_KIND: sharding.memory_kind,
            NamedShardingField.ABSTRACT_MESH_IDX: meshes.index(sharding.mesh),
        }
    )


def sharding_table(
    writer: FlatBufferWriter,
    hlo: bytes | None,
    named: Sharding | None,
    meshes: Sequence[AbstractMesh],
) -> Iterator[tuple[Field, Value]]:
    """Yields the fields of the sharding of an array, in XLA's form and over a named mesh.

    Both forms may be None; without either, the array has no sharding.
    """
    yield ShardingField.HLO_SHARDING, hlo
    if named is not None:
        yield ShardingField.NAMED_SHARDING, write_named_sharding(writer, named, meshes)
    yield ShardingField.KIND, _UNSPECIFIED if hlo is None and named is None else _HLO


def effect_table(name: str) -> Fields:
    """Makes the table of an effect, with its class as JAX prints it."""
    parts = name.replace(".<locals>", "").split(".")
    is_qualified = len(parts) > 1 and all(part.isidentifier() for part in parts)
    return {EffectField.TYPE_NAME: f"<class '{name}'>" if is_qualified else name}


def check_table(check: DisabledSafetyCheck) -> Fields:
    """Makes the table of a disabled safety check, for the platform or for a custom call."""
    target = check.is_custom_call()
    return {
        CheckField.CUSTOM_CALL_TARGET: target,
        CheckField.KIND: CheckKind.PLATFORM if target is None else CheckKind.CUSTOM_CALL,
    }


def write_structure(in_tree: TreeSpec) -> bytearray:
    """Writes a file that stores `in_tree`; all its other fields are placeholders."""
    writer = FlatBufferWriter()
    leaves = in_tree.leaf_count
    fields: Fields = {
        ExportedField.FUNCTION_NAME: "structure",
        ExportedField.IN_TREE: write_tree(writer, in_tree),
        ExportedField.IN_AVALS: [aval_table(Aval((), "float32"))] * leaves,
        ExportedField.OUT_TREE: write_tree(writer, TreeSpec("none")),
        ExportedField.OUT_AVALS: [],
        ExportedField.IN_SHARDINGS: [{ShardingField.KIND: _UNSPECIFIED}] * leaves,
        ExportedField.OUT_SHARDINGS: [],
        ExportedField.PLATFORMS: ["cpu"],
        ExportedField.MODULE: b"",
        ExportedField.MODULE_KEPT_VAR_IDX: [],
        ExportedField.SERIALIZATION_VERSION: WRITTEN_VERSION,
        ExportedField.NR_DEVICES: 1,
    }
    return bytearray(writer.finish(writer.table(fields)))
