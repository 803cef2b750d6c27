"""Applies tables of patterns to the operations of a program."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge._operations import OPERATIONS
from jax2tf_bridge.bytecode import (
    STOP_GRADIENT,
    Block,
    DenseElements,
    Operation,
    Program,
    TensorType,
    Value,
)

BROADCASTS = ("broadcast_in_dim", "dynamic_broadcast_in_dim")

_SAME_NUMBERS = frozenset(
    {*BROADCASTS, "broadcast", "convert", "dynamic_reshape", "reshape", "transpose"}
)
"""Operations that keep all elements equal to one number."""

INVALID_OPERATION_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(TypeError, ValueError),
)
"""Exceptions of code that handles an operation with invalid operands, types or regions. The reader
of modules does not check these."""


@dataclass(frozen=True)
class Replacement:
    """Operations that replace an operation.

    Attributes:
      operations: the operations; none if the results are other values.
      values: the values that replace the results.
    """

    operations: tuple[Operation, ...]
    values: tuple[Value, ...]


Rewritten: TypeAlias = "Operation | Replacement | None"
"""Result of a pattern: an operation with the same results, other operations, or nothing."""


@dataclass(frozen=True)
class Pattern:
    """Rewrite of an operation.

    Law: the replacement computes the same values, of the same types.

    Attributes:
      roots: names of the operations that it may replace.
      rewrite: returns the replacement; None if the operations around it do not match. It may raise
        INVALID_OPERATION_ERRORS, which also mean that nothing matches.
    """

    roots: frozenset[str]
    rewrite: Callable[[Operation, Matcher], Rewritten]

    def apply(self, operation: Operation, matcher: Matcher) -> Rewritten:
        """Returns the replacement, or None."""
        try:
            return self.rewrite(operation, matcher)
        except INVALID_OPERATION_ERRORS:
            return None  # whatever handles the invalid operation next reports it


def in_both_orders(operation: Operation | None) -> tuple[tuple[Value, Value], ...]:
    """Returns the operands of a commutative operation in both orders; nothing for None."""
    if operation is None:
        return ()
    left, right = operation.operands
    return (left, right), (right, left)


class Matcher:
    """Operations of a block, as far as they are rewritten already."""

    def __init__(self, block: Block, outer: Matcher | None) -> None:
        self._block, self._outer = block, outer
        self.makers: dict[Value, Operation] = {}

    @classmethod
    def of(cls, block: Block) -> Self:
        """Makes the matcher of a whole block that is not rewritten."""
        matcher = cls(block, None)
        for operation in block.operations:
            matcher.add(operation)
        return matcher

    def add(self, operation: Operation) -> None:
        """Adds the next operation of the block."""
        for value in operation.results:
            self.makers[value] = operation

    def maker(self, value: Value, *names: str) -> Operation | None:
        """Returns the operation of this block that makes a value, if it has one of the names."""
        operation = self.makers.get(value)
        return operation if operation is not None and operation.name in names else None

    def operand(self, value: Value, name: str) -> Value | None:
        """Returns the operand of the unary operation `name` that makes a value, or None."""
        operation = self.maker(value, name)
        return operation.operands[0] if operation and len(operation.operands) == 1 else None

    def comparison(self, value: Value) -> tuple[str, Value, Value] | None:
        """Returns the direction and the operands of the comparison that makes a value, or None."""
        operation = self.maker(value, "compare")
        if operation is None:
            return None
        left, right = operation.operands
        return operation.text("comparison_direction"), left, right

    def unbroadcast(self, value: Value) -> Value:
        """Returns the scalar that a value repeats; else the value itself."""
        source = value
        while (operation := self.maker(source, *BROADCASTS)) is not None:
            source = operation.operands[0]
        return source if not source.tensor.shape else value

    @functools.cached_property
    def _uses(self) -> Counter[Value]:
        return _count_uses(self._block.operations)

    def uses(self, value: Value) -> int:
        """Returns how often the block, with its regions, uses a value."""
        return self._uses[value]

    @functools.cached_property
    def _users(self) -> Mapping[Value, list[Operation]]:
        users: dict[Value, list[Operation]] = defaultdict(list)
        for operation in self._block.operations:
            for value in operation.operands:
                users[value].append(operation)
        return users

    def users(self, value: Value) -> Sequence[Operation]:
        """Returns the operations of the block, as they were before, that use a value."""
        return self._users.get(value, ())

    def number(self, value: Value) -> float | None:
        """Returns the common value of all elements of a constant, also of enclosing blocks."""
        operation = self.find(value)
        is_converted = False
        while operation is not None and operation.name in _SAME_NUMBERS:
            is_converted = is_converted or operation.name == "convert"
            operation = self.find(operation.operands[0])
        if operation is None or operation.name != "constant":
            return None
        elements = operation.attributes.get("value")
        if not isinstance(elements, DenseElements) or elements.type.element.startswith("complex"):
            return None
        array = elements.array()
        if array.size == 0 or (array.size > 1 and any(array.strides)):
            return None
        is_whole = dtype_of_element(elements.type.element).kind != "float"
        number = (int if is_whole else float)(array.reshape(-1)[0])
        # Every element type has 0 and 1; others may be rounded, or wrap around.
        return number if number in (0, 1) or not is_converted else None

    def find(self, value: Value) -> Operation | None:
        """Returns the operation that makes a value, also in enclosing blocks."""
        operation = self.makers.get(value)
        return operation or (self._outer.find(value) if self._outer else None)


def rewrite(program: Program, patterns: Iterable[Pattern]) -> Program:
    """Applies patterns to every operation, those in regions first, and removes unused parts.

    Patterns are applied again to what they return, until none matches. Returns the program itself
    if no pattern matches.
    """
    rewriting = _Rewriting(patterns)
    bodies = {name: rewriting.block(f.body, None) for name, f in program.functions.items()}
    return replace_bodies(program, bodies)


def replace_bodies(program: Program, bodies: Mapping[str, Block]) -> Program:
    """Returns the program with other bodies of its functions; itself if all are the same."""
    if all(body is program.functions[name].body for name, body in bodies.items()):
        return program
    functions = {
        name: dataclasses.replace(function, body=bodies[name])
        for name, function in program.functions.items()
    }
    return dataclasses.replace(program, functions=functions)


class _Rewriting:
    """Application of a table of patterns to the blocks of a program."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._table: dict[str, list[Pattern]] = defaultdict(list)
        for pattern in patterns:
            for name in pattern.roots:
                self._table[name].append(pattern)
        self._values: dict[Value, Value] = {}

    def block(self, block: Block, outer: Matcher | None) -> Block:
        matcher = Matcher(block, outer)
        operations: list[Operation] = []
        has_matches = False
        for operation in block.operations:
            current = self._with_new_parts(operation, matcher)
            if current.name not in self._table:
                matcher.add(current)
                operations.append(current)
                continue
            waiting = [current]
            while waiting:
                each = waiting.pop()
                replacement = self._match(each, matcher)
                has_matches = has_matches or replacement is not None
                match replacement:
                    case None:
                        matcher.add(each)
                        operations.append(each)
                    case Replacement():
                        self._values.update(zip(each.results, replacement.values, strict=True))
                        waiting.extend(reversed(replacement.operations))
                    case _:
                        waiting.append(replacement)
        if has_matches:
            operations = _remove_unused(operations)
        elif all(a is b for a, b in zip(operations, block.operations, strict=True)):
            return block
        return dataclasses.replace(block, operations=tuple(operations))

    def _with_new_parts(self, operation: Operation, matcher: Matcher) -> Operation:
        if not operation.regions and self._values.keys().isdisjoint(operation.operands):
            return operation
        regions = tuple(self.block(region, matcher) for region in operation.regions)
        return with_parts(operation, replace_values(operation.operands, self._values), regions)

    def _match(self, operation: Operation, matcher: Matcher) -> Rewritten:
        for pattern in self._table.get(operation.name, ()):
            if (replacement := pattern.apply(operation, matcher)) is not None:
                return replacement
        return None


