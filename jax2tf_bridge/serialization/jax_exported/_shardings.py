"""Reads the shardings in files of jax.export, and converts them to XLA's form and back."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import AbstractDevice, AbstractMesh, Sharding
from jax2tf_bridge.serialization._flatbuffer import FlatBufferTable
from jax2tf_bridge.serialization._protobuf import ProtoMessage, bytes_field, varint, varint_field
from jax2tf_bridge.serialization.jax_exported._schema import (
    AXIS_TYPES,
    DeviceField,
    ExportedField,
    MeshField,
    NamedShardingField,
    PartitionField,
    ShardingField,
    ShardingKind,
    SpecField,
)

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

    def __init__(self, exported: FlatBufferTable) -> None:
        """Wraps the table of a function: the root, or a VJP."""
        self._exported = exported
        meshes = exported.tables(ExportedField.UNIQUE_ABSTRACT_MESHES)
        self._meshes = tuple(map(_read_mesh, meshes))
        shardings = exported.tables(ExportedField.UNIQUE_NAMED_SHARDINGS)
        self._shardings = (None, *map(self._read_named, shardings))

    def read(self, field: ExportedField, count: int) -> tuple[Sharding | None, ...]:
        """Reads the shardings of the `count` arguments or results."""
        exported, index_field = self._exported, _INDEX_FIELDS[field]
        indices = exported.integers(index_field)
        if max(indices, default=0) >= len(self._shardings):
            raise exported.error(
                index_field, f"indices up to {len(self._shardings) - 1}", f"{max(indices)}"
            )
        if not indices and not exported.has(field):
            return (None,) * count
        shardings = [self._shardings[i] for i in indices] or [
            self._read_sharding(table) for table in exported.tables(field)
        ]
        if len(shardings) != count:
            raise exported.error(
                index_field if indices else field,
                f"{count} shardings, one for each value",
                f"{len(shardings)}",
            )
        return tuple(shardings)

    def _read_sharding(self, table: FlatBufferTable) -> Sharding | None:
        named = table.table(ShardingField.NAMED_SHARDING)
        if named is not None:
            return self._read_named(named)
        hlo = table.bytes(ShardingField.HLO_SHARDING)
        if hlo is not None:
            return Sharding(hlo=bytes(hlo) or REPLICATED)
        kind = table.integer(ShardingField.KIND)
        if kind != ShardingKind.UNSPECIFIED:
            raise table.error(ShardingField.KIND, "0 where there is no sharding", f"{kind}")
        return None

    def _read_named(self, table: FlatBufferTable) -> Sharding:
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
        return Sharding(
            mesh=mesh,
            partitions=tuple(
                partition.strings(PartitionField.AXES)
                for partition in spec.tables(SpecField.PARTITIONS)
            ),
            unreduced=tuple(sorted(spec.strings(SpecField.UNREDUCED))),
            reduced=tuple(sorted(spec.strings(SpecField.REDUCED))),
            memory_kind=table.string(NamedShardingField.MEMORY_KIND),
        )


def _read_mesh(table: FlatBufferTable) -> AbstractMesh:
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


def _read_device(table: FlatBufferTable) -> AbstractDevice:
    kind = table.string(DeviceField.DEVICE_KIND, "")
    assert kind is not None
    platform = table.string(DeviceField.PLATFORM)
    if not platform:
        lower = kind.lower()
        platform = next((name for part, name in _PLATFORM_BY_DEVICE_KIND if part in lower), "")
    return AbstractDevice(kind, platform, table.optional_integer(DeviceField.NUM_CORES))


# Field numbers and values of the protocol buffer xla.OpSharding.
_TYPE, _TILE_DIMENSIONS, _TILE_DEVICES, _REPLICATE_ON_LAST = 1, 3, 4, 6
_LAST_TILE_KINDS = 8
_IOTA_RESHAPE, _IOTA_PERMUTATION = 9, 10
_REPLICATED, _OTHER = 0, 3
_MAX_DEVICES = 1 << 20
_SUPPORTED_FIELDS = {_TYPE, _TILE_DIMENSIONS, _REPLICATE_ON_LAST, _IOTA_RESHAPE, _IOTA_PERMUTATION}

REPLICATED = b"\x08\x00"
"""Message for a fully replicated array. An empty message means the same, by its defaults."""


def to_op_sharding(sharding: Sharding, rank: int) -> bytes | None:
    """Returns a sharding as an xla.OpSharding message; None if XLA cannot express it.

    `rank` is the rank of the array.
    """
    if sharding.mesh is None:
        return sharding.hlo
    if sharding.unreduced or sharding.reduced or len(sharding.partitions) > rank:
        return None
    names, sizes = sharding.mesh.axis_names, sharding.mesh.axis_sizes
    if _multiply(sizes, _MAX_DEVICES) > _MAX_DEVICES:
        return None
    used_axes = [axis for axes in sharding.partitions for axis in axes]
    used = set(used_axes)
    if len(used) != len(used_axes):
        return None
    size_of = dict(zip(names, sizes, strict=True))
    tiles = [math.prod(size_of[axis] for axis in axes) for axes in sharding.partitions]
    if all(tile == 1 for tile in tiles):
        return REPLICATED
    tiles += [1] * (rank - len(tiles))
    # Devices are numbered along the mesh. The permutation sorts the axes of the mesh by the
    # dimensions of the array.
    unused_axes = [name for name in names if name not in used]
    copies = math.prod(size_of[name] for name in unused_axes)
    index_of = {name: i for i, name in enumerate(names)}
    permutation = [index_of[name] for name in (*used_axes, *unused_axes)]
    message = varint_field(_TYPE, _OTHER)
    message += _integers_field(_TILE_DIMENSIONS, tiles + [copies] * (copies > 1))
    if copies > 1:
        message += varint_field(_REPLICATE_ON_LAST, 1)
    message += _integers_field(_IOTA_RESHAPE, sizes)
    return message + _integers_field(_IOTA_PERMUTATION, permutation)


def is_replicated(sharding: Sharding, rank: int) -> bool:
    """Returns whether every device holds the whole array; `rank` is the rank of the array."""
    hlo = to_op_sharding(sharding, rank)
    fields = None if hlo is None else _parse_fields(hlo)
    return fields is not None and fields.get(_TYPE, [_REPLICATED]) == [_REPLICATED]


def replace_device_grid(hlo: bytes) -> bytes:
    """Replaces the device grid of an xla.OpSharding with a list of all devices.

    JAX writes the sizes of the grid and a permutation of its axes, which readers from before 2022
    do not understand.

    Returns:
      The new message; `hlo` itself if it has such a list already, or has no valid grid.
    """
    fields = _parse_fields(hlo) or {}
    sizes = fields.pop(_IOTA_RESHAPE, [])
    all_axes = list(range(len(sizes)))
    axes = fields.pop(_IOTA_PERMUTATION, []) or all_axes
    is_valid = sorted(axes) == all_axes and 0 < _multiply(sizes, _MAX_DEVICES) <= _MAX_DEVICES
    if not (sizes and is_valid) or _TILE_DEVICES in fields:
        return hlo
    strides = [*accumulate(reversed(sizes[1:]), operator.mul, initial=1)][::-1]
    devices = [0]
    for axis in (axis for axis in axes if sizes[axis] > 1):
        devices = [d + i * strides[axis] for d in devices for i in range(sizes[axis])]
    message = b""
    for field, values in sorted({**fields, _TILE_DEVICES: devices}.items()):
        is_vector = field in (_TILE_DIMENSIONS, _TILE_DEVICES, _LAST_TILE_KINDS)
        message += _integers_field(field, values) if is_vector else varint_field(field, values[-1])
    return message


def to_named_sharding(hlo: bytes, rank: int, devices: int) -> Sharding | None:
    """Converts an xla.OpSharding to a sharding over a mesh whose axes have made-up names.

    Args:
      hlo: the message.
      rank: the rank of the array.
      devices: the number of devices.

    Returns:
      The sharding; None if `hlo` is not a valid message, or if no mesh can express it.
    """
    fields = _parse_fields(hlo)
    if fields is None or not set(fields) <= _SUPPORTED_FIELDS:
        return None
    kind = fields.get(_TYPE, [_REPLICATED])
    if kind == [_REPLICATED]:
        return Sharding(_make_mesh([devices]), ((),) * rank)
    tiles, sizes = fields.get(_TILE_DIMENSIONS, []), fields.get(_IOTA_RESHAPE, [])
    permutation = fields.get(_IOTA_PERMUTATION, list(range(len(sizes))))
    has_copies = fields.get(_REPLICATE_ON_LAST, [0]) == [1]
    if (
        kind != [_OTHER]
        or not sizes
        or sorted(permutation) != list(range(len(sizes)))
        or _multiply(sizes, devices) != devices
        or _multiply(tiles, devices) != devices
        or len(tiles) != rank + has_copies
    ):
        return None
    # XLA merges adjacent axes. If a dimension uses only a part of one, split the axis into parts.
    remaining = deque((axis, sizes[axis]) for axis in permutation)
    part_sizes: dict[tuple[int, int], int] = {}
    partitions: list[list[tuple[int, int]]] = []
    for tile in tiles:
        partitions.append([])
        while tile > 1:
            axis, size = remaining.popleft()
            part = math.gcd(tile, size)
            if part not in (tile, size):
                return None
            if part < size:
                remaining.appendleft((axis, size // part))
            if part > 1:
                key = axis, len(part_sizes)
                part_sizes[key] = part
                partitions[-1].append(key)
            tile //= part
    order = sorted(part_sizes)
    mesh = _make_mesh([part_sizes[key] for key in order])
    named = [tuple(mesh.axis_names[order.index(key)] for key in keys) for keys in partitions]
    return Sharding(mesh, tuple(named[:rank]))


def _multiply(sizes: Iterable[int], limit: int) -> int:
    """Returns the product, or a number above `limit` if a partial product exceeds it."""
    product = 1
    for size in sizes:
        product *= size
        if product > limit:  # the product of many large numbers would take hours
            break
    return product


def _make_mesh(sizes: Sequence[int]) -> AbstractMesh:
    names = tuple(f"axis_{i}" for i in range(len(sizes)))
    return AbstractMesh(names, tuple(sizes), tuple("auto" for _ in sizes))


def _parse_fields(message: bytes) -> dict[int, list[int]] | None:
    """Returns the integers of a protocol buffer by field; None if it holds anything else."""
    values_by_field: dict[int, list[int]] = {}
    reader = ProtoMessage(message, "a sharding")
    try:
        for field in reader.fields():
            values = values_by_field.setdefault(field.number, [])
            values += (value % 2**64 for value in reader.integers(field))
    except FileFormatError:
        return None
    return values_by_field


def _integers_field(number: int, values: Iterable[int]) -> bytes:
    return bytes_field(number, b"".join(map(varint, values)))
