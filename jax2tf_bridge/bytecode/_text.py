"""The text of a program, for people: close to MLIR's generic form, and not read back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from jax2tf_bridge.bytecode._program import (
    Attribute,
    Block,
    DenseElements,
    Function,
    Operation,
    Program,
    Value,
)
from jax2tf_bridge.errors import FileFormatError

_MAX_ELEMENTS = 8
"""Maximum number of elements of a constant that are written."""


def format_program(program: Program) -> str:
    """Formats a program with a line for each operation.

    Values are numbered through each function. Constants of more than 8 different elements are
    written as dots, and the user's line follows an operation as a comment.
    """
    lines = ["module {"]
    for function in program.functions.values():
        lines += _FunctionText().lines(function)
    return "\n".join([*lines, "}"]) + "\n"


class _FunctionText:
    """Numbers of the values of a function."""

    def __init__(self) -> None:
        self._numbers: dict[Value, int] = {}

    def lines(self, function: Function) -> Iterator[str]:
        body = function.body
        results = _join(str(value.type) for value in body.returned)
        yield f"  func @{function.name}({self._arguments(body)}) -> ({results}) {{"
        yield from self._operations(body, "    ")
        yield "  }"

    def _name(self, value: Value) -> str:
        return f"%{self._numbers.setdefault(value, len(self._numbers))}"

    def _arguments(self, block: Block) -> str:
        return _join(f"{self._name(value)}: {value.type}" for value in block.arguments)

    def _operations(self, block: Block, indent: str) -> Iterator[str]:
        for operation in block.operations:
            yield from self._operation(operation, indent)

    def _operation(self, operation: Operation, indent: str) -> Iterator[str]:
        operands = _join(map(self._name, operation.operands))
        attributes = _format_attributes(operation.attributes)
        start = f"{operation.name} {operands}".rstrip() + attributes
        results = operation.results
        types = f" : {_join(str(value.type) for value in results)}" if results else ""
        comment = f"  // {operation.source}" if operation.source else ""
        if results:
            start = f"{_join(map(self._name, results))} = {start}"
        if not operation.regions:
            yield f"{indent}{start}{types}{comment}"
            return
        for number, region in enumerate(operation.regions):
            yield f"{indent}{start} {{{comment}" if number == 0 else f"{indent}}}, {{"
            if region.arguments:
                yield f"{indent}^({self._arguments(region)}):"
            yield from self._operations(region, indent + "  ")
        yield f"{indent}}}{types}"


def _join(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _format_attributes(attributes: Mapping[str, Attribute]) -> str:
    if not attributes:
        return ""
    return f" {{{_join(f'{name} = {_format(value)}' for name, value in attributes.items())}}}"


def _format(attribute: Attribute) -> str:
    match attribute:
        case DenseElements() if len(attribute.type.shape) == 1:
            return _format_elements(attribute)
        case DenseElements():
            return f"dense<{_format_elements(attribute)}>"
        case tuple():
            return f"[{_join(map(_format, attribute))}]"
        case Mapping():
            return f"{{{_join(f'{k} = {_format(v)}' for k, v in attribute.items())}}}"
        case bool():
            return str(attribute).lower()
        case str():
            return json.dumps(attribute)
        case _:
            return str(attribute)


def _format_elements(elements: DenseElements) -> str:
    try:
        array = elements.array()
    except FileFormatError:
        return "..."
    if array.ndim != 1 and array.size and not any(array.strides):
        return str(array.reshape(-1)[0])  # one number for all elements
    return str(array.tolist()) if array.size <= _MAX_ELEMENTS else "[...]"