def replace_values(values: Iterable[Value], new: Mapping[Value, Value]) -> tuple[Value, ...]:
    """Returns values, with new ones for those that have one."""
    return tuple(new.get(value, value) for value in values)


def with_parts(
    operation: Operation, operands: tuple[Value, ...], regions: tuple[Block, ...]
) -> Operation:
    """Returns an operation with other operands and regions; itself if all are the same."""
    parts, new = (*operation.operands, *operation.regions), (*operands, *regions)
    if len(parts) == len(new) and all(map(operator.is_, parts, new)):
        return operation
    return dataclasses.replace(operation, operands=operands, regions=regions)


def every_operation(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Yields operations and those in their regions."""
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        yield operation
        waiting.extend(inner for block in operation.regions for inner in block.operations)


def _count_uses(operations: Iterable[Operation]) -> Counter[Value]:
    return Counter(value for each in every_operation(operations) for value in each.operands)


def _remove_unused(operations: Sequence[Operation]) -> list[Operation]:
    uses = _count_uses(operations)
    needed: list[Operation] = []
    for operation in reversed(operations):
        if _is_removable(operation) and not any(uses[value] for value in operation.results):
            uses.subtract(_count_uses([operation]))
        else:
            needed.append(operation)
    return needed[::-1]


def _is_removable(operation: Operation) -> bool:
    kind = OPERATIONS.get(operation.name)
    has_effects = kind is not None and kind.has_effects and not is_stop_gradient(operation)
    return not has_effects and all(
        isinstance(value.type, TensorType) for value in operation.results
    )


def is_stop_gradient(operation: Operation) -> bool:
    """Returns whether an operation is a stop_gradient of one array."""
    return operation.attributes.get("name") == STOP_GRADIENT and len(operation.results) == 1
