"""Converts shardings over a mesh to XLA's form, which older releases of JAX need, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from jax2tf_bridge.portable._sharding import AbstractMesh, Sharding

# Of xla.OpSharding, a protocol buffer.
_TYPE, _TILE_DIMENSIONS, _TILE_DEVICES, _REPLICATE_ON_LAST = 1, 3, 4, 6
_LAST_TILE_KINDS = 8
_IOTA_RESHAPE, _IOTA_PERMUTATION = 9, 10
_REPLICATED, _OTHER = 0, 3
_UNDERSTOOD = {_TYPE, _TILE_DIMENSIONS, _REPLICATE_ON_LAST, _IOTA_RESHAPE, _IOTA_PERMUTATION}
_VARINT, _BYTES = 0, 2

REPLICATED = b"\x08\x00"
"""On every device the whole array.  As a message it may be empty too: all is at its default."""


def op_sharding(sharding: Sharding, rank: int) -> bytes | None:
    """Writes an xla.OpSharding of an array of this rank; None if XLA cannot express it."""
    if sharding.mesh is None:
        return sharding.hlo
    if sharding.unreduced or sharding.reduced or len(sharding.partitions) > rank:
        return None
    names, sizes = sharding.mesh.axis_names, sharding.mesh.axis_sizes
    used = [axis for axes in sharding.partitions for axis in axes]
    if len(set(used)) != len(used):
        return None
    size_of = dict(zip(names, sizes, strict=True))
    tiles = [math.prod(size_of[axis] for axis in axes) for axes in sharding.partitions]
    if all(tile == 1 for tile in tiles):
        return REPLICATED
    tiles += [1] * (rank - len(tiles))
    # The devices count up along the mesh; its axes come in the order of the array's dimensions.
    others = [name for name in names if name not in used]
    copies = math.prod(size_of[name] for name in others)
    permutation = [names.index(name) for name in (*used, *others)]
    message = _integer(_TYPE, _OTHER)
    message += _integers(_TILE_DIMENSIONS, tiles + [copies] * (copies > 1))
    if copies > 1:
        message += _integer(_REPLICATE_ON_LAST, 1)
    message += _integers(_IOTA_RESHAPE, sizes)
    return message + _integers(_IOTA_PERMUTATION, permutation)


def is_replicated(sharding: Sharding, rank: int) -> bool:
    """Tells whether every device has the whole of an array of this rank."""
    hlo = op_sharding(sharding, rank)
    fields = None if hlo is None else _fields(hlo)
    return fields is not None and fields.get(_TYPE, [_REPLICATED]) == [_REPLICATED]


def with_device_list(hlo: bytes) -> bytes:
    """Lists an xla.OpSharding's devices one by one, as readers of before 2022 want them.

    JAX writes the sizes of a grid and the order of its axes instead.

    Returns:
      `hlo` itself, if it lists them already or has none.
    """
    fields = _fields(hlo) or {}
    sizes = fields.pop(_IOTA_RESHAPE, [])
    axes = fields.pop(_IOTA_PERMUTATION, [])
    if not sizes or _TILE_DEVICES in fields:
        return hlo
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    devices = [0]
    for axis in axes or range(len(sizes)):
        devices = [d + i * strides[axis] for d in devices for i in range(sizes[axis])]
    message = b""
    for field, values in sorted({**fields, _TILE_DEVICES: devices}.items()):
        lists = field in (_TILE_DIMENSIONS, _TILE_DEVICES, _LAST_TILE_KINDS)
        message += _integers(field, values) if lists else _integer(field, values[-1])
    return message


def named_sharding(hlo: bytes, rank: int, devices: int) -> Sharding | None:
    """Converts an xla.OpSharding to a sharding over a mesh whose axes have made-up names.

    Args:
      hlo: the message.
      rank: of the array.
      devices: how many there are.

    Returns:
      None if the bytes are no message, or if no mesh can express it.
    """
    fields = _fields(hlo)
    if fields is None or not set(fields) <= _UNDERSTOOD:
        return None
    kind = fields.get(_TYPE, [_REPLICATED])
    if kind == [_REPLICATED]:
        return Sharding(_mesh([devices]), ((),) * rank)
    tiles, sizes = fields.get(_TILE_DIMENSIONS, []), fields.get(_IOTA_RESHAPE, [])
    permutation = fields.get(_IOTA_PERMUTATION, list(range(len(sizes))))
    copied = fields.get(_REPLICATE_ON_LAST, [0]) == [1]
    if (
        kind != [_OTHER]
        or not sizes
        or sorted(permutation) != list(range(len(sizes)))
        or math.prod(sizes) != devices
        or math.prod(tiles) != devices
        or len(tiles) != rank + copied
    ):
        return None
    # XLA joins axes that lie side by side; what a dimension takes of one becomes its own axis.
    left = [(axis, sizes[axis]) for axis in permutation]
    taken: dict[tuple[int, int], int] = {}
    partitions: list[list[tuple[int, int]]] = []
    for tile in tiles:
        partitions.append([])
        while tile > 1:
            axis, size = left.pop(0)
            part = math.gcd(tile, size)
            if part not in (tile, size):
                return None
            if part < size:
                left.insert(0, (axis, size // part))
            if part > 1:
                key = axis, len(taken)
                taken[key] = part
                partitions[-1].append(key)
            tile //= part
    order = sorted(taken)
    mesh = _mesh([taken[key] for key in order])
    named = [tuple(mesh.axis_names[order.index(key)] for key in keys) for keys in partitions]
    return Sharding(mesh, tuple(named[:rank]))


def _mesh(sizes: Sequence[int]) -> AbstractMesh:
    names = tuple(f"axis_{i}" for i in range(len(sizes)))
    return AbstractMesh(names, tuple(sizes), tuple("auto" for _ in sizes))


def _fields(message: bytes) -> dict[int, list[int]] | None:
    """Reads the integers of a protocol buffer by field; None if it is none, or has other values."""
    found: dict[int, list[int]] = {}
    position = 0
    try:
        while position < len(message):
            tag, position = _read_varint(message, position)
            values = found.setdefault(tag >> 3, [])
            end = position + 1
            if tag & 7 == _BYTES:
                length, position = _read_varint(message, position)
                end = position + length
            elif tag & 7 != _VARINT:
                return None
            while position < end:
                value, position = _read_varint(message, position)
                values.append(value)
    except IndexError:
        return None
    return found


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _integers(field: int, values: Iterable[int]) -> bytes:
    content = b"".join(map(_varint, values))
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
