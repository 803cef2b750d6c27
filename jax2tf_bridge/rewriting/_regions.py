"""Recognizes what regions compute: reducers, selectors and comparators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import dtype_of_element, find_dtype
from jax2tf_bridge.bytecode import Block, DenseElements, Operation, Value
from jax2tf_bridge.rewriting._patterns import Matcher, in_both_orders

_OF_FLAGS: Mapping[str, str] = MappingProxyType(
    {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}
)
_REDUCERS = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})
"""Names of the supported reducers, all commutative and associative."""


@dataclass(frozen=True)
class Reducer:
    """Reducer that is a binary operation of StableHLO.

    Attributes:
      name: the name of the operation; "and", "or" or "xor" for bool.
      element: the element type of the computation, which may be wider than the operand's.
    """

    name: str
    element: str

    @property
    def identity(self) -> Any:
        """The identity element, as a NumPy scalar."""
        match self.name:
            case "add" | "or" | "xor":
                return self._dtype(0)
            case "multiply":
                return self._dtype(1)
            case "and":
                is_unsigned = dtype_of_element(self.element).kind == "uint"
                return self._extreme(least=False) if is_unsigned else ~self._dtype(0)
            case name:
                return self._extreme(least=name == "maximum")

    @property
    def _dtype(self) -> Any:
        row = dtype_of_element(self.element)
        return (find_dtype(row.op_dtype) or row).numpy().type

    def _extreme(self, *, least: bool) -> Any:
        row = dtype_of_element(self.element)
        if row.kind == "float":
            return self._dtype(-np.inf if least else np.inf)
        bits = row.bits - (row.kind == "int")
        lowest = -(2**bits) if row.kind == "int" else 0
        return self._dtype(lowest if least else 2**bits - 1)


@dataclass(frozen=True)
class SortKey:
    """Sort key of a comparator.

    Attributes:
      block: the block that computes the key from one element of each operand.
      descending: whether the order is descending.
      total_order: whether -0 comes before 0, and NaNs are ordered by sign; otherwise zeros are
        equal.
    """

    block: Block
    descending: bool
    total_order: bool


class _Body(Matcher):
    """Block whose values can be traced back to their operations."""

    def __init__(
        self, block: Block, are_equal: Callable[[Value, Value], bool] = operator.is_
    ) -> None:
        """Stores the block; `are_equal` compares two values of enclosing blocks."""
        super().__init__(block, None)
        self.block, self.are_equal = block, are_equal
        for operation in block.operations:
            self.add(operation)

    def argument(self, value: Value) -> int | None:
        """Returns the index of the block's argument that a value is, or None."""
        arguments = self.block.arguments
        return arguments.index(value) if value in arguments else None

    def skip_conversions(self, value: Value) -> Value:
        """Traces a value back through conversions."""
        while (operation := self.maker(value, "convert")) is not None:
            (value,) = operation.operands
        return value

    def is_mirrored(self, left: Value, right: Value, pairs: Mapping[Value, Value]) -> bool:
        """Returns whether `right` is the computation of `left` on the other side's elements."""
        if left in pairs or right in pairs.values():
            return pairs.get(left) is right
        if left is right:
            return self._is_fixed(left, pairs)
        if left not in self.makers or right not in self.makers:
            return (
                self._is_outside(left) and self._is_outside(right) and self.are_equal(left, right)
            )
        first, second = self.makers[left], self.makers[right]
        return (
            first.name == second.name
            and first.results.index(left) == second.results.index(right)
            and not first.regions
            and not second.regions
            and are_attributes_equal(first.attributes, second.attributes)
            and len(first.operands) == len(second.operands)
            and all(
                self.is_mirrored(a, b, pairs)
                for a, b in zip(first.operands, second.operands, strict=True)
            )
        )

    def _is_outside(self, value: Value) -> bool:
        return value not in self.makers and value not in self.block.arguments

    def _is_fixed(self, value: Value, pairs: Mapping[Value, Value]) -> bool:
        if value in self.block.arguments:
            return pairs.get(value) is value
        if value not in self.makers:
            return True
        return all(self._is_fixed(operand, pairs) for operand in self.makers[value].operands)

    def make_block(self, value: Value, arguments: Sequence[Value]) -> Block:
        """Makes a block that computes a value from some of the arguments."""
        needed: set[Value] = {value}
        for operation in reversed(self.block.operations):
            if any(result in needed for result in operation.results):
                needed.update(operation.operands)
        operations = [op for op in self.block.operations if any(v in needed for v in op.results)]
        end = Operation("return", (value,), (), {})
        return Block(tuple(arguments), (*operations, end))


def are_attributes_equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return left.keys() == right.keys() and all(_are_equal(left[key], right[key]) for key in left)


def _are_equal(left: Any, right: Any) -> bool:
    if isinstance(left, DenseElements) and isinstance(right, DenseElements):
        # The bytes are compared, because NaN is not equal to itself.
        return left.type == right.type and bytes(left.data) == bytes(right.data)
    return bool(left == right)


def match_reducers(block: Block) -> list[Reducer] | None:
    """Recognizes a reducer that reduces each operand independently of the others.

    Returns the reducers of the operands; None if one is not recognized.
    """
    body = _Body(block)
    n_operands = len(block.arguments) // 2
    recognized: list[Reducer] = []
    for i, value in enumerate(block.returned):
        operation = body.maker(body.skip_conversions(value), *_REDUCERS)
        if operation is None:
            return None
        left, right = (body.argument(body.skip_conversions(v)) for v in operation.operands)
        if {left, right} != {i, i + n_operands}:
            return None
        argument, result = block.arguments[i].tensor.element, operation.result_type.element
        if not _can_hold(result, argument) or value.tensor.element != argument:
            return None
        name = _OF_FLAGS.get(operation.name, operation.name) if result == "i1" else operation.name
        recognized.append(Reducer(name, result))
    return recognized


