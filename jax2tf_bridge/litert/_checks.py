"""Checks LiteRT models: compares them with TensorFlow, and counts operations on integers."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text, join_names
from jax2tf_bridge.comparing import (
    ROUNDING_SEEDS,
    describe_differences,
    drop_explained,
    make_difference_error,
    tolerance_of,
)
from jax2tf_bridge.emitters import find_source_line
from jax2tf_bridge.errors import (
    Argument,
    BridgeError,
    Message,
    SavingError,
    UnsupportedByTargetError,
    format_bullets,
)
from jax2tf_bridge.inspecting import LiteRTGraph, LiteRTTensor, read_litert_graphs
from jax2tf_bridge.inspecting import read_litert_signature as read_signature
from jax2tf_bridge.litert._convert import DEPRECATED, ConvertedModel, LiteRTSignature
from jax2tf_bridge.signatures import ServedArray, Signature, make_example

Arrays = Mapping[str, np.ndarray]

SaveRounded: TypeAlias = Callable[[Path, int], None]
"""Saves a SavedModel whose operations round their results, to a folder and with a seed."""

RunRounded: TypeAlias = "Callable[[str, Answers], Iterable[Sequence[np.ndarray]]]"
"""Yields the outputs of a signature for the inputs of its answers if operations round."""

_READER = "get_weights"
_ROUNDING = 2.0**-20
"""Relative size of the disturbances that stand for rounding; float32 has 24 bits."""
_DISTURBANCES = 2
"""Number of disturbed runs."""
_FLOATS = frozenset({"bfloat16", "complex64", "complex128", "float16", "float32", "float64"})
_CONVERSIONS = ("QUANTIZE ", "DEQUANTIZE ")
"""Starts of the texts of operations that convert between floats and integers."""
_MAX_SHOWN = 8
_MAX_STEPS = 16
"""Tolerance of a result in steps of int8, which has 256: a sixteenth of its range."""


@dataclass(frozen=True)
class Answers:
    """Inputs of a signature, and TensorFlow's outputs for them.

    Attributes:
      inputs: the inputs by name.
      outputs: the outputs by name.
      tolerances: the absolute tolerances of weights that steps changed, by output; None for other
        outputs.
    """

    inputs: Arrays
    outputs: Arrays
    tolerances: Mapping[str, float] | None = None


def ask_tensorflow(
    folder: Path,
    signatures: Mapping[str, tuple[Signature, Mapping[str, ServedArray]]],
    steps: Collection[str],
) -> dict[str, Answers]:
    """Calls the signatures of a SavedModel; skips those that reject the inputs.

    Args:
      folder: the SavedModel.
      signatures: the user's signatures, and the inputs of the saved ones, for `make_example`.
      steps: the signatures that change weights.
    """
    loaded = tf.saved_model.load(str(folder))
    initial = [variable.numpy() for variable in loaded.variables] if steps else []
    answers = {}
    for name, (signature, served) in signatures.items():
        inputs = make_example(name, signature, served)
        tensors = {key: tf.constant(array) for key, array in inputs.items()}
        try:
            outputs = loaded.signatures[name](**tensors)
        except (tf.errors.OpError, ValueError):
            continue  # random numbers may be invalid inputs
        answers[name] = Answers(inputs, {k: v.numpy() for k, v in outputs.items()})
    taken = {name: answers[name].inputs for name in signatures if name in steps and name in answers}
    if taken and _READER in answers:
        tolerances = _find_tolerances(loaded, initial, taken, answers[_READER].inputs)
        answers[_READER] = replace(answers[_READER], tolerances=tolerances)
    return answers


def _find_tolerances(
    loaded: Any, initial: Sequence[np.ndarray], steps: Mapping[str, Arrays], inputs: Arrays
) -> dict[str, float]:
    """Returns the absolute tolerance of each weight after steps, by the name of the output.

    It is relative to the change of the weight, since that may be small. Where rounding before the
    steps changes this change, more is allowed: an optimizer may divide rounding noise by itself,
    and then any sign is right.

    Args:
      loaded: the loaded SavedModel.
      initial: the values of its variables before the steps.
      steps: the inputs of the steps by signature, in their order.
      inputs: the inputs of the signature that reads the weights.
    """
    rng = np.random.default_rng(0)

    def disturb(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        return (array * (1 + _ROUNDING * rng.choice([-1, 1], array.shape))).astype(array.dtype)

    def read() -> dict[str, np.ndarray]:
        tensors = loaded.signatures[_READER](**{k: tf.constant(v) for k, v in inputs.items()})
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    def find_changes(prepare: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
        for variable, value in zip(loaded.variables, initial, strict=True):
            variable.assign(prepare(value))
        before = read()
        for name, arrays in steps.items():
            loaded.signatures[name](**{k: tf.constant(prepare(v)) for k, v in arrays.items()})
        return {
            name: array - before[name] for name, array in read().items() if array.dtype.kind == "f"
        }

    def find_largest(array: np.ndarray) -> float:
        return float(np.max(np.abs(array[np.isfinite(array)]), initial=0))

    exact = find_changes(lambda array: array)
    others = [find_changes(disturb) for _ in range(_DISTURBANCES)]
    return {
        name: 10 * tolerance_of(change.dtype.name) * find_largest(change)
        + 10 * max(find_largest(other[name] - change) for other in others)
        + 10 * float(np.finfo(change.dtype).eps) * find_largest(weight)
        for (name, change), weight in zip(
            exact.items(), (v for v in read().values() if v.dtype.kind == "f"), strict=True
        )
    }


def check_answers(
    model: bytes,
    answers: Mapping[str, Answers],
    steps: Collection[str],
    run_rounded: RunRounded,
    *,
    is_quantized: bool,
) -> None:
    """Raises unless LiteRT's results equal TensorFlow's.

    Args:
      model: the bytes of the file.
      answers: TensorFlow's answers by signature.
      steps: the signatures that change weights. After the first of them, outputs are only checked
        for NaN and infinity, and the weights are compared.
      run_rounded: runs a signature again, to measure rounding errors where a result differs.
      is_quantized: whether to check only for NaN and infinity.

    Raises:
      SavingError: LiteRT fails, or an output differs.
    """
    interpreter = _load(model)
    has_changed = False
    for name, expected in answers.items():
        is_compared = not is_quantized and (not has_changed or expected.tolerances is not None)
        problems, actual = _run(interpreter, name, expected, only_finite=not is_compared)
        if actual and is_compared and not has_changed:
            rounded = run_rounded(name, expected)
            problems = drop_explained(problems, expected.outputs, actual, rounded)
        has_changed = has_changed or name in steps
        if problems:
            raise make_difference_error("LiteRT", "TensorFlow", name, problems)


def run_rounded(
    save_rounded: SaveRounded, name: str, answers: Answers
) -> Iterator[list[np.ndarray]]:
    """Yields the outputs of a signature in TensorFlow if operations round.

    Yields nothing if TensorFlow's operations cannot round.
    """
    inputs = {key: tf.constant(array) for key, array in answers.inputs.items()}
    for seed in ROUNDING_SEEDS:
        with tempfile.TemporaryDirectory(prefix="jax2tf_bridge-") as temporary:
            folder = Path(temporary, "model")
            try:
                save_rounded(folder, seed)
            except BridgeError:
                return
            outputs = tf.saved_model.load(str(folder)).signatures[name](**inputs)
        yield [outputs[key].numpy() for key in answers.outputs]


def _load(model: bytes) -> tf.lite.Interpreter:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", DEPRECATED)
        return tf.lite.Interpreter(model_content=model)


def _call(
    interpreter: tf.lite.Interpreter, name: str, inputs: Arrays
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Runs a signature; returns its outputs, or what is wrong if LiteRT fails."""
    try:
        return interpreter.get_signature_runner(name)(**inputs), []
    except (RuntimeError, ValueError) as e:
        return {}, [f"LiteRT fails: {str(e).strip().splitlines()[-1][:300]}"]


