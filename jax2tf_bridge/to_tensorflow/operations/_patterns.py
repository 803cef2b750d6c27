"""Helpers for rewriting modules: the operations that make values, and unused operations."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from jax2tf_bridge.bytecode import Block, DenseElements, Operation, Program, Value

Makers: TypeAlias = Mapping[Value, Operation]
"""Maps each value to the operation that makes it."""

Rewrite: TypeAlias = Callable[[Sequence[Operation], Makers], Sequence[Operation]]
"""Function of a block's operations, and of the makers of their values and outer constants."""

BROADCASTS = ("broadcast_in_dim", "dynamic_broadcast_in_dim")


def rewrite_blocks(program: Program, rewrite: Rewrite) -> Program:
    """Rewrites the operations of every block, inner regions first."""
    functions = {
        name: dataclasses.replace(function, body=_rewrite(function.body, rewrite, {}))
        for name, function in program.functions.items()
    }
    return dataclasses.replace(program, functions=functions)


def _rewrite(block: Block, rewrite: Rewrite, constants: Makers) -> Block:
    own = {op.results[0]: op for op in block.operations if op.name == "constant" and op.results}
    constants = {**constants, **own}
    operations = tuple(
        dataclasses.replace(
            operation,
            regions=tuple(_rewrite(region, rewrite, constants) for region in operation.regions),
        )
        if operation.regions
        else operation
        for operation in block.operations
    )
    makers = {**constants, **{value: op for op in operations for value in op.results}}
    return dataclasses.replace(block, operations=tuple(rewrite(operations, makers)))


def operand_counts(operations: Iterable[Operation]) -> Counter[Value]:
    """Counts the uses of values, including uses in regions."""
    return Counter(value for each in every_operation(operations) for value in each.operands)


def every_operation(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Yields operations and those in their regions."""
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        yield operation
        waiting.extend(inner for block in operation.regions for inner in block.operations)


def without_unused(
    operations: Sequence[Operation], is_removable: Callable[[Operation], bool]
) -> list[Operation]:
    """Removes operations without effects and without uses of their results."""
    counts = operand_counts(operations)
    kept: list[Operation] = []
    for operation in reversed(operations):
        if is_removable(operation) and not any(counts[value] for value in operation.results):
            counts.subtract(operand_counts([operation]))
        else:
            kept.append(operation)
    return kept[::-1]


def number_of(value: Value, makers: Makers) -> float | None:
    """Returns the common value of all elements of a constant; None if there is none."""
    operation = makers.get(value)
    while operation is not None and operation.name in BROADCASTS:
        operation = makers.get(operation.operands[0])
    if operation is None or operation.name != "constant":
        return None
    elements = operation.attributes.get("value")
    if not isinstance(elements, DenseElements) or elements.type.element.startswith("complex"):
        return None
    array = elements.array()
    return float(array.reshape(-1)[0]) if array.size and not any(array.strides) else None
