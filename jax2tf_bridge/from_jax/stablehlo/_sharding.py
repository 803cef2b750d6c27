"""Sharding in modules: manual computations, sharding calls, and collectives on one device."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

from jax2tf_bridge._operations import OPERATIONS
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    attributes_of,
    create_value,
    create_zeros,
    custom_call_target,
    make_int_attribute,
    replace_by_operation,
    replace_operation,
    symbol_name,
    walk_operations,
)
from jax2tf_bridge.portable import SHARD_MAP_CALLS

MANUAL_COMPUTATION = b"xla.sdy.manual_computation_body"
"""Name prefix of functions that compute on per-device parts."""

_SHAPES = "indices_of_shape_operands"
_FRONTEND = "mhlo.frontend_attributes"
_TO_PARTS = "xla.sdy.GlobalToLocalShape"
_FROM_PARTS = "xla.sdy.LocalToGlobalShape"
_SIZES = {f"stablehlo.{name}" for name in ("concatenate", "get_dimension_size", "reshape")}
SHARDING = "sdy.sharding"
_NO_SHARDINGS = "#sdy.sharding_per_value<[]>"


def restore_manual_computations(module: Any) -> None:
    """Replaces each call of a function on parts by an sdy.manual_computation, in place.

    JAX refines open sizes and resolves the platform before XLA reads the module. The custom calls
    around such a call do not survive that. The MLIR context must be the current one.
    """
    prefix = MANUAL_COMPUTATION.decode()
    functions = [op.operation for op in module.body.operations]
    bodies = {n: f for f in functions if (n := symbol_name(f) or "").startswith(prefix)}
    callers = [f for f in functions if symbol_name(f) not in bodies]
    # An inlined body may contain further calls.
    while calls := [op for f in callers for op in walk_operations(f) if _read_callee(op) in bodies]:
        for call in calls:
            _restore(call, bodies[_read_callee(call)])
    for body in bodies.values():
        body.erase()


def _read_callee(op: Any) -> str:
    return (
        str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value) if op.name == "func.call" else ""
    )


def _restore(call: Any, body: Any) -> None:
    to_parts = _find_custom_call([value.owner for value in call.operands], _TO_PARTS)
    users = [use.owner for result in call.results for use in result.uses]
    from_parts = _find_custom_call(users, _FROM_PARTS)
    if to_parts is None and from_parts is None:
        raise ModuleError(
            f"The function {_read_callee(call)} computes on parts, and its call has no custom call "
            f"{_TO_PARTS} or {_FROM_PARTS} beside it. Export the function again."
        )
    # The remaining operands are the shapes of results with open sizes.
    operands = [] if to_parts is None else list(to_parts.operands)[: len(call.operands)]
    results = [] if from_parts is None else list(from_parts.results)
    with ir.InsertionPoint(call if from_parts is None else from_parts), call.location:
        computation = ir.Operation.create(
            "sdy.manual_computation",
            results=[result.type for result in results],
            operands=operands,
            attributes={
                "in_shardings": _read_shardings(to_parts, "xla.sdy.in_shardings"),
                "out_shardings": _read_shardings(from_parts, "xla.sdy.out_shardings"),
                "manual_axes": _parse_frontend_attribute(
                    to_parts or from_parts, "xla.sdy.manual_axes"
                ),
            },
            regions=1,
        )
    _move_body(body, computation)
    if from_parts is not None:
        block = ir.InsertionPoint(from_parts).block
        replace_operation(from_parts, computation.results)
        _erase_unused_sizes(block)
    call.erase()
    if to_parts is not None:
        to_parts.erase()


def _move_body(body: Any, computation: Any) -> None:
    # Several calls may share a body.
    copy = body.clone(ir.InsertionPoint(body))
    block = copy.regions[0].blocks[0]
    block.append_to(computation.regions[0])
    end = list(block.operations)[-1].operation
    with ir.InsertionPoint(end), end.location:
        ir.Operation.create("sdy.return", operands=list(end.operands))
    end.erase()
    copy.erase()


def _find_custom_call(owners: list[Any], target: str) -> Any:
    for owner in owners:
        operation = getattr(owner, "operation", owner)
        if not isinstance(operation, ir.Block) and custom_call_target(operation) == target:
            return operation
    return None


def _erase_unused_sizes(block: Any) -> None:
    """Erases unused operations that computed the shapes of parts for the erased call."""
    for op in reversed([inner.operation for inner in block.operations]):
        if op.name in _SIZES and not any(list(result.uses) for result in op.results):
            op.erase()


def _read_shardings(call: Any, name: str) -> Any:
    return (
        ir.Attribute.parse(_NO_SHARDINGS) if call is None else _parse_frontend_attribute(call, name)
    )


def _parse_frontend_attribute(call: Any, name: str) -> Any:
    texts: Any = ir.DictAttr(attribute(call, _FRONTEND))
    return ir.Attribute.parse(str(ir.StringAttr(texts[name]).value))


# On one device, the result of a collective with groups is the operand.
_IDENTITIES = frozenset(
    f"stablehlo.{name}"
    for name, row in OPERATIONS.items()
    if any("replica_groups" in attributes for attributes in row.versions)
)
_DEVICE_NUMBERS = frozenset({"stablehlo.partition_id", "stablehlo.replica_id"})
_PERMUTE = "stablehlo.collective_permute"
_MANUAL, _MESH = "sdy.manual_computation", "sdy.mesh"
_AXIS_SIZE = re.compile(r'"=(\d+)')


def may_have_collectives(names: Collection[str]) -> bool:
    """Returns whether `drop_collectives` may find anything in a module.

    `names` are those of its operations, and the targets of its custom calls.
    """
    may_be = {*_DEVICE_NUMBERS, *_IDENTITIES, *SHARD_MAP_CALLS, _PERMUTE, _MANUAL, _MESH}
    return not may_be.isdisjoint(names)


def drop_collectives(module: Any) -> str | None:
    """Replaces collectives by their operands and device numbers by 0, in a module for one device.

    On the CPU, XLA needs a device assignment for them that TensorFlow does not provide, and some
    collectives crash it. The MLIR context of the module must be the current one.

    Returns the name of an operation that needs more than one device; None if there is none.
    """
    unsupported = None
    # Inner operations first, because erasing an operation erases its regions.
    for op in reversed(list(walk_operations(module.operation))):
        name = custom_call_target(op) or str(op.name)
        if name == _MESH:
            sizes = map(int, _AXIS_SIZE.findall(str(op.attributes["mesh"])))
            unsupported = name if math.prod(sizes) > 1 else unsupported
        values = _compute_on_one_device(op, name)
        if values is None:
            continue
        if [value.type for value in values] != [result.type for result in op.results]:
            unsupported = name
            continue
        replace_operation(op, values)
    return unsupported


def drop_shardings(module: Any) -> None:
    """Removes Shardy's constraints, shardings and meshes, which are no-ops on one device.

    JAX writes them for typed PRNG keys and one-device meshes. Readers need calling convention 10
    for them. The MLIR context of the module must be the current one.
    """
    meshes = []
    for op in list(walk_operations(module.operation)):
        if op.name == "sdy.sharding_constraint":
            replace_operation(op, op.operands)
        elif op.name == _MESH:
            meshes.append(op)
        else:
            _drop_shardings_of(op)
    # Other sdy operations may still refer to a mesh.
    names = {op.name for op in walk_operations(module.operation) if op.name.startswith("sdy.")}
    if names <= {_MESH}:
        for mesh in meshes:
            mesh.erase()


def _drop_shardings_of(op: Any) -> None:
    """Removes the shardings of one operation: its own, or those of a function's signature."""
    if SHARDING in op.attributes:
        del op.attributes[SHARDING]
    for name in ("arg_attrs", "res_attrs"):
        dictionaries = attribute(op, name)
        if dictionaries is not None and any(SHARDING in ir.DictAttr(a) for a in dictionaries):
            op.attributes[name] = ir.ArrayAttr.get([_remove_sharding(a) for a in dictionaries])