def _run(
    interpreter: tf.lite.Interpreter, name: str, expected: Answers, *, only_finite: bool
) -> tuple[list[str], Arrays]:
    """Runs a signature; returns what is wrong with its results, and these if LiteRT runs it."""
    empty = {
        key: _type_text(array.dtype, array.shape)
        for key, array in {**expected.inputs, **expected.outputs}.items()
        if array.size == 0
    }
    if empty:  # LiteRT would write beyond its memory, and the process might die
        return [_describe_empty(empty)], {}
    actual, problems = _call(interpreter, name, expected.inputs)
    if problems:
        empty = {
            tensor["name"]: _type_text(tensor["dtype"], tensor["shape"])
            for tensor in interpreter.get_tensor_details()
            if 0 in tensor["shape"]
        }
        return [*problems, *([_describe_empty(empty)] if empty else [])], {}
    problems = [
        *describe_differences(
            expected.outputs,
            actual,
            max_differences=expected.tolerances,
            only_finite=only_finite,
        )
    ]
    return problems, actual


def _type_text(dtype: Any, shape: Sequence[int]) -> str:
    return array_type_text(np.dtype(dtype).name, shape)


def _describe_empty(types: Mapping[str, str]) -> str:
    names = join_names([f"{name}, {kind}" for name, kind in types.items()])
    return f"LiteRT has no arrays without elements: {names}"


