"""Sharding custom calls of portable artifacts whose values have open sizes."""

from __future__ import annotations

from typing import Any

from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    attributes_of,
    custom_call_target,
    replace_operation,
    walk_operations,
)

_SHAPES = "indices_of_shape_operands"
_FRONTEND = "mhlo.frontend_attributes"


def has_written_shardings(module: Any) -> bool:
    """Returns whether an ir.Module that was read from an artifact has Shardy meshes."""
    # Writing an artifact turns Shardy's operations into custom calls and frontend attributes.
    attributes = attribute(module.operation, _FRONTEND)
    return attributes is not None and "xla.sdy.meshes" in str(attributes)


def add_sharding_shapes(module: Any) -> None:
    """Adds the result shapes as operands to sharding calls on values with open sizes.

    XLA reads the sizes of a custom call's results from these operands and then drops them. It
    rejects modules without them.

    Args:
      module: an ir.Module that was read from an artifact; its context must be the current one.
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
        new = ir.Operation.create(
            "stablehlo.custom_call",
            results=[result.type for result in op.results],
            operands=[*operands, *shapes],
            attributes=attributes,
        )
    replace_operation(op, new.results)


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
            sizes.append(
                ir.Operation.create(
                    "stablehlo.constant", results=[vector], attributes={"value": size}
                ).results[0]
            )
    shape = ir.RankedTensorType.get([kind.rank], i32)
    return _create("stablehlo.concatenate", shape, sizes, dimension=0)


def _create(name: str, kind: Any, operands: list[Any], **integers: int) -> Any:
    i64 = ir.IntegerType.get_signless(64)
    attributes: dict[str, Any] = {
        key: ir.IntegerAttr.get(i64, value) for key, value in integers.items()
    }
    return ir.Operation.create(
        name, results=[kind], operands=operands, attributes=attributes
    ).results[0]
