"""Rewrites maxima and minima so that TensorFlow's XLA propagates NaN on the CPU.

TensorFlow's XLA compiles for the CPU with fast minima and maxima: max(number, NaN) is the number,
while max(NaN, number) is NaN. JAX's XLA does not use them. A comparison and a select propagate
every NaN in both.
"""

from __future__ import annotations

import math
from typing import Any

from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    create_value,
    replace_operation,
    walk_operations,
)

EXTREMES = {"stablehlo.maximum": "GE", "stablehlo.minimum": "LE"}
"""Maps each operation to the comparison that is true if its first operand is the result."""

_REDUCTIONS = frozenset(
    f"stablehlo.{name}" for name in ("reduce", "reduce_window", "all_reduce", "reduce_scatter")
)
_BROADCASTS = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "dynamic_broadcast_in_dim", "reshape")
)


def keep_nan(module: Any) -> None:
    """Rewrites maxima and minima of floats in place.

    Maxima with a constant, such as relu, stay because XLA can fuse them; the constant becomes the
    second operand. Reductions whose whole body is a maximum stay too: the bridge's lowering rules
    handle them for the CPU, and other platforms recognize them by their form.

    The MLIR context of the module must be the current one.
    """
    for op in list(walk_operations(module.operation)):
        if op.name not in EXTREMES or not _is_float(op.results[0].type) or _is_whole_reducer(op):
            continue
        left, right = op.operands
        if _is_constant_number(left):
            left, right = right, left
        if _is_constant_number(right) and not _is_bounded_again(op):
            op.operands[0], op.operands[1] = left, right
            continue
        with ir.InsertionPoint(op), op.location:
            replace_operation(op, [_create_select(EXTREMES[op.name], left, right)])


def _create_select(direction: str, left: Any, right: Any) -> Any:
    """Creates a select: `left` if the comparison is true or `left` is NaN, else `right`."""
    kind = ir.RankedTensorType(left.type)
    flags = ir.RankedTensorType.get(
        kind.shape, ir.IntegerType.get_signless(1), encoding=kind.encoding
    )

    def compare(direction: str, right: Any) -> Any:
        comparison = ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")
        attributes = {"comparison_direction": comparison}
        return create_value("stablehlo.compare", flags, [left, right], attributes)

    comparisons = [compare(direction, right), compare("NE", left)]
    is_left = create_value("stablehlo.or", flags, comparisons)
    return create_value("stablehlo.select", kind, [is_left, left, right])


def _is_float(kind: Any) -> bool:
    return str(ir.ShapedType(kind).element_type).startswith(("f", "bf"))


def _is_whole_reducer(op: Any) -> bool:
    """Returns whether an operation is the whole body of a reduction."""
    parent = op.parent
    if parent is None or parent.name not in _REDUCTIONS:
        return False
    return sum(1 for region in parent.regions for _ in region.blocks[0].operations) == 2


def _is_bounded_again(op: Any) -> bool:
    """Returns whether a maximum is an operand of a minimum, or the reverse.

    XLA fuses the two into a clamp, which drops NaN.
    """
    return any(use.owner.name in EXTREMES for use in op.results[0].uses)


def _is_constant_number(value: Any) -> bool:
    """Returns whether a value is a broadcast of one constant that is not NaN."""
    while not isinstance(value.owner, ir.Block):
        operation = value.owner
        if operation.name == "stablehlo.constant":
            elements = ir.DenseElementsAttr(operation.attributes["value"])
            return elements.is_splat and not math.isnan(
                ir.FloatAttr(elements.get_splat_value()).value
            )
        if operation.name not in _BROADCASTS:
            return False
        value = operation.operands[0]
    return False
