"""Rewrites maxima and minima so that XLA's fast ones on the CPU drop no NaN.

TensorFlow's XLA compiles for the CPU with fast minima and maxima: the maximum of a number and NaN
is the number, but that of NaN and a number is NaN. JAX's XLA has none. A comparison and a select
propagate every NaN under both.
"""

from __future__ import annotations

import math
from typing import Any

from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import below, replace_operation

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

    relu and its kin stay, since XLA fuses a maximum with what is before it; the constant becomes
    the second operand. Reductions by a maximum alone stay as well: the
    lowering rules of the bridge write them for the CPU, and other platforms know them by their
    form.

    The MLIR context of the module must be the current one.
    """
    for op in list(below(module.operation)):
        if op.name not in EXTREMES or not _is_float(op.results[0].type) or _is_whole_reducer(op):
            continue
        left, right = op.operands
        if _is_number(left):
            left, right = right, left
        if _is_number(right) and not _is_bounded_again(op):
            op.operands[0], op.operands[1] = left, right
            continue
        with ir.InsertionPoint(op), op.location:
            replace_operation(op, [_selected(EXTREMES[op.name], left, right)])


def _selected(direction: str, left: Any, right: Any) -> Any:
    """Creates `left` if it compares so to `right` or is NaN, else `right`."""
    kind = ir.RankedTensorType(left.type)
    flags = ir.RankedTensorType.get(
        kind.shape, ir.IntegerType.get_signless(1), encoding=kind.encoding
    )

    def compared(direction: str, right: Any) -> Any:
        comparison = ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")
        attributes = {"comparison_direction": comparison}
        return _create("compare", flags, [left, right], attributes)

    is_left = _create("or", flags, [compared(direction, right), compared("NE", left)])
    return _create("select", kind, [is_left, left, right])


def _create(name: str, kind: Any, operands: list[Any], attributes: Any = None) -> Any:
    operation = ir.Operation.create(
        f"stablehlo.{name}", results=[kind], operands=operands, attributes=attributes
    )
    return operation.results[0]


def _is_float(kind: Any) -> bool:
    return str(ir.ShapedType(kind).element_type).startswith(("f", "bf"))


def _is_whole_reducer(op: Any) -> bool:
    """Returns whether an operation is all of a reduction's body."""
    parent = op.parent
    if parent is None or parent.name not in _REDUCTIONS:
        return False
    return sum(1 for region in parent.regions for _ in region.blocks[0].operations) == 2


def _is_bounded_again(op: Any) -> bool:
    """Returns whether a maximum is an operand of a minimum, or the reverse.

    XLA makes one clamp of the two, which drops NaN.
    """
    return any(use.owner.name in EXTREMES for use in op.results[0].uses)


def _is_number(value: Any) -> bool:
    """Returns whether a value is known to repeat one number that is not NaN."""
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
