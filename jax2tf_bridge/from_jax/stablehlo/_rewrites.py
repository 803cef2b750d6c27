"""Rewrites modules: merges equal operations, and makes maxima and minima keep NaN.

Merging: loading time grows with the number of operations. JAX writes a branch for each platform
even if all are equal, and repeats the arithmetic of open sizes for each operation that needs it:
together two thirds of a transformer's operations.

NaN: TensorFlow's XLA compiles for the CPU with fast minima and maxima: max(number, NaN) is the
number, while max(NaN, number) is NaN. JAX's XLA does not use them. A comparison and a select
propagate every NaN in both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attributes_of,
    create_value,
    replace_operation,
    walk_operations,
)

_CONTROL_FLOW = {f"stablehlo.{name}" for name in ("case", "if", "while")}
"""Operations whose regions may use outer values; readers reject this in all others."""

_RESULT_NAMES = re.compile(r"^%[^=]* = ")

_MERGE_EQUAL = "builtin.module(cse)"
_MERGE_AND_DROP = "builtin.module(cse,cse)"
"""The second round removes operations that lost their last user in the first."""


def merge_equal(module: Any) -> None:
    """Merges equal operations without effects, and equal branches, in place.

    The MLIR context of the module must be the current one.
    """
    _jax_compat.run_mlir_passes(module, _MERGE_EQUAL)
    cases = [op for op in walk_operations(module.operation) if op.name == "stablehlo.case"]
    # Inner cases follow outer ones, and must be merged first.
    equal = [case for case in reversed(cases) if _merge_branches(case)]
    if equal:
        _jax_compat.run_mlir_passes(module, _MERGE_AND_DROP)


def close_regions(operations: Mapping[str, Sequence[Any]]) -> None:
    """Copies outer values that regions use after a merge into the regions.

    `operations` are all of a module, by name; its MLIR context must be the current one.
    """
    for name, ops in operations.items():
        if name.startswith("stablehlo.") and name not in _CONTROL_FLOW:
            for block in [region.blocks[0] for op in ops for region in op.regions]:
                _close_block(block)


def _close_block(block: Any) -> None:
    # A copied value depends only on other copies, because the block used no outer values before
    # the merge.
    within = [op for top in block.operations for op in walk_operations(top.operation)]
    inside = set(block.arguments)
    for op in within:
        inside.update(op.results)
        inside.update(a for nested in op.regions for b in nested.blocks for a in b.arguments)
    copies: dict[Any, Any] = {}
    for op in within:
        for i, value in enumerate(op.operands):
            if value not in inside:
                op.operands[i] = _copy_value(value, block, copies)


def _copy_value(value: Any, block: Any, copies: dict[Any, Any]) -> Any:
    """Returns a copy of a value; new copies are inserted at the start of the block."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return value
    if value not in copies:
        copy = owner.operation.clone(ir.InsertionPoint.at_block_begin(block))
        copies.update(zip(owner.results, copy.results, strict=True))
        for i, operand in enumerate(copy.operands):
            copy.operands[i] = _copy_value(operand, block, copies)
    return copies[value]


def _merge_branches(case: Any) -> bool:
    first, *alternatives = (list(region.blocks[0].operations) for region in case.regions)
    *body, end = first
    # The case's result types may have open sizes that the branches know.
    if [value.type for value in end.operands] != [value.type for value in case.results]:
        return False
    if not all(_are_equal(first, alternative, {}) for alternative in alternatives):
        return False
    for op in body:
        op.operation.move_before(case)
    replace_operation(case, list(end.operands))
    return True


def _are_equal(left: list[Any], right: list[Any], counterparts: dict[Any, Any]) -> bool:
    """Returns whether the operations of two blocks compute the same in the same order.

    `counterparts` maps left values to equal right values; the results of `left` are added.
    """
    return len(left) == len(right) and all(
        _is_equal(left_op.operation, right_op.operation, counterparts)
        for left_op, right_op in zip(left, right, strict=True)
    )


def _is_equal(left: Any, right: Any, counterparts: dict[Any, Any]) -> bool:
    if left.name != right.name or not _have_equal_attributes(left, right):
        return False
    if [counterparts.get(value, value) for value in left.operands] != list(right.operands):
        return False
    if [value.type for value in left.results] != [value.type for value in right.results]:
        return False
    for left_region, right_region in zip(left.regions, right.regions, strict=True):
        if len(left_region.blocks) != len(right_region.blocks) or len(left_region.blocks) > 1:
            return False
        for block, counterpart in zip(left_region.blocks, right_region.blocks, strict=True):
            arguments = list(block.arguments), list(counterpart.arguments)
            if [value.type for value in arguments[0]] != [value.type for value in arguments[1]]:
                return False
            counterparts.update(zip(*arguments, strict=True))
            if not _are_equal(list(block.operations), list(counterpart.operations), counterparts):
                return False
    counterparts.update(zip(left.results, right.results, strict=True))
    return True


def _have_equal_attributes(left: Any, right: Any) -> bool:
    attributes = attributes_of(left)
    if attributes != attributes_of(right):
        return False
    # Constants of complex numbers can only be compared as text.
    are_complete = len(attributes) == len(left.attributes) == len(right.attributes)
    return are_complete or _print_without_result_names(left) == _print_without_result_names(right)


def _print_without_result_names(operation: Any) -> str:
    text = operation.get_asm(enable_debug_info=False, use_local_scope=True)
    return _RESULT_NAMES.sub("", str(text), count=1)


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

    Maxima with a constant, such as relu, stay maxima, because XLA can fuse them; the constant
    becomes the second operand. Reductions whose body is only a maximum stay too: the bridge's
    lowering rules handle them for the CPU, and other platforms recognize them by their form.

    The MLIR context of the module must be the current one.
    """
    for op in list(walk_operations(module.operation)):
        if op.name not in EXTREMES or _is_whole_reducer(op):
            continue
        if not str(ir.ShapedType(op.results[0].type).element_type).startswith(("f", "bf")):
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


def _is_whole_reducer(op: Any) -> bool:
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