# Models that compute with integers.


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
        lines = format_bullets(floats, _MAX_SHOWN)
        raise UnsupportedByTargetError(
            Message(
                "The model would not consist of integers only. LiteRT's converter leaves in "
                f"floats:{lines}\nWrite this part of the function with other "
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
      tensor: its tensor of integers; a tensor without a scale if it is not quantised.
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
        # Others convert integers to those of another scale.
        if operator.name == "QUANTIZE" and graph.tensors[operator.inputs[0]].dtype in _FLOATS:
            conversions.setdefault(operator.inputs[0], operator.outputs[0])
    ports = {**signature.inputs, **signature.outputs}
    return {
        key: QuantizedPort(graph.tensors[conversions.get(number, number)], tensor.dtype)
        for key, number in ports.items()
        for tensor in (graph.tensors[number],)
    }


def describe_integer_ports(model: ConvertedModel, data: bytes) -> ConvertedModel:
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


def check_ranges(model: bytes, answers: Mapping[str, Answers]) -> None:
    """Raises unless a quantised model's results are near TensorFlow's.

    The mean difference of an output may be a sixteenth of the range of its integers. Outputs
    without a range must be finite where TensorFlow's are.

    Args:
      model: the bytes of the file.
      answers: TensorFlow's answers for representative inputs, by signature.

    Raises:
      SavingError: LiteRT fails, or an output differs.
    """
    if not answers:
        return
    interpreter = _load(model)
    for name, expected in answers.items():
        ports = read_ports(model, name)
        inputs = {
            key: value
            if ports[key].dtype == value.dtype.name
            else ports[key].tensor.quantize(value)
            for key, value in expected.inputs.items()
        }
        actual, problems = _call(interpreter, name, inputs)
        if not problems:
            numbers = {key: ports[key].tensor.dequantize(actual[key]) for key in expected.outputs}
            problems = [*describe_differences(expected.outputs, numbers, only_finite=True)]
            problems = problems or [*_list_far_outputs(expected.outputs, numbers, ports)]
        if problems:
            raise SavingError(
                Message(
                    f"The signature {name} computes other results in integers than in float32, for "
                    f"the first of its representative inputs:{format_bullets(problems)}\nNo file "
                    "was written. Give more ",
                    Argument("representative_data"),
                    " or ",
                    Argument("quantize", "int16x8"),
                    "; or, to write the file anyway, ",
                    Argument("verify", code="verify=False"),
                    ".",
                )
            )


def _list_far_outputs(
    expected: Arrays, actual: Arrays, ports: Mapping[str, QuantizedPort]
) -> Iterator[str]:
    """Describes the outputs that differ by too many steps of their integers."""
    for name, array in expected.items():
        tensor = ports[name].tensor
        is_known = np.isfinite(array)
        if array.dtype.kind != "f" or tensor.scale is None or not np.any(is_known):
            continue
        step = tensor.scale * (256 if tensor.dtype == "int16" else 1)
        steps = float(np.mean(np.abs(array[is_known] - actual[name][is_known]))) / step
        if steps > _MAX_STEPS:
            yield (
                f"{name} differs by {steps / 256:.0%} of its range, {256 * step:.3g}, on average; "
                f"{_MAX_STEPS / 256:.0%} is allowed"
            )
