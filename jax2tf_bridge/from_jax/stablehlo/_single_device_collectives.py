"""Removes collectives from modules for one device, where they are identities."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    create_zeros,
    custom_call_target,
    replace_operation,
    walk_operations,
)
from jax2tf_bridge.portable import CALLS_OF_PARTS

# On one device, the result of these collectives is the operand.
_IDENTITIES = frozenset(
    {
        "stablehlo.all_reduce",
        "stablehlo.all_gather",
        "stablehlo.all_to_all",
        "stablehlo.collective_broadcast",
        "stablehlo.reduce_scatter",
    }
)
_DEVICE_NUMBERS = frozenset({"stablehlo.partition_id", "stablehlo.replica_id"})
_PERMUTE = "stablehlo.collective_permute"
_MANUAL, _MESH = "sdy.manual_computation", "sdy.mesh"
_AXIS_SIZE = re.compile(r'"=(\d+)')


def may_be_collectives(names: Collection[str]) -> bool:
    """Returns whether `drop_collectives` may find anything in a module.

    Args:
      names: the names of its operations and the targets of its custom calls.
    """
    may_be = {*_DEVICE_NUMBERS, *_IDENTITIES, *CALLS_OF_PARTS, _PERMUTE, _MANUAL, _MESH}
    return not may_be.isdisjoint(names)


def drop_collectives(module: Any) -> str | None:
    """Replaces collectives by their operands and device numbers by 0, in a module for one device.

    On the CPU, XLA needs a device assignment for them that TensorFlow does not provide, and some
    collectives crash it.

    Args:
      module: an ir.Module; its context must be the current one.

    Returns:
      The name of an operation that needs more than one device; None if there is none.
    """
    unsupported = None
    # Inner operations first, because erasing an operation erases its regions.
    for op in reversed(list(walk_operations(module.operation))):
        name = custom_call_target(op) or str(op.name)
        if name == _MESH and _mesh_size(op) > 1:
            unsupported = name
        values = _compute_on_one_device(op, name)
        if values is None:
            continue
        if [value.type for value in values] != [result.type for result in op.results]:
            unsupported = name
            continue
        replace_operation(op, values)
    return unsupported


def _compute_on_one_device(op: Any, name: str) -> list[Any] | None:
    """Returns the results of a collective on one device; None for other operations.

    The list is empty if the collective needs more than one device.
    """
    if name in _DEVICE_NUMBERS:
        return _create_zeros(op)
    if name == _MANUAL:
        return []
    if name in CALLS_OF_PARTS:
        return list(op.operands)
    if name in _IDENTITIES:
        return list(op.operands) if _has_groups_of_one(op) else []
    if name != _PERMUTE:
        return None
    pairs: Any = ir.DenseIntElementsAttr(op.attributes["source_target_pairs"])
    device_numbers = [int(i) for i in pairs]
    if any(device_numbers):
        return []
    # A device that nobody sends to gets zeros.
    return list(op.operands) if device_numbers else _create_zeros(op)


def _mesh_size(op: Any) -> int:
    return math.prod(map(int, _AXIS_SIZE.findall(str(op.attributes["mesh"]))))


def _has_groups_of_one(op: Any) -> bool:
    """Returns whether all its groups have one device; True if the groups are not listed."""
    groups = attribute(op, "replica_groups")
    try:
        shape = ir.RankedTensorType(ir.DenseIntElementsAttr(groups).type).shape
    except (TypeError, ValueError):
        return True  # the groups are axes of a mesh, which has one device
    return bool(shape[-1] <= 1)


def _create_zeros(op: Any) -> list[Any]:
    """Creates zeros for the only result; returns an empty list if its size is open."""
    kind = ir.RankedTensorType(op.results[0].type)
    if not kind.has_static_shape:
        return []
    with ir.InsertionPoint(op), ir.Location.unknown():
        return [create_zeros(kind)]