def _can_hold(wide: str, narrow: str) -> bool:
    """Returns whether one type can represent all numbers of another."""
    if wide == narrow:
        return True
    return (wide, narrow) in {
        *((f"f{bits}", small) for bits in (32, 64) for small in ("f16", "bf16")),
        ("f64", "f32"),
        ("complex<f64>", "complex<f32>"),
    }


def match_selected_extreme(block: Block) -> str | None:
    """Recognizes a selector of the maximum or minimum, the first one among equals.

    Returns "maximum", "minimum" or None.
    """
    return _find_preferred(_Body(block), block.returned[0], 1, greater="GE", less="LE")


def _find_preferred(
    body: _Body, value: Value, place: int, *, greater: str, less: str
) -> str | None:
    """Returns which extreme a comparison of argument 0 with another one prefers, or None."""
    comparison = body.comparison(value)
    if comparison is None:
        return None
    direction, *operands = comparison
    places = [body.argument(operand) for operand in operands]
    if places not in ([0, place], [place, 0]) or direction not in (greater, less):
        return None
    return "maximum" if (direction == greater) == (places[0] == 0) else "minimum"


def match_extreme_index(block: Block) -> str | None:
    """Recognizes the reducer of a number and its index that finds the first extreme number.

    NaN counts as the most extreme number. Returns "maximum", "minimum" or None.
    """
    if len(block.arguments) != 4 or len(block.returned) != 2:
        return None
    body = _Body(block)
    chosen, index = (body.maker(value, "select") for value in block.returned)
    if chosen is None or index is None:
        return None
    if [body.argument(v) for v in chosen.operands[1:]] != [0, 2]:
        return None
    if [body.argument(v) for v in index.operands[1:]] != [1, 3]:
        return None
    flag = chosen.operands[0]
    matched = _match_first_or_nan(body, flag)
    if matched is None:
        return None
    for same, tie in in_both_orders(body.maker(index.operands[0], "or")):
        if same is flag and _is_tie(body, tie):
            return matched
    return None


def _match_first_or_nan(body: _Body, flag: Value) -> str | None:
    """Recognizes `a > b or isnan(a)`, or with <; integers may omit the test for NaN."""
    is_float = dtype_of_element(body.block.arguments[0].tensor.element).kind == "float"
    either = in_both_orders(body.maker(flag, "or"))
    candidates = [strict for strict, nan in either if _is_nan(body, nan)]
    for candidate in candidates or ([] if is_float else [flag]):
        if (extreme := _find_preferred(body, candidate, 2, greater="GT", less="LT")) is not None:
            return extreme
    return None


def _is_nan(body: _Body, value: Value) -> bool:
    comparison = body.comparison(value)
    return (
        comparison is not None
        and comparison[0] == "NE"
        and body.argument(comparison[1]) == body.argument(comparison[2]) == 0
    )


def _is_tie(body: _Body, value: Value) -> bool:
    for equal, before in in_both_orders(body.maker(value, "and")):
        equality, order = body.comparison(equal), body.comparison(before)
        if equality is None or order is None:
            continue
        if equality[0] != "EQ" or set(map(body.argument, equality[1:])) != {0, 2}:
            continue
        match order[0], body.argument(order[1]), body.argument(order[2]):
            case ("LT", 1, 3) | ("GT", 3, 1):
                return True
    return False


def match_sort_keys(
    block: Block, are_equal: Callable[[Value, Value], bool]
) -> list[SortKey] | None:
    """Recognizes a comparator with a lexicographic order of sort keys.

    The first key decides, the next one if the first is equal, and so on.

    Args:
      block: the comparator.
      are_equal: returns whether two values of enclosing blocks are equal constants.
    """
    body = _Body(block, are_equal)
    left, right = block.arguments[::2], block.arguments[1::2]
    pairs = dict(zip(left, right, strict=True))
    return _match_keys(body, block.returned[0], pairs)


def _match_keys(body: _Body, value: Value, pairs: Mapping[Value, Value]) -> list[SortKey] | None:
    sort_key = _match_key(body, value, pairs)
    if sort_key is not None:
        return [sort_key[0]]
    for decided, undecided in in_both_orders(body.maker(value, "or")):
        first = _match_key(body, decided, pairs)
        if first is None:
            continue
        key, compared = first
        for equal, rest in in_both_orders(body.maker(undecided, "and")):
            same = body.comparison(equal)
            if same is None or same[0] != "EQ" or not _are_same(body, same[1:], compared):
                continue
            others = _match_keys(body, rest, pairs)
            if others is not None:
                return [key, *others]
    return None


def _match_key(
    body: _Body, value: Value, pairs: Mapping[Value, Value]
) -> tuple[SortKey, tuple[Value, Value]] | None:
    comparison = body.comparison(value)
    if comparison is None or comparison[0] not in ("LT", "GT"):
        return None
    direction, left, right = comparison
    if not body.is_mirrored(left, right, pairs):
        left, right = right, left
        direction = "GT" if direction == "LT" else "LT"
        if not body.is_mirrored(left, right, pairs):
            return None
    total = body.makers[value].attributes.get("compare_type") == "TOTALORDER"
    block = body.make_block(left, tuple(pairs))
    return SortKey(block, direction == "GT", total), (left, right)


def _are_same(body: _Body, left: Sequence[Value], right: Sequence[Value]) -> bool:
    """Returns whether two pairs of values are equal, in either order."""
    itself: dict[Value, Value] = {value: value for value in body.block.arguments}
    return any(
        all(body.is_mirrored(a, b, itself) for a, b in zip(order, right, strict=True))
        for order in (left, left[::-1])
    )
