"""Reads the shardings in files of jax.export."""

from __future__ import annotations

from jax2tf_bridge.portable import AbstractDevice, AbstractMesh, Sharding
from jax2tf_bridge.serialization._flatbuffer import Table
from jax2tf_bridge.serialization.jax_exported._schema import (
    AXIS_TYPES,
    DeviceField,
    ExportedField,
    MeshField,
    NamedShardingField,
    PartitionField,
    ShardingField,
    SpecField,
)
from jax2tf_bridge.serialization.jax_exported._xla_shardings import REPLICATED

_UNSPECIFIED = 0
_INDEX_FIELDS = {
    ExportedField.IN_SHARDINGS: ExportedField.IN_SHARDINGS_IDXS,
    ExportedField.OUT_SHARDINGS: ExportedField.OUT_SHARDINGS_IDXS,
}
# Parts of device kinds and their platforms, for files that do not store the platform.
_PLATFORM_BY_DEVICE_KIND = (
    ("cpu", "cpu"),
    ("tpu", "tpu"),
    ("nvidia", "gpu"),
    ("tesla", "gpu"),
    ("amd", "gpu"),
)


class ShardingReader:
    """Reader of the shardings of one function, stored inline or as indices into a list."""

    def __init__(self, exported: Table) -> None:
        """Wraps the table of a function: the root, or a VJP."""
        self._exported = exported
        meshes = exported.tables(ExportedField.UNIQUE_ABSTRACT_MESHES)
        self._meshes = tuple(map(_read_mesh, meshes))
        shardings = exported.tables(ExportedField.UNIQUE_NAMED_SHARDINGS)
        self._shardings = (None, *map(self._read_named, shardings))

    def shardings(self, field: ExportedField, count: int) -> tuple[Sharding | None, ...]:
        """Reads the shardings of the `count` arguments or results."""
        exported, index_field = self._exported, _INDEX_FIELDS[field]
        indices = exported.integers(index_field)
        result: tuple[Sharding | None, ...]
        if indices:
            if max(indices) >= len(self._shardings):
                raise exported.error(
                    index_field, f"indices up to {len(self._shardings) - 1}", f"{max(indices)}"
                )
            field, result = index_field, tuple(self._shardings[i] for i in indices)
        elif exported.has(field):
            result = tuple(map(self._read_sharding, exported.tables(field)))
        else:
            result = (None,) * count
        if len(result) != count:
            raise exported.error(field, f"{count} shardings, one a value", f"{len(result)}")
        return result

    def _read_sharding(self, table: Table) -> Sharding | None:
        named = table.table(ShardingField.NAMED_SHARDING)
        if named is not None:
            return self._read_named(named)
        hlo = table.bytes(ShardingField.HLO_SHARDING)
        if hlo is not None:
            return Sharding(hlo=bytes(hlo) or REPLICATED)
        kind = table.integer(ShardingField.KIND)
        if kind != _UNSPECIFIED:
            raise table.error(ShardingField.KIND, "0 where there is no sharding", f"{kind}")
        return None

    def _read_named(self, table: Table) -> Sharding:
        if self._meshes:
            index = table.integer(NamedShardingField.ABSTRACT_MESH_IDX)
            if index >= len(self._meshes):
                raise table.error(
                    NamedShardingField.ABSTRACT_MESH_IDX,
                    f"an index up to {len(self._meshes) - 1}",
                    f"{index}",
                )
            mesh = self._meshes[index]
        else:
            mesh_table = table.table(NamedShardingField.MESH)
            if mesh_table is None:
                raise table.error(NamedShardingField.MESH, "a mesh", "none")
            mesh = _read_mesh(mesh_table)
        spec = table.table(NamedShardingField.SPEC)
        if spec is None:
            raise table.error(NamedShardingField.SPEC, "a partition spec", "none")
        sharding = Sharding(
            mesh=mesh,
            partitions=tuple(
                partition.strings(PartitionField.AXES)
                for partition in spec.tables(SpecField.PARTITIONS)
            ),
            unreduced=tuple(sorted(spec.strings(SpecField.UNREDUCED))),
            reduced=tuple(sorted(spec.strings(SpecField.REDUCED))),
            memory_kind=table.string(NamedShardingField.MEMORY_KIND),
        )
        used = {axis for axes in sharding.partitions for axis in axes}
        unknown = used.union(sharding.unreduced, sharding.reduced) - set(mesh.axis_names)
        if unknown:
            raise spec.error(None, f"axes of the mesh {mesh}", ", ".join(sorted(unknown)))
        return sharding


def _read_mesh(table: Table) -> AbstractMesh:
    sizes = table.integers(MeshField.AXIS_SIZES)
    names = table.strings(MeshField.AXIS_NAMES)
    types = table.integers(MeshField.AXIS_TYPES) or (0,) * len(names)
    if not len(sizes) == len(names) == len(types) == len(set(names)):
        raise table.error(
            None,
            "one size, one type and a name of its own for each axis",
            f"{len(sizes)} sizes, {len(types)} types, {len(set(names))} names",
        )
    if 0 in sizes:
        raise table.error(MeshField.AXIS_SIZES, "sizes of at least 1", "0")
    if any(not 0 <= number < len(AXIS_TYPES) for number in types):
        raise table.error(
            MeshField.AXIS_TYPES, f"axis types from 0 to {len(AXIS_TYPES) - 1}", f"{types}"
        )
    device = table.table(MeshField.ABSTRACT_DEVICE)
    return AbstractMesh(
        names,
        sizes,
        tuple(AXIS_TYPES[number] for number in types),
        None if device is None else _read_device(device),
    )


def _read_device(table: Table) -> AbstractDevice:
    kind = table.string(DeviceField.DEVICE_KIND, "")
    assert kind is not None
    platform = table.string(DeviceField.PLATFORM)
    if not platform:
        lower = kind.lower()
        platform = next((name for part, name in _PLATFORM_BY_DEVICE_KIND if part in lower), "")
    return AbstractDevice(kind, platform, table.optional_integer(DeviceField.NUM_CORES))
