"""Widens bfloat16 to float32 in a whole module, because onnxruntime and OpenVINO lack bfloat16.

Intermediate values are not rounded, so results are those of float32; JAX's are less exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jax2tf_bridge.bytecode import Block, DenseElements, Operation, Program, TensorType, Value

BFLOAT16_BITS = "tensorflow.bfloat16_bits"
"""Operation that converts bits to bfloat16, or bfloat16 to bits."""


def widen_bfloat16(program: Program) -> Program:
    """Returns the module with float32 instead of bfloat16."""
    values: dict[Value, Value] = {}
    functions = {
        name: dataclasses.replace(function, body=_block(function.body, values))
        for name, function in program.functions.items()
    }
    # Most modules have no bfloat16, and are returned unchanged.
    return dataclasses.replace(program, functions=functions) if values else program


def _is_narrow(kind: Any) -> bool:
    return isinstance(kind, TensorType) and kind.element == "bf16"


def _value(value: Value, values: dict[Value, Value]) -> Value:
    if not _is_narrow(value.type):
        return value
    if value not in values:
        values[value] = Value(TensorType(value.tensor.shape, "f32"))
    return values[value]


def _block(block: Block, values: dict[Value, Value]) -> Block:
    arguments = tuple(_value(value, values) for value in block.arguments)
    return Block(arguments, tuple(_operation(each, values) for each in block.operations))


def _operation(operation: Operation, values: dict[Value, Value]) -> Operation:
    name = operation.name
    if name == "bitcast_convert":
        both = (*operation.operands, *operation.results)
        name = BFLOAT16_BITS if any(_is_narrow(value.type) for value in both) else name
    return dataclasses.replace(
        operation,
        name=name,
        operands=tuple(_value(value, values) for value in operation.operands),
        results=tuple(_value(value, values) for value in operation.results),
        attributes={key: _attribute(value) for key, value in operation.attributes.items()},
        regions=tuple(_block(region, values) for region in operation.regions),
    )


def _attribute(attribute: Any) -> Any:
    if isinstance(attribute, DenseElements) and _is_narrow(attribute.type):
        # The data may have a single number for all elements.
        count = attribute.data.nbytes // 2
        bits = np.frombuffer(attribute.data, np.uint16, count).astype(np.uint32) << np.uint32(16)
        return DenseElements(TensorType(attribute.type.shape, "f32"), memoryview(bits.tobytes()))
    if _is_narrow(attribute):
        return TensorType(attribute.shape, "f32")
    if isinstance(attribute, Mapping):
        return {key: _attribute(value) for key, value in attribute.items()}
    return attribute
