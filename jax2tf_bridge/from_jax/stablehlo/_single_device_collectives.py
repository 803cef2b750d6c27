"""Collectives in a module for one device, where they change nothing and TensorFlow has none."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    below,
    custom_call_target,
    replace_operation,
    zeros,
)
from jax2tf_bridge.portable._sharding import CALLS_OF_PARTS

# What every device gives the others is what it has itself.
_IDENTITIES = frozenset(
    {
        "stablehlo.all_reduce",
        "stablehlo.all_gather",
        "stablehlo.all_to_all",
        "stablehlo.collective_broadcast",
        "stablehlo.reduce_scatter",
    }
)
_NUMBERS = frozenset({"stablehlo.partition_id", "stablehlo.replica_id"})
_PERMUTE = "stablehlo.collective_permute"
_MANUAL, _MESH = "sdy.manual_computation", "sdy.mesh"
_AXIS_SIZE = re.compile(r'"=(\d+)')


def may_be_collectives(names: Collection[str]) -> bool:
    """Tells whether a module may have what `drop_collectives` drops.

    Args:
      names: of its operations, and the targets of its custom calls.
    """
    may_be = {*_NUMBERS, *_IDENTITIES, *CALLS_OF_PARTS, _PERMUTE, _MANUAL, _MESH}
    return not may_be.isdisjoint(names)


def drop_collectives(module: Any) -> str | None:
    """Replaces collectives by their operands and device numbers by 0, in a module for one device.

    XLA's CPU wants a device assignment for them, which TensorFlow does not give; some crash it.
    Call it in the module's context.

    Args:
      module: an ir.Module.

    Returns:
      The name of an operation that takes more than one device; None if there is none.
    """
    left = None
    # From within: an operation that is erased takes those of its region along.
    for op in reversed(list(below(module.operation))):
        name = custom_call_target(op) or str(op.name)
        if name == _MESH and _mesh_size(op) > 1:
            left = name
        values = _on_one_device(op, name)
        if values is None:
            continue
        if [value.type for value in values] != [result.type for result in op.results]:
            left = name
            continue
        replace_operation(op, values)
    return left


def _on_one_device(op: Any, name: str) -> list[Any] | None:
    """Returns what a collective gives on one device, nothing if it takes more; else None.

    For a collective always as many values as results, unless it takes more devices.
    """
    if name in _NUMBERS:
        return _zeros(op)
    if name == _MANUAL:
        return []
    if name in CALLS_OF_PARTS:
        return list(op.operands)
    if name in _IDENTITIES:
        return list(op.operands) if _is_alone(op) else []
    if name != _PERMUTE:
        return None
    pairs: Any = ir.DenseIntElementsAttr(op.attributes["source_target_pairs"])
    sent = [int(i) for i in pairs]
    if any(sent):
        return []
    # What no device sends to is zero.
    return list(op.operands) if sent else _zeros(op)


def _mesh_size(op: Any) -> int:
    return math.prod(map(int, _AXIS_SIZE.findall(str(op.attributes["mesh"]))))


def _is_alone(op: Any) -> bool:
    """Tells whether its groups are of one device each, as far as they are listed."""
    groups = attribute(op, "replica_groups")
    try:
        shape = ir.RankedTensorType(ir.DenseIntElementsAttr(groups).type).shape
    except (TypeError, ValueError):
        return True  # said by the axes of a mesh, which is of one device
    return bool(shape[-1] <= 1)


def _zeros(op: Any) -> list[Any]:
    """Creates zeros in the place of the only result; none where its size is open."""
    kind = ir.RankedTensorType(op.results[0].type)
    if not kind.has_static_shape:
        return []
    with ir.InsertionPoint(op), ir.Location.unknown():
        return [zeros(kind)]
