"""Rounds a program's results to shorter floats, to measure how far rounding errors spread."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jax2tf_bridge.bytecode import Block, Operation, Program, TensorType, Value
from jax2tf_bridge.rewriting._patterns import (
    Matcher,
    every_operation,
    replace_bodies,
    replace_values,
    with_parts,
)

ROUNDED = frozenset(
    {"add", "atan2", "batch_norm_grad", "batch_norm_inference", "batch_norm_training", "cbrt"}
    | {"cholesky", "composite", "convolution", "cosine", "custom_call", "divide", "dot"}
    | {"dot_general", "dynamic_conv", "einsum", "exponential", "exponential_minus_one", "fft"}
    | {"log", "log_plus_one", "logistic", "multiply", "power", "reduce", "reduce_window", "rsqrt"}
    | {"scatter", "select_and_scatter", "sine", "sqrt", "subtract", "tan", "tanh"}
    | {"triangular_solve"}
)
"""Operations whose results runtimes round differently; others choose, move or truncate numbers."""

EXACT_COMPOSITES = frozenset(
    {"chlo.next_after", "chlo.top_k", "jax2tf.cummax", "jax2tf.cummin", "jax2tf.stop_gradient"}
)

EXPONENT_BITS: Mapping[str, int] = MappingProxyType({"f64": 11, "f32": 8, "f16": 5, "bf16": 8})
"""Bits of the exponent, by the element type of results that are rounded."""

_MANTISSA_BITS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"f64": (46, 47, 48), "f32": (17, 18, 19), "f16": (8, 9), "bf16": (5, 6)}
)
"""Possible bits of the mantissa, by element type.

The errors are about a tenth of the tolerance of the dtype. Results that have no more digits, such
as small integers, stay exact.
"""


def choose_mantissa_bits(element: str, generator: random.Random) -> int | None:
    """Chooses to how many bits a result is rounded; None for a quarter, and for other types.

    Different lengths tell apart equal numbers that are computed in two ways.

    Args:
      element: the element type of the result, or of its parts if it is complex.
      generator: the generator of random numbers.
    """
    return generator.choice((None, *_MANTISSA_BITS.get(element, ())))


def round_results(program: Program, seed: int) -> Program:
    """Rounds the arguments and results of a program's operations to shorter floats.

    Operations inside data-dependent loops are not rounded, because such loops might not end.

    Args:
      program: the program without calls.
      seed: the seed of the lengths.
    """
    main = _Rounding(random.Random(seed)).round_block(program.main.body, is_main=True)
    bodies = {name: function.body for name, function in program.functions.items()}
    return replace_bodies(program, {**bodies, "main": main})


class _Rounding:
    def __init__(self, generator: random.Random) -> None:
        self._random = generator
        self._values: dict[Value, Value] = {}

    def round_block(self, block: Block, *, is_main: bool = False) -> Block:
        operations: list[Operation] = []
        for argument in block.arguments if is_main else ():
            operations += self._round(argument)
        for operation in block.operations:
            round_region = self._replace_in_block if _is_opaque(operation) else self.round_block
            regions = tuple(map(round_region, operation.regions))
            operands = replace_values(operation.operands, self._values)
            operations.append(with_parts(operation, operands, regions))
            if _is_rounded(operation):
                for result in operation.results:
                    operations += self._round(result)
        return dataclasses.replace(block, operations=tuple(operations))

    def _replace_in_block(self, block: Block) -> Block:
        """Replaces the values of enclosing blocks, and rounds nothing."""
        operations = (
            with_parts(
                operation,
                replace_values(operation.operands, self._values),
                tuple(map(self._replace_in_block, operation.regions)),
            )
            for operation in block.operations
        )
        return dataclasses.replace(block, operations=tuple(operations))

    def _round(self, value: Value) -> list[Operation]:
        """Returns operations that round a value, and uses their result in its place."""
        if not isinstance(value.type, TensorType):
            return []
        shape, element = value.type.shape, value.type.element
        real = TensorType(shape, element.removeprefix("complex<").removesuffix(">"))
        mantissa_bits = choose_mantissa_bits(real.element, self._random)
        if mantissa_bits is None:
            return []
        bits = {"exponent_bits": EXPONENT_BITS[real.element], "mantissa_bits": mantissa_bits}
        operations: list[Operation] = []

        def add(
            name: str, *operands: Value, kind: TensorType = real, attributes: Any = None
        ) -> Value:
            result = Value(kind)
            operations.append(Operation(name, operands, (result,), attributes or {}))
            return result

        def round_real(number: Value) -> Value:
            # Numbers near 1 would become 1 if they were not divided. This is e in their shape.
            zero = add("subtract", number, number)
            divisor = add("exponential", add("exponential", zero))
            quotient = add("divide", number, divisor)
            shorter = add("reduce_precision", quotient, attributes=bits)
            moved = add("multiply", shorter, divisor)
            is_short = add(
                "compare",
                number,
                add("reduce_precision", number, attributes=bits),
                kind=TensorType(shape, "i1"),
                attributes={"comparison_direction": "EQ", "compare_type": "FLOAT"},
            )
            return add("select", is_short, number, moved)

        if real == value.type:
            self._values[value] = round_real(value)
            return operations
        # Each part has the errors of the magnitude: an FFT does not know which part is 0.
        size = add("abs", value)
        parts = (
            add("subtract", round_real(add("add", part, size)), size)
            for part in (add("real", value), add("imag", value))
        )
        self._values[value] = add("complex", *parts, kind=value.type)
        return operations


def _is_opaque(operation: Operation) -> bool:
    """Returns whether the operations in the regions are not rounded one by one."""
    return operation.name not in ("case", "if") and not _is_counted_loop(operation)


def _is_rounded(operation: Operation) -> bool:
    name = operation.name
    if not operation.regions:
        return name in ROUNDED and operation.attributes.get("name") not in EXACT_COMPOSITES
    inner = (each for region in operation.regions for each in region.operations)
    is_candidate = name in ROUNDED or name == "while"
    return (
        is_candidate
        and _is_opaque(operation)
        and any(each.name in ROUNDED for each in every_operation(inner))
    )


def _is_counted_loop(operation: Operation) -> bool:
    """Returns whether the number of iterations depends on a counter only."""
    if operation.name != "while" or len(operation.regions) != 2:
        return False
    condition, body = operation.regions
    matcher = Matcher.of(body)
    used = {value for each in every_operation(condition.operations) for value in each.operands}
    for argument, before, after in zip(
        condition.arguments, body.arguments, body.returned, strict=True
    ):
        if argument not in used or after is before:
            continue
        step = matcher.maker(after, "add")
        if step is None or before not in step.operands or "f" in argument.tensor.element:
            return False
        if all(matcher.number(operand) is None for operand in step.operands):
            return False
    return True
