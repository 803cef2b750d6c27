"""Splits complex numbers into real and imaginary parts, for runtimes without complex numbers.

Values of a program become pairs. Arguments and results of the program stay complex. Operations
without a rule stay complex, between `complex`, `real` and `imag`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge.bytecode import (
    STOP_GRADIENT,
    Block,
    DenseElements,
    Operation,
    Program,
    TensorType,
    Value,
)
from jax2tf_bridge.rewriting._patterns import every_operation, replace_bodies, replace_values

FFT_OF_PARTS = "tensorflow.fft_of_parts"
"""Name of a Fourier transform whose operands and results are parts.

IRFFT has one result, RFFT one operand; the others have two of each.
"""

Parts: TypeAlias = "tuple[Value, Value | None]"
"""The real and the imaginary part; None if all imaginary parts are 0."""


def split_complex(program: Program) -> Program:
    """Splits the complex numbers of a program; returns the program itself if it has none.

    Args:
      program: the program.
    """
    blocks = [function.body for function in program.functions.values()]
    values = [
        value
        for block in blocks
        for operation in every_operation(block.operations)
        for value in (*operation.operands, *operation.results)
    ]
    if not any(map(_is_complex, values)):
        return program
    splitting = _Splitting()
    bodies = {
        name: splitting.split_main(function.body)
        if function is program.main
        else splitting.split_block(function.body)
        for name, function in program.functions.items()
    }
    return replace_bodies(program, bodies)


def _is_complex(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.element.startswith("complex")


def _part_type(kind: TensorType) -> TensorType:
    return TensorType(kind.shape, kind.element.removeprefix("complex<").removesuffix(">"))


class _Splitting:
    """Parts of the values of a program."""

    def __init__(self) -> None:
        self.parts: dict[Value, Parts] = {}
        self.values: dict[Value, Value] = {}
        """Real values in the place of others."""

    def split_main(self, block: Block) -> Block:
        """Splits the main function, which has complex arguments and results."""
        operations: list[Operation] = []
        writer = Writer(self, Operation("real", (), (), {}), operations)
        for value in filter(_is_complex, block.arguments):
            self.parts[value] = writer.take_apart(value)
        for operation in block.operations[:-1]:
            self._split(operation, operations)
        last = self._with_new_operands(block.operations[-1])
        returned = tuple(map(writer.join, last.operands))
        operations.append(dataclasses.replace(last, operands=returned))
        return dataclasses.replace(block, operations=tuple(operations))

    def split_block(self, block: Block, order: Sequence[int] | None = None) -> Block:
        """Splits a region, or a called function, with its arguments and results.

        Args:
          block: the block.
          order: the positions of the new arguments, if they are not those of the old ones.
        """
        arguments: list[Value] = []
        for value in block.arguments:
            if _is_complex(value):
                kind = _part_type(value.tensor)
                real, imag = Value(kind), Value(kind)
                self.parts[value] = real, imag
                arguments += [real, imag]
            else:
                arguments.append(value)
        if order is not None:
            arguments = [arguments[i] for i in order]
        operations: list[Operation] = []
        for operation in block.operations[:-1]:
            self._split(operation, operations)
        last = self._with_new_operands(block.operations[-1])
        returned = Writer(self, last, operations).expand(last.operands)
        operations.append(dataclasses.replace(last, operands=returned))
        return Block(tuple(arguments), tuple(operations))

    def _split(self, operation: Operation, operations: list[Operation]) -> None:
        """Adds the operations that compute the parts of an operation's results."""
        operation = self._with_new_operands(operation)
        writer = Writer(self, operation, operations)
        if any(map(_is_complex, (*operation.operands, *operation.results))):
            rule = _RULES.get(operation.name)
            if rule is None or (results := rule(writer, operation)) is None:
                writer.compute_in_complex(operation)
            else:
                writer.finish(operation, results)
        elif operation.regions:
            regions = tuple(map(self.split_block, operation.regions))
            operations.append(dataclasses.replace(operation, regions=regions))
        else:
            operations.append(operation)

    def _with_new_operands(self, operation: Operation) -> Operation:
        if self.values.keys().isdisjoint(operation.operands):
            return operation
        operands = replace_values(operation.operands, self.values)
        return dataclasses.replace(operation, operands=operands)


Result: TypeAlias = "Value | Parts"


