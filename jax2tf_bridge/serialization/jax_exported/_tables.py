"""Writes the tables of JAX's exported functions: trees, avals, shardings, effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import flatbuffers

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck
from jax2tf_bridge.portable._sharding import AbstractDevice, AbstractMesh, Sharding
from jax2tf_bridge.portable._tree_spec import TreeSpec
from jax2tf_bridge.serialization.jax_exported._effects import effect_text
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

ScalarKind: TypeAlias = Literal["Int8", "Uint8", "Int16", "Uint16", "Uint32"]
Scalars: TypeAlias = Mapping[int, tuple[ScalarKind, int]]
_SIZES: dict[ScalarKind, int] = {"Int8": 1, "Uint8": 1, "Int16": 2, "Uint16": 2, "Uint32": 4}
_KINDS = {
    "leaf": TreeKind.LEAF,
    "none": TreeKind.NONE,
    "tuple": TreeKind.TUPLE,
    "list": TreeKind.LIST,
    "dict": TreeKind.DICT,
    "namedtuple": TreeKind.CUSTOM,
    "custom": TreeKind.CUSTOM,
}
_UNSPECIFIED, _HLO = 0, 1


class Tables:
    """Writes tables into one buffer; every method gives the place of what it wrote."""

    def __init__(self, size: int = 1024) -> None:
        """With room for `size` bytes at first."""
        self._builder = flatbuffers.Builder(size)

    def finish(self, root: int) -> bytes:
        """Gives the bytes of the file."""
        self._builder.Finish(root)
        # As Output() does, with one copy less.
        return bytes(memoryview(self._builder.Bytes)[self._builder.Head() :])

    def table(self, fields: int, references: Mapping[int, int | None], scalars: Scalars) -> int:
        """Writes a table of so many fields; references that are None are left out."""
        builder = self._builder
        builder.StartObject(fields)
        for field, place in references.items():
            if place is not None:
                builder.PrependUOffsetTRelativeSlot(field, place, 0)
        for field, (kind, value) in scalars.items():
            getattr(builder, f"Prepend{kind}Slot")(field, value, 0)
        return int(builder.EndObject())

    def string(self, text: str) -> int:
        """Writes a string.

        Raises:
          SerializationError: it has a lone surrogate, which no UTF-8 has.
        """
        try:
            return int(self._builder.CreateString(text))
        except UnicodeEncodeError as e:
            raise SerializationError(f"{text!r} cannot be written as UTF-8: {e.reason}") from e

    def strings(self, texts: Iterable[str]) -> int:
        """Writes a vector of strings."""
        return self.references([self.string(text) for text in texts])

    def byte_vector(self, data: bytes) -> int:
        """Writes a vector of bytes."""
        return int(self._builder.CreateByteVector(data))

    def references(self, places: Sequence[int]) -> int:
        """Writes a vector of what was written at these places."""
        self._builder.StartVector(4, len(places), 4)
        for place in reversed(places):
            self._builder.PrependUOffsetTRelative(place)
        return int(self._builder.EndVector())

    def scalars(self, kind: ScalarKind, values: Sequence[int]) -> int:
        """Writes a vector of integers."""
        self._builder.StartVector(_SIZES[kind], len(values), _SIZES[kind])
        prepend = getattr(self._builder, f"Prepend{kind}")
        for value in reversed(values):
            prepend(value)
        return int(self._builder.EndVector())

    def tree(self, spec: TreeSpec) -> int:
        """Writes a pytree, whose named tuples and custom nodes have their serialized names."""
        children = [self.tree(child) for child in spec.children]
        is_custom = spec.kind in ("namedtuple", "custom")
        return self.table(
            len(TreeField),
            {
                TreeField.CHILDREN: self.references(children) if children else None,
                TreeField.CHILDREN_NAMES: (
                    self.strings(map(str, spec.keys)) if spec.kind == "dict" else None
                ),
                TreeField.CUSTOM_NAME: self.string(spec.serialized_name) if is_custom else None,
                TreeField.CUSTOM_AUXDATA: self.byte_vector(spec.auxdata or b"")
                if is_custom
                else None,
            },
            {TreeField.KIND: ("Int8", _KINDS[spec.kind])},
        )

    def aval(self, aval: Aval) -> int:
        """Writes an abstract value, of a dtype that the format has."""
        return self.table(
            len(AvalField),
            {AvalField.SHAPE: self.strings(map(str, aval.shape))},
            {
                AvalField.DTYPE: ("Int8", DTYPES.index(aval.dtype)),
                # The first place means that nothing is known.
                AvalField.MEMORY_SPACE: ("Int8", MEMORY_SPACES.index(aval.memory_space, 1)),
            },
        )

    def mesh(self, mesh: AbstractMesh) -> int:
        """Writes an abstract mesh."""
        device = None if mesh.device is None else self._device(mesh.device)
        types = [AXIS_TYPES.index(kind, 1) for kind in mesh.axis_types]
        return self.table(
            len(MeshField),
            {
                MeshField.AXIS_SIZES: self.scalars("Uint32", mesh.axis_sizes),
                MeshField.AXIS_NAMES: self.strings(mesh.axis_names),
                MeshField.AXIS_TYPES: self.scalars("Int8", types),
                MeshField.ABSTRACT_DEVICE: device,
            },
            {},
        )

    def _device(self, device: AbstractDevice) -> int:
        cores: Scalars = {}
        if device.num_cores is not None:
            cores = {DeviceField.NUM_CORES: ("Uint32", device.num_cores)}
        return self.table(
            len(DeviceField),
            {
                DeviceField.DEVICE_KIND: self.string(device.kind),
                DeviceField.PLATFORM: self.string(device.platform) if device.platform else None,
            },
            cores,
        )

    def named_sharding(self, sharding: Sharding, meshes: Sequence[AbstractMesh]) -> int:
        """Writes a sharding over a mesh, which is one of `meshes`."""
        assert sharding.mesh is not None
        partitions = [
            self.table(len(PartitionField), {PartitionField.AXES: self.strings(axes)}, {})
            for axes in sharding.partitions
        ]
        spec = self.table(
            len(SpecField),
            {
                SpecField.PARTITIONS: self.references(partitions),
                SpecField.REDUCED: self.strings(sharding.reduced),
                SpecField.UNREDUCED: self.strings(sharding.unreduced),
            },
            {},
        )
        memory = sharding.memory_kind
        return self.table(
            len(NamedShardingField),
            {
                NamedShardingField.MESH: self.mesh(sharding.mesh),
                NamedShardingField.SPEC: spec,
                NamedShardingField.MEMORY_KIND: None if memory is None else self.string(memory),
            },
            {NamedShardingField.ABSTRACT_MESH_IDX: ("Uint32", meshes.index(sharding.mesh))},
        )

    def sharding(
        self, hlo: bytes | None, named: Sharding | None, meshes: Sequence[AbstractMesh]
    ) -> int:
        """Writes how one array is spread: in XLA's words and by name, or not at all."""
        kind = _UNSPECIFIED if hlo is None and named is None else _HLO
        return self.table(
            len(ShardingField),
            {
                ShardingField.HLO_SHARDING: None if hlo is None else self.byte_vector(hlo),
                ShardingField.NAMED_SHARDING: (
                    None if named is None else self.named_sharding(named, meshes)
                ),
            },
            {ShardingField.KIND: ("Int8", kind)},
        )

    def effect(self, name: str) -> int:
        """Writes an effect."""
        text = self.string(effect_text(name))
        return self.table(len(EffectField), {EffectField.TYPE_NAME: text}, {})

    def disabled_check(self, check: DisabledSafetyCheck) -> int:
        """Writes a disabled safety check: of the platform, or of a custom call."""
        target = check.is_custom_call()
        kind = CheckKind.PLATFORM if target is None else CheckKind.CUSTOM_CALL
        return self.table(
            len(CheckField),
            {CheckField.CUSTOM_CALL_TARGET: None if target is None else self.string(target)},
            {CheckField.KIND: ("Int8", kind)},
        )