def _remove_sharding(attributes: Any) -> Any:
    by_name = attributes_of(ir.DictAttr(attributes))
    by_name.pop(SHARDING, None)
    return ir.DictAttr.get(by_name)


def _compute_on_one_device(op: Any, name: str) -> list[Any] | None:
    """Returns the results of a collective on one device; None for other operations.

    The list is empty if the collective needs more than one device.
    """
    if name in _DEVICE_NUMBERS:
        return _create_zeros(op)
    if name == _MANUAL:
        return []
    if name in SHARD_MAP_CALLS:
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


def _has_groups_of_one(op: Any) -> bool:
    """Returns whether all its groups have one device; True if the groups are not listed."""
    groups = attribute(op, "replica_groups")
    try:
        shape = ir.RankedTensorType(ir.DenseIntElementsAttr(groups).type).shape
    except (TypeError, ValueError):
        return True  # the groups are axes of a mesh, which has one device
    return bool(shape[-1] <= 1)


def _create_zeros(op: Any) -> list[Any]:
    # The list is empty if the size of the result is open.
    kind = ir.RankedTensorType(op.results[0].type)
    if not kind.has_static_shape:
        return []
    with ir.InsertionPoint(op), ir.Location.unknown():
        return [create_zeros(kind)]


def has_written_shardings(module: Any) -> bool:
    """Returns whether an ir.Module that was read from an artifact has Shardy meshes."""
    # Writing an artifact turns Shardy's operations into custom calls and frontend attributes.
    attributes = attribute(module.operation, _FRONTEND)
    return attributes is not None and "xla.sdy.meshes" in str(attributes)


