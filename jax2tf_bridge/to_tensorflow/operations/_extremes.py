"""Maxima and minima, recognized by the select that the export writes for XLA.

The export writes `select(x >= y or x != x, x, y)`, because the maximum of TensorFlow's XLA drops
NaN. TensorFlow's own maximum does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jax2tf_bridge.bytecode import Operation, Program
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.to_tensorflow.operations._patterns import Makers, rewrite_blocks, without_unused
from jax2tf_bridge.to_tensorflow.operations._scope import CONTRADICTIONS

_EXTREMES: Mapping[str, str] = MappingProxyType({"GE": "maximum", "LE": "minimum"})
_PARTS = frozenset({"or", "compare"})


def with_extremes(program: Program) -> Program:
    """Returns the module with maximum and minimum operations in place of the selects."""
    return rewrite_blocks(program, _rewrite)


def _rewrite(operations: Sequence[Operation], makers: Makers) -> Sequence[Operation]:
    names = {op: _extreme(op, makers) for op in operations if op.name == "select"}
    if not any(names.values()):
        return operations
    rewritten = [
        dataclasses.replace(op, name=name, operands=op.operands[1:])
        if (name := names.get(op)) is not None
        else op
        for op in operations
    ]
    return without_unused(rewritten, lambda operation: operation.name in _PARTS)


def _extreme(select: Operation, makers: Makers) -> str | None:
    """Returns "maximum" or "minimum" for a select of that form, else None."""
    try:
        flag, left, right = select.operands
        either = makers.get(flag)
        if either is None or either.name != "or" or left.tensor.element[0] not in "fb":
            return None
        comparison, is_nan = (makers[value] for value in either.operands)
        if comparison.name != "compare" or is_nan.name != "compare":
            return None
        directions = [op.text("comparison_direction") for op in (comparison, is_nan)]
    except (FileFormatError, *CONTRADICTIONS):
        return None
    pairs = [tuple(op.operands) for op in (comparison, is_nan)]
    if directions[1] != "NE" or pairs != [(left, right), (left, left)]:
        return None
    return _EXTREMES.get(directions[0])
