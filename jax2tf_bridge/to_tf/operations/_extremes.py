"""Maxima and minima, found by the select that the export writes for them where there is XLA.

The export writes `select(x >= y or x != x, x, y)`, because the maximum of TensorFlow's XLA drops
NaN. TensorFlow's own maximum does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable.bytecode import Block, Operation, Program, Value
from jax2tf_bridge.to_tf.operations._scope import CONTRADICTIONS
from jax2tf_bridge.to_tf.operations._softmax import without_unused

_EXTREMES: Mapping[str, str] = MappingProxyType({"GE": "maximum", "LE": "minimum"})
_PARTS = frozenset({"or", "compare"})


def with_extremes(program: Program) -> Program:
    """Returns the module with maxima and minima as operations."""
    functions = {
        name: dataclasses.replace(function, body=_with_extremes(function.body))
        for name, function in program.functions.items()
    }
    return dataclasses.replace(program, functions=functions)


def _with_extremes(block: Block) -> Block:
    makers = {value: operation for operation in block.operations for value in operation.results}
    operations: list[Operation] = []
    has_extremes = False
    for operation in block.operations:
        if operation.regions:
            regions = tuple(_with_extremes(region) for region in operation.regions)
            if any(new is not old for new, old in zip(regions, operation.regions, strict=True)):
                operation = dataclasses.replace(operation, regions=regions)
        elif operation.name == "select" and (name := _extreme(operation, makers)) is not None:
            has_extremes = True
            operation = dataclasses.replace(operation, name=name, operands=operation.operands[1:])
        operations.append(operation)
    if has_extremes:
        operations = without_unused(operations, lambda operation: operation.name in _PARTS)
    if len(operations) == len(block.operations) and all(
        new is old for new, old in zip(operations, block.operations, strict=True)
    ):
        return block
    return dataclasses.replace(block, operations=tuple(operations))


def _extreme(select: Operation, makers: Mapping[Value, Operation]) -> str | None:
    """Returns the name of the extreme that a select chooses; None if it chooses another value."""
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
