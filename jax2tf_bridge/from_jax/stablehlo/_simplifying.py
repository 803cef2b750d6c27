"""Merges equal operations in a module, because loading time grows with their number.

JAX writes a branch for each platform even if all are equal, and repeats the arithmetic of open
sizes for each operation that needs it: together two thirds of a transformer's operations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attributes_of,
    replace_operation,
    walk_operations,
)

_CONTROL_FLOW = {f"stablehlo.{name}" for name in ("case", "if", "while")}
"""Operations whose regions may use outer values; readers reject this in all others."""

_RESULT_NAMES = re.compile(r"^%[^=]* = ")

_MERGE_EQUAL = "builtin.module(cse)"
_MERGE_AND_DROP = "builtin.module(cse,cse)"
"""Also removes dead operations; the second round removes those that only dead ones used."""


def merge_equal(module: Any) -> None:
    """Merges equal operations without effects, and equal branches, in place.

    The MLIR context of the module must be the current one.
    """
    _jax_compat.run_passes(module, _MERGE_EQUAL)
    cases = [op for op in walk_operations(module.operation) if op.name == "stablehlo.case"]
    # Inner cases follow outer ones, and must be merged first.
    equal = [case for case in reversed(cases) if _merge_branches(case)]
    if equal:
        _jax_compat.run_passes(module, _MERGE_AND_DROP)


def close_regions(operations: Mapping[str, Sequence[Any]]) -> None:
    """Copies outer values that regions use after a merge into the regions.

    `operations` are all of a module, by name; its MLIR context must be the current one.
    """
    operations_with_regions = [
        op
        for name, ops in operations.items()
        if name.startswith("stablehlo.") and name not in _CONTROL_FLOW
        for op in ops
        if len(op.regions)
    ]
    for op in operations_with_regions:
        _close_operation(op)


def _close_operation(operation: Any) -> None:
    """Implements close_regions for one operation.

    The copied values depend on each other only, because regions could not use outer values before.
    """
    for region in operation.regions:
        block = region.blocks[0]
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
    """Replaces a case by the operations of one branch if all branches are equal."""
    first, *others = (list(region.blocks[0].operations) for region in case.regions)
    *computing, end = first
    # The case's result types may have open sizes that the branches know.
    if [value.type for value in end.operands] != [value.type for value in case.results]:
        return False
    if not all(_are_equal(first, other, {}) for other in others):
        return False
    for op in computing:
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