def write_structure(in_tree: TreeSpec) -> bytearray:
    """Writes a file that is all structure: what it says of `in_tree` is all that is right in it."""
    tables = Tables()
    avals = [tables.aval(Aval((), "float32")) for _ in range(in_tree.leaf_count)]
    shardings = [tables.sharding(None, None, ()) for _ in avals]
    references: dict[int, int | None] = {
        ExportedField.FUNCTION_NAME: tables.string("structure"),
        ExportedField.IN_TREE: tables.tree(in_tree),
        ExportedField.IN_AVALS: tables.references(avals),
        ExportedField.OUT_TREE: tables.tree(TreeSpec("none")),
        ExportedField.OUT_AVALS: tables.references([]),
        ExportedField.IN_SHARDINGS: tables.references(shardings),
        ExportedField.OUT_SHARDINGS: tables.references([]),
        ExportedField.PLATFORMS: tables.strings(["cpu"]),
        ExportedField.MODULE: tables.byte_vector(b""),
        ExportedField.MODULE_KEPT_VAR_IDX: tables.scalars("Uint16", ()),
    }
    scalars: Scalars = {
        ExportedField.SERIALIZATION_VERSION: ("Uint16", WRITTEN_VERSION),
        ExportedField.NR_DEVICES: ("Uint32", 1),
    }
    return bytearray(tables.finish(tables.table(len(ExportedField), references, scalars)))