def add_sharding_shapes(module: Any) -> None:
    """Adds the result shapes as operands to sharding calls on values with open sizes.

    XLA reads the sizes of a custom call's results from these operands and then drops them. It
    rejects modules without them. The MLIR context of the module must be the current one.
    """
    for op in list(walk_operations(module.operation)):
        if _is_open_sharding(op):
            _add_shapes(op)


def _is_open_sharding(op: Any) -> bool:
    name = custom_call_target(op)
    types = [result.type for result in op.results]
    return (
        (name == "Sharding" or name.startswith("xla.sdy."))
        and _SHAPES not in op.attributes
        and types == [operand.type for operand in op.operands]
        and not all(ir.RankedTensorType(kind).has_static_shape for kind in types)
    )


def _add_shapes(op: Any) -> None:
    operands = list(op.operands)
    count = len(operands)
    with ir.InsertionPoint(op), op.location:
        shapes = [_create_shape(value) for value in operands]
        attributes = attributes_of(op)
        indices = list(range(count, 2 * count))
        attributes[_SHAPES] = ir.Attribute.parse(f"dense<{indices}> : tensor<{count}xi64>")
        replace_by_operation(op, "stablehlo.custom_call", [*operands, *shapes], attributes)


def _create_shape(value: Any) -> Any:
    """Creates the shape of a value as an i32 vector at the current insertion point."""
    kind = ir.RankedTensorType(value.type)
    i32 = ir.IntegerType.get_signless(32)
    scalar, vector = ir.RankedTensorType.get([], i32), ir.RankedTensorType.get([1], i32)
    sizes = []
    for axis in range(kind.rank):
        if kind.is_dynamic_dim(axis):
            size = _create("stablehlo.get_dimension_size", scalar, [value], dimension=axis)
            sizes.append(_create("stablehlo.reshape", vector, [size]))
        else:
            size = ir.Attribute.parse(f"dense<{kind.get_dim_size(axis)}> : tensor<1xi32>")
            sizes.append(create_value("stablehlo.constant", vector, attributes={"value": size}))
    shape = ir.RankedTensorType.get([kind.rank], i32)
    return _create("stablehlo.concatenate", shape, sizes, dimension=0)


def _create(name: str, kind: Any, operands: list[Any], **integers: int) -> Any:
    attributes = {key: make_int_attribute(value) for key, value in integers.items()}
    return create_value(name, kind, operands, attributes)