class Writer:
    """Writer of the operations that replace one operation."""

    def __init__(
        self, splitting: _Splitting, operation: Operation, operations: list[Operation]
    ) -> None:
        self.splitting = splitting
        self._operation, self._operations = operation, operations

    def add(
        self, name: str, *operands: Value, kind: TensorType | None = None, **rest: Any
    ) -> Value:
        """Adds an operation; by default the result has the type of the first operand."""
        result = Value(kind or operands[0].tensor)
        self.append(name, operands, (result,), rest)
        return result

    def append(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[Value],
        attributes: Mapping[str, Any],
        regions: tuple[Block, ...] = (),
    ) -> None:
        """Adds an operation at the user's line."""
        self._operations.append(
            dataclasses.replace(
                self._operation,
                name=name,
                operands=tuple(operands),
                results=tuple(results),
                attributes=attributes,
                regions=regions,
            )
        )

    def parts(self, value: Value) -> Parts:
        """Returns the parts of a complex value; a real one is its own real part."""
        return self.splitting.parts[value] if _is_complex(value) else (value, None)

    def both(self, value: Value) -> tuple[Value, Value]:
        """Returns the parts of a complex value, with zeros if it is real."""
        real, imag = self.parts(value)
        return real, self.make_zeros(real) if imag is None else imag

    def make_zeros(self, value: Value) -> Value:
        """Returns zeros in the shape of a value, whose sizes may be open."""
        return self.make_constant(value, 0.0)

    def make_constant(self, value: Value, number: float) -> Value:
        """Returns an array of one number in the shape of a value, whose sizes may be open."""
        kind = value.tensor
        sizes = [size for size in kind.shape if size is not None]
        dtype = np.float64 if kind.element == "f64" else np.float32
        if len(sizes) == len(kind.shape):
            data = memoryview(np.full(1, number, dtype).tobytes())
            return self.add("constant", kind=kind, value=DenseElements(kind, data))
        flag = TensorType(kind.shape, "i1")
        is_equal = self.compare("EQ", value, value)
        never = self.add("xor", is_equal, is_equal, kind=flag)
        zeros = self.add("convert", never, kind=kind)
        if number == 0:
            return zeros
        # e**0 is the only other number that is needed.
        assert number == 1
        return self.add("exponential", zeros)

    def compare(self, direction: str, left: Value, right: Value) -> Value:
        """Compares real numbers."""
        kind = TensorType(left.tensor.shape, "i1")
        attributes = {"comparison_direction": direction, "compare_type": "FLOAT"}
        return self.add("compare", left, right, kind=kind, **attributes)

    def take_apart(self, value: Value) -> Parts:
        """Returns the parts of a complex value that an operation computes."""
        kind = _part_type(value.tensor)
        return self.add("real", value, kind=kind), self.add("imag", value, kind=kind)

    def join(self, value: Value) -> Value:
        """Returns a value that operations on complex numbers can take."""
        if not _is_complex(value):
            return value
        return self.add("complex", *self.both(value), kind=value.tensor)

    def expand(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Returns values with both parts in the place of complex ones."""
        return tuple(
            part
            for value in values
            for part in (self.both(value) if _is_complex(value) else [value])
        )

    def finish(self, operation: Operation, results: Sequence[Result]) -> None:
        """Notes the results of an operation."""
        for value, result in zip(operation.results, results, strict=True):
            if isinstance(result, tuple):
                self.splitting.parts[value] = result
            elif result is not value:
                self.splitting.values[value] = result

    def compute_in_complex(self, operation: Operation) -> None:
        """Keeps an operation, between complex operands and the parts of its results."""
        operands = tuple(map(self.join, operation.operands))
        self._operations.append(dataclasses.replace(operation, operands=operands))
        for value in filter(_is_complex, operation.results):
            self.splitting.parts[value] = self.take_apart(value)


Rule: TypeAlias = Callable[[Writer, Operation], "Sequence[Result] | None"]
"""Computes the results of an operation; None if it cannot."""


# Numbers.


def _combine(name: str) -> Rule:
    """Adds or subtracts each part."""

    def rule(writer: Writer, operation: Operation) -> Sequence[Result]:
        (a, b), (c, d) = map(writer.parts, operation.operands)
        real = writer.add(name, a, c)
        if d is None:
            return [(real, b)]
        if b is None:
            return [(real, d if name == "add" else writer.add("negate", d))]
        return [(real, writer.add(name, b, d))]

    return rule


def _multiply_parts(writer: Writer, left: Parts, right: Parts) -> Parts:
    (a, b), (c, d) = left, right
    if d is None:
        return writer.add("multiply", a, c), None if b is None else writer.add("multiply", b, c)
    if b is None:
        return writer.add("multiply", a, c), writer.add("multiply", a, d)
    real = writer.add("subtract", writer.add("multiply", a, c), writer.add("multiply", b, d))
    return real, writer.add("add", writer.add("multiply", a, d), writer.add("multiply", b, c))


def _multiply(writer: Writer, operation: Operation) -> Sequence[Result]:
    left, right = map(writer.parts, operation.operands)
    return [_multiply_parts(writer, left, right)]


def _divide(writer: Writer, operation: Operation) -> Sequence[Result]:
    """Divides, after the divisor is scaled so that its square neither overflows nor vanishes."""
    (a, b), (c, d) = map(writer.parts, operation.operands)
    if d is None:
        return [(writer.add("divide", a, c), None if b is None else writer.add("divide", b, c))]
    scale = writer.add("maximum", writer.add("abs", c), writer.add("abs", d))
    c, d = writer.add("divide", c, scale), writer.add("divide", d, scale)
    square = writer.add("add", writer.add("multiply", c, c), writer.add("multiply", d, d))
    real, imag = _multiply_parts(writer, (a, b), (c, writer.add("negate", d)))
    assert imag is not None
    divisor = writer.add("multiply", square, scale)
    return [(writer.add("divide", real, divisor), writer.add("divide", imag, divisor))]


def _negate(writer: Writer, operation: Operation) -> Sequence[Result]:
    real, imag = writer.parts(operation.operands[0])
    return [
        (writer.add("negate", real), None if imag is None else writer.add("negate", imag)),
    ]


def _find_length(writer: Writer, value: Value) -> Value:
    """Returns the absolute value, without overflow between."""
    real, imag = writer.parts(value)
    size = writer.add("abs", real)
    if imag is None:
        return size
    other = writer.add("abs", imag)
    longer, shorter = writer.add("maximum", size, other), writer.add("minimum", size, other)
    one = writer.make_constant(longer, 1.0)
    is_zero = writer.compare("EQ", longer, writer.make_zeros(longer))
    ratio = writer.add(
        "divide", shorter, writer.add("select", is_zero, one, longer, kind=one.tensor)
    )
    square = writer.add("add", writer.add("multiply", ratio, ratio), one)
    return writer.add("multiply", longer, writer.add("sqrt", square))


def _absolute(writer: Writer, operation: Operation) -> Sequence[Result]:
    return [_find_length(writer, operation.operands[0])]


def _exponential(writer: Writer, operation: Operation) -> Sequence[Result]:
    real, imag = writer.parts(operation.operands[0])
    size = writer.add("exponential", real)
    if imag is None:
        return [(size, None)]
    cosine, sine = writer.add("cosine", imag), writer.add("sine", imag)
    return [(writer.add("multiply", size, cosine), writer.add("multiply", size, sine))]


def _logarithm(writer: Writer, operation: Operation) -> Sequence[Result]:
    (value,) = operation.operands
    real, imag = writer.both(value)
    angle = writer.add("atan2", imag, real)
    return [(writer.add("log", _find_length(writer, value)), angle)]


def _compare(writer: Writer, operation: Operation) -> Sequence[Result] | None:
    direction = operation.text("comparison_direction")
    if direction not in ("EQ", "NE"):
        return None
    left, right = map(writer.both, operation.operands)
    parts = [writer.compare(direction, a, b) for a, b in zip(left, right, strict=True)]
    return [writer.add("and" if direction == "EQ" else "or", *parts)]


def _take(place: int) -> Rule:
    """Returns one part."""
    return lambda writer, operation: [writer.both(operation.operands[0])[place]]


def _make(writer: Writer, operation: Operation) -> Sequence[Result]:
    real, imag = operation.operands
    return [(real, imag)]


def _convert(writer: Writer, operation: Operation) -> Sequence[Result]:
    (value,), kind = operation.operands, operation.result_type
    real, imag = writer.parts(value)
    if not _is_complex(operation.results[0]):
        return [writer.add("convert", real, kind=kind)]
    kind = _part_type(kind)
    converted = writer.add("convert", real, kind=kind)
    return [(converted, None if imag is None else writer.add("convert", imag, kind=kind))]


def _constant(writer: Writer, operation: Operation) -> Sequence[Result]:
    elements = operation.attributes["value"]
    assert isinstance(elements, DenseElements)
    kind = _part_type(elements.type)
    is_wide = kind.element == "f64"
    numbers = np.frombuffer(elements.data, np.complex128 if is_wide else np.complex64)

    def make(part: np.ndarray[Any, Any]) -> Value:
        data = memoryview(np.ascontiguousarray(part).tobytes())
        return writer.add("constant", kind=kind, value=DenseElements(kind, data))

    return [(make(numbers.real), make(numbers.imag) if numbers.imag.any() else None)]


# Arrays.


def _by_part(writer: Writer, operation: Operation) -> Sequence[Result]:
    """Applies an operation to each part, as it moves numbers."""
    results: list[list[Value | None]] = []
    for place in range(2):
        parts = [writer.parts(v)[place] for v in operation.operands if _is_complex(v)]
        if place and all(part is None for part in parts):
            results.append([None] * len(operation.results))
            continue
        operands = [writer.both(v)[place] if _is_complex(v) else v for v in operation.operands]
        values = [Value(_part_type(value.tensor)) for value in operation.results]
        writer.append(operation.name, operands, values, operation.attributes, operation.regions)
        results.append([*values])
    return [(real, imag) for real, imag in zip(*results, strict=True) if real is not None]


def _composite(writer: Writer, operation: Operation) -> Sequence[Result] | None:
    is_linear = operation.attributes.get("name") in ("jax2tf.cumsum", STOP_GRADIENT)
    return _by_part(writer, operation) if is_linear else None


def _product(writer: Writer, operation: Operation) -> Sequence[Result]:
    """Multiplies matrices, or convolves."""
    kind = _part_type(operation.result_type)

    def multiply(left: Value, right: Value) -> Value:
        return writer.add(operation.name, left, right, kind=kind, **operation.attributes)

    (a, b), (c, d) = map(writer.parts, operation.operands)
    if d is None:
        return [(multiply(a, c), None if b is None else multiply(b, c))]
    if b is None:
        return [(multiply(a, c), multiply(a, d))]
    real = writer.add("subtract", multiply(a, c), multiply(b, d))
    return [(real, writer.add("add", multiply(a, d), multiply(b, c)))]


def _transform(writer: Writer, operation: Operation) -> Sequence[Result]:
    (value,), kind = operation.operands, operation.result_type
    attributes = operation.attributes
    if not _is_complex(operation.results[0]):
        result = Value(kind)
        writer.append(FFT_OF_PARTS, writer.both(value), (result,), attributes)
        return [result]
    parts = Value(_part_type(kind)), Value(_part_type(kind))
    operands = writer.both(value) if _is_complex(value) else (value,)
    writer.append(FFT_OF_PARTS, operands, parts, attributes)
    return [parts]


def _reduce(writer: Writer, operation: Operation) -> Sequence[Result] | None:
    """Adds or replaces each part; other reductions take both parts at once."""
    (region,) = operation.regions
    names = [each.name for each in region.operations]
    if len(operation.results) > 1 or names not in (["add", "return"], ["return"]):
        return _expand(writer, operation)
    results = []
    for place in range(2):
        operands = [writer.both(v)[place] if _is_complex(v) else v for v in operation.operands]
        result = Value(_part_type(operation.result_type))
        block = _make_real(region)
        writer.append(operation.name, operands, (result,), operation.attributes, (block,))
        results.append(result)
    return [(results[0], results[1])]


def _make_real(region: Block) -> Block:
    """Returns a block of real numbers that adds or returns arguments."""
    values = {
        value: Value(_part_type(value.tensor))
        for each in region.operations
        for value in (*region.arguments, *each.results)
    }
    operations = (
        dataclasses.replace(
            each,
            operands=replace_values(each.operands, values),
            results=replace_values(each.results, values),
        )
        for each in region.operations
    )
    return Block(replace_values(region.arguments, values), tuple(operations))


def _expand(writer: Writer, operation: Operation) -> Sequence[Result]:
    """Gives both parts to an operation with regions, such as a loop or a branch."""
    operands = writer.expand(operation.operands)
    order = None
    if operation.name == "sort":
        # Two arguments for each operand.
        order, place = [], 0
        for value in operation.operands:
            order += (
                [place, place + 2, place + 1, place + 3]
                if _is_complex(value)
                else [place, place + 1]
            )
            place += 4 if _is_complex(value) else 2
    regions = tuple(writer.splitting.split_block(r, order) for r in operation.regions)
    results: list[Result] = []
    values: list[Value] = []
    for value in operation.results:
        if _is_complex(value):
            kind = _part_type(value.tensor)
            parts = Value(kind), Value(kind)
            results.append(parts)
            values += parts
        else:
            results.append(value)
            values.append(value)
    writer.append(operation.name, operands, values, operation.attributes, regions)
    return results


_MOVES = (
    *("broadcast", "broadcast_in_dim", "concatenate", "dynamic_broadcast_in_dim", "dynamic_gather"),
    *("dynamic_pad", "dynamic_reshape", "dynamic_slice", "dynamic_update_slice", "gather"),
    *("optimization_barrier", "pad", "real_dynamic_slice", "reshape", "reverse", "select"),
    *("slice", "transpose"),
)
_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(_MOVES, _by_part),
        **dict.fromkeys(("case", "if", "while", "call", "sort", "map"), _expand),
        **dict.fromkeys(("reduce", "reduce_window", "scatter"), _reduce),
        **dict.fromkeys(("convolution", "dot", "dot_general", "dynamic_conv"), _product),
        "abs": _absolute,
        "add": _combine("add"),
        "compare": _compare,
        "composite": _composite,
        "complex": _make,
        "constant": _constant,
        "convert": _convert,
        "divide": _divide,
        "exponential": _exponential,
        "fft": _transform,
        "imag": _take(1),
        "log": _logarithm,
        "multiply": _multiply,
        "negate": _negate,
        "real": _take(0),
        "subtract": _combine("subtract"),
    }
)
"""Rules by the names of operations."""
