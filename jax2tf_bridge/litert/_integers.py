"""Checks and counts what a quantised LiteRT model computes with integers."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.emitters import find_source_line
from jax2tf_bridge.errors import (
    Argument,
    Message,
    SavingError,
    UnsupportedByTargetError,
    format_bullets,
)
from jax2tf_bridge.inspecting import LiteRTGraph, LiteRTTensor, read_litert_graphs
from jax2tf_bridge.inspecting import read_litert_signature as read_signature
from jax2tf_bridge.litert._comparison import Answers
from jax2tf_bridge.litert._convert import DEPRECATED, ConvertedModel, LiteRTSignature

_FLOATS = frozenset({"bfloat16", "complex64", "complex128", "float16", "float32", "float64"})
_CONVERSIONS = ("QUANTIZE ", "DEQUANTIZE ")
"""Starts of the texts of operations that convert between floats and integers."""
_MAX_SHOWN = 8
_MAX_STEPS = 16
"""Tolerance of a result in steps of int8, which has 256: a sixteenth of its range."""


@dataclass(frozen=True)
class OperationCounts:
    """Number of operations of a model.

    Attributes:
      total: all operations, with those that convert between floats and integers.
      integers: those without an operand or a result of floats.
      floats: a text for each of the others, as "SOFTMAX of float32 at net.py:12".
    """

    total: int
    integers: int
    floats: tuple[str, ...]

    @staticmethod
    def of(model: bytes) -> OperationCounts:
        """Counts the operations of all functions of a LiteRT model."""
        graphs = read_litert_graphs(model)
        floats = tuple(text for graph in graphs for text in _list_floats(graph))
        total = sum(len(graph.operators) for graph in graphs)
        return OperationCounts(total, total - len(floats), floats)

    def __str__(self) -> str:
        return f"{self.integers} of {self.total} operations in integers"

    def check(self) -> None:
        """Raises for operations on floats.

        Raises:
          UnsupportedByTargetError: there is one.
        """
        if not self.floats:
            return
        floats = [text for text in self.floats if not text.startswith(_CONVERSIONS)]
        floats = floats or [*self.floats]
        lines = floats[:_MAX_SHOWN]
        if len(floats) > _MAX_SHOWN:
            lines.append(f"and {len(floats) - _MAX_SHOWN} more")
        raise UnsupportedByTargetError(
            Message(
                "The model would not consist of integers only. LiteRT's converter leaves in "
                f"floats:{format_bullets(lines)}\nWrite this part of the function with other "
                "operations, leave it to the caller, or leave out ",
                Argument("integers_only"),
                ".",
            ),
            operation=floats[0].partition(" ")[0],
            source=floats[0].partition(" at ")[2] or None,
        )


def _list_floats(graph: LiteRTGraph) -> list[str]:
    texts = []
    for operator in graph.operators:
        numbers = [number for number in (*operator.inputs, *operator.outputs) if number != -1]
        dtype = next((d for d in (graph.tensors[n].dtype for n in numbers) if d in _FLOATS), None)
        if dtype is None:
            continue
        lines = (find_source_line(graph.tensors[number].name) for number in operator.outputs)
        line = next(filter(None, lines), None)
        texts.append(f"{operator.name} of {dtype}" + (f" at {line}" if line else ""))
    return texts


@dataclass(frozen=True)
class QuantizedPort:
    """Input or output of a signature.

    Attributes:
      tensor: the integers behind it; a tensor without a scale where there are none.
      dtype: the dtype of the input or output.
    """

    tensor: LiteRTTensor
    dtype: str


def read_ports(model: bytes, name: str) -> dict[str, QuantizedPort]:
    """Returns the inputs and outputs of a signature, by name.

    Args:
      model: the bytes of the file.
      name: the signature.
    """
    signature = read_signature(model, name, "the model")
    graph = signature.graph
    conversions = {}
    for operator in graph.operators:
        if operator.name == "DEQUANTIZE":
            conversions[operator.outputs[0]] = operator.inputs[0]
        if operator.name == "QUANTIZE":
            conversions.setdefault(operator.inputs[0], operator.outputs[0])
    ports = {**signature.inputs, **signature.outputs}
    return {
        key: QuantizedPort(graph.tensors[conversions.get(number, number)], tensor.dtype)
        for key, number in ports.items()
        for tensor in (graph.tensors[number],)
    }


def with_integer_ports(model: ConvertedModel, data: bytes) -> ConvertedModel:
    """Describes the inputs and outputs of a model of integers as they are in its file."""
    signatures = {}
    for name, signature in model.signatures.items():
        ports = read_ports(data, name)
        inputs, outputs = (
            {key: replace(served, dtype=ports[key].dtype) for key, served in side.items()}
            for side in (signature.inputs, signature.outputs)
        )
        scales = {
            key: (port.tensor.scale, port.tensor.zero_point)
            for key, port in ports.items()
            if port.tensor.scale is not None
        }
        signatures[name] = LiteRTSignature(inputs, outputs, scales)
    return replace(model, signatures=signatures)


def check_ranges(model: bytes, answers: Mapping[str, Answers], names: Collection[str]) -> None:
    """Raises unless a quantised model's results are near TensorFlow's.

    The mean difference of an output may be a sixteenth of the range of its integers. Outputs
    without a range must be finite where TensorFlow's are.

    Args:
      model: the bytes of the file.
      answers: TensorFlow's answers by signature, for representative inputs.
      names: the signatures to check.

    Raises:
      SavingError: LiteRT fails, or an output differs.
    """
    if not names:
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", DEPRECATED)
        interpreter = tf.lite.Interpreter(model_content=model)
    for name in names:
        ports = read_ports(model, name)
        expected = answers[name]
        inputs = {key: quantize(value, ports[key]) for key, value in expected.inputs.items()}
        try:
            actual = interpreter.get_signature_runner(name)(**inputs)
        except (RuntimeError, ValueError) as e:
            problems = [f"LiteRT fails: {str(e).strip().splitlines()[-1][:300]}"]
        else:
            differences = [
                _describe_difference(key, want, dequantize(actual[key], ports[key]), ports[key])
                for key, want in expected.outputs.items()
            ]
            problems = [problem for problem in differences if problem]
        if problems:
            raise SavingError(
                Message(
                    f"In integers the signature {name} does not compute what it does in float32, "
                    f"for the first of its representative inputs:{format_bullets(problems)}\nNo "
                    "file was written. Give more ",
                    Argument("representative_data"),
                    " or ",
                    Argument("quantize", "int16x8"),
                    "; or, to write the file anyway, ",
                    Argument("verify", code="verify=False"),
                    ".",
                )
            )


def quantize(array: np.ndarray, port: QuantizedPort) -> np.ndarray:
    """Returns the integers for an input of a model, if it takes integers."""
    tensor = port.tensor
    if port.dtype == str(array.dtype) or tensor.scale is None:
        return array
    limits = np.iinfo(port.dtype)
    integers = np.rint(array / np.float32(tensor.scale)) + tensor.zero_point
    clipped: np.ndarray = np.clip(integers, limits.min, limits.max).astype(port.dtype)
    return clipped


def dequantize(array: np.ndarray, port: QuantizedPort) -> np.ndarray:
    """Returns the numbers that an output of a model stands for, if it is of integers."""
    tensor = port.tensor
    if tensor.scale is None or array.dtype.kind == "f":
        return array
    numbers: np.ndarray = (array.astype(np.int32) - tensor.zero_point) * np.float32(tensor.scale)
    return numbers


def _describe_difference(
    name: str, want: np.ndarray, got: np.ndarray, port: QuantizedPort
) -> str | None:
    if got.shape != want.shape:
        return f"{name} has the shape {got.shape} and not {want.shape}"
    if want.dtype.kind != "f":
        return None
    is_known = np.isfinite(want)
    lost = is_known & ~np.isfinite(got)
    if np.any(lost):
        return f"{name} is NaN or infinite in {np.sum(lost)} of {want.size} places"
    scale: Any = port.tensor.scale
    if scale is None or not np.any(is_known):
        return None
    step = scale * (256 if port.tensor.dtype == "int16" else 1)
    steps = float(np.mean(np.abs(want[is_known] - got[is_known]))) / step
    if steps <= _MAX_STEPS:
        return None
    return (
        f"{name} differs by {steps / 256:.0%} of its range, {256 * step:.3g}, on average; "
        f"{_MAX_STEPS / 256:.0%} is allowed"
    )
