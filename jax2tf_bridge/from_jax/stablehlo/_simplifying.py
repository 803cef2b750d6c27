"""Merges equal operations in a module, since readers' time grows with their number.

JAX writes each branch of a choice between platforms, equal or not, and the arithmetic of open sizes
anew for each operation that needs them: two thirds of a transformer's operations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import attributes_of, below, replace_operation

_CONTROL_FLOW = {f"stablehlo.{name}" for name in ("case", "if", "while")}
"""Takes values from around it; readers expect that of no other operation with a region."""

_RESULT_NAMES = re.compile(r"^%[^=]* = ")

_MERGE_EQUAL = "builtin.module(cse)"
_MERGE_AND_DROP = "builtin.module(cse,cse)"
"""Drops what nothing uses as well, and in the second round what that alone used."""


def merge_equal(module: Any) -> None:
    """Merges equal operations without effects, and equal branches, in place.

    The MLIR context of the module must be the current one.
    """
    _jax_compat.run_passes(module, _MERGE_EQUAL)
    cases = [op for op in below(module.operation) if op.name == "stablehlo.case"]
    # Those inside of others come after them, and are merged before them.
    equal = [case for case in reversed(cases) if _merge_branches(case)]
    if equal:
        _jax_compat.run_passes(module, _MERGE_AND_DROP)


def close_regions(operations: Mapping[str, Sequence[Any]]) -> bool:
    """Copies into operations' regions what they take from around them since a merge.

    Args:
      operations: all of a module, by name; its MLIR context must be the current one.

    Returns:
      Whether there was any such value.
    """
    of_regions = [
        op
        for name, ops in operations.items()
        if name.startswith("stablehlo.") and name not in _CONTROL_FLOW
        for op in ops
        if len(op.regions)
    ]
    return any([_close(op) for op in of_regions])


def _close(operation: Any) -> bool:
    """Does as close_regions, for one operation.

    Such values are computed of nothing but each other: all else is the regions' own.
    """
    copied = False
    for region in operation.regions:
        block = region.blocks[0]
        within = [op for top in block.operations for op in below(top.operation)]
        inside = set(block.arguments)
        for op in within:
            inside.update(op.results)
            inside.update(a for nested in op.regions for b in nested.blocks for a in b.arguments)
        copies: dict[Any, Any] = {}
        for op in within:
            for i, value in enumerate(op.operands):
                if value not in inside:
                    op.operands[i] = _copied(value, block, copies)
        copied |= bool(copies)
    return copied


def _copied(value: Any, block: Any, copies: dict[Any, Any]) -> Any:
    """Returns a value's copy in a block, made before what is in it."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return value
    if value not in copies:
        copy = owner.operation.clone(ir.InsertionPoint.at_block_begin(block))
        copies.update(zip(owner.results, copy.results, strict=True))
        for i, operand in enumerate(copy.operands):
            copy.operands[i] = _copied(operand, block, copies)
    return copies[value]


def _merge_branches(case: Any) -> bool:
    """Puts the operations of a branch in the place of the case if all branches are equal."""
    first, *others = (list(region.blocks[0].operations) for region in case.regions)
    *computing, end = first
    # The type of a result may leave open what the branches know.
    if [value.type for value in end.operands] != [value.type for value in case.results]:
        return False
    if not all(_are_equal(first, other, {}) for other in others):
        return False
    for op in computing:
        op.operation.move_before(case)
    replace_operation(case, list(end.operands))
    return True


def _are_equal(left: list[Any], right: list[Any], counterparts: dict[Any, Any]) -> bool:
    """Tells whether two lists of operations compute the same in the same order.

    Args:
      left: of one block.
      right: of another.
      counterparts: from values of the left one's blocks to those of the right one's; those of
        `left` are added.
    """
    return len(left) == len(right) and all(
        _is_equal(one.operation, other.operation, counterparts)
        for one, other in zip(left, right, strict=True)
    )


def _is_equal(left: Any, right: Any, counterparts: dict[Any, Any]) -> bool:
    if left.name != right.name or not _have_equal_attributes(left, right):
        return False
    if [counterparts.get(value, value) for value in left.operands] != list(right.operands):
        return False
    if [value.type for value in left.results] != [value.type for value in right.results]:
        return False
    for one, other in zip(left.regions, right.regions, strict=True):
        if len(one.blocks) != len(other.blocks) or len(one.blocks) > 1:
            return False
        for block, counterpart in zip(one.blocks, other.blocks, strict=True):
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
    return are_complete or _text(left) == _text(right)


def _text(operation: Any) -> str:
    """Returns the text of an operation without the names of its results."""
    text = operation.get_asm(enable_debug_info=False, use_local_scope=True)
    return _RESULT_NAMES.sub("", str(text), count=1)
