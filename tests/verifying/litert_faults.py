"""Exchanges operators and constants in a LiteRT model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

# Private: the line that the bridge names each operation after.
from jax2tf_bridge.emitters import find_source_line
from tests.verifying.faults import Fault

EXCHANGES = {
    "ADD": ("SUB", "MUL"),
    "SUB": ("ADD",),
    "MUL": ("ADD", "DIV"),
    "DIV": ("MUL",),
    "MAXIMUM": ("MINIMUM",),
    "MINIMUM": ("MAXIMUM",),
    "LESS": ("GREATER",),
    "GREATER": ("LESS",),
    "EXP": ("TANH", "ABS"),
    "LOG": ("EXP",),
    "TANH": ("LOGISTIC", "SIN"),
    "SIN": ("COS",),
    "SQRT": ("RSQRT",),
    "RSQRT": ("SQRT",),
    "NEG": ("ABS",),
    "RELU": ("ELU",),
    "SOFTMAX": ("LOG_SOFTMAX",),
    "LOG_SOFTMAX": ("SOFTMAX",),
    "SUM": ("REDUCE_MAX", "MEAN"),
    "MEAN": ("SUM",),
    "REDUCE_MAX": ("REDUCE_MIN",),
    "MAX_POOL_2D": ("AVERAGE_POOL_2D",),
}
"""Operators with the same inputs, which compute something else."""

OPTIONS = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div"}
"""Operators whose options have the activation function that is merged with them."""

CODES = {number: name for name, number in vars(schema.BuiltinOperator).items()}


def list_faults(file: Path, seed: int) -> list[Fault]:
    """Lists the possible faults of a model whose tensors have lines, in a random order."""
    faults = list(_iter_faults(flatbuffer_utils.read_model(str(file))))
    random.Random(seed).shuffle(faults)
    return faults


def inject(file: Path, fault: Fault) -> None:
    """Changes the model. The node of the fault is the number of the operator or buffer."""
    model = flatbuffer_utils.read_model(str(file))
    number = int(fault.node)
    if fault.kind == "constant * 1.5":
        buffer = model.buffers[number]
        array = np.frombuffer(np.asarray(buffer.data, np.uint8).tobytes(), np.float32) * 1.5
        buffer.data = np.frombuffer(array.astype(np.float32).tobytes(), np.uint8)
    else:
        _, _, name = fault.kind.partition(" -> ")
        _exchange(model, model.subgraphs[0].operators[number], name)
    flatbuffer_utils.write_model(model, str(file))


def _exchange(model: Any, operator: Any, name: str) -> None:
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, name)
    code.version = 2
    operator.opcodeIndex = len(model.operatorCodes)
    model.operatorCodes.append(code)
    if name in OPTIONS:
        options = getattr(schema, f"{OPTIONS[name]}OptionsT")()
        options.fusedActivationFunction = operator.builtinOptions.fusedActivationFunction
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, f"{OPTIONS[name]}Options")
        operator.builtinOptions = options


def _iter_faults(model: Any) -> Iterator[Fault]:
    graph = model.subgraphs[0]
    for number, operator in enumerate(graph.operators):
        code = model.operatorCodes[operator.opcodeIndex]
        kind = CODES[max(code.builtinCode, code.deprecatedBuiltinCode)]
        line = _find_line(graph, operator)
        if line is None:
            continue
        for other in EXCHANGES.get(kind, ()):
            yield Fault("", str(number), f"{kind} -> {other}", line, in_loop=False)
        for index in operator.inputs:
            tensor = graph.tensors[index]
            data = model.buffers[tensor.buffer].data
            if data is not None and tensor.type == schema.TensorType.FLOAT32 and len(data):
                yield Fault("", str(tensor.buffer), "constant * 1.5", line, in_loop=False)


def _find_line(graph: Any, operator: Any) -> str | None:
    """Returns the lines of an operator, of which LiteRT may have merged several."""
    names = graph.tensors[operator.outputs[0]].name.decode().split(";")
    lines = [line for line in map(find_source_line, names) if line is not None]
    return " ".join(dict.fromkeys(lines)) or None
