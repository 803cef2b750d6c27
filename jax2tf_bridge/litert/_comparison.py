"""Runs a LiteRT model once, and compares it with TensorFlow."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text, some
from jax2tf_bridge.comparing import describe_differences, make_difference_error, tolerance_of
from jax2tf_bridge.litert._convert import DEPRECATED
from jax2tf_bridge.signatures import ServedArray, Signature, make_example

Arrays = Mapping[str, np.ndarray]

_READER = "get_weights"
_ROUNDING = 2.0**-20
"""Relative size of the disturbances that stand for rounding; float32 has 24 bits."""
_DISTURBANCES = 2


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


def answers_of_tensorflow(
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


def check_model(
    model: bytes, answers: Mapping[str, Answers], steps: Collection[str], *, is_quantized: bool
) -> None:
    """Raises unless LiteRT's results equal TensorFlow's.

    Args:
      model: the bytes of the file.
      answers: TensorFlow's answers by signature.
      steps: the signatures that change weights. After the first of them, outputs are only checked
        for NaN and infinity, and the weights are compared.
      is_quantized: whether to check only for NaN and infinity.

    Raises:
      SavingError: LiteRT fails, or an output differs.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", DEPRECATED)
        interpreter = tf.lite.Interpreter(model_content=model)
    has_changed = False
    for name, expected in answers.items():
        is_compared = not is_quantized and (not has_changed or expected.tolerances is not None)
        problems = _run(interpreter, name, expected, only_finite=not is_compared)
        has_changed = has_changed or name in steps
        if problems:
            raise make_difference_error("LiteRT", "TensorFlow", name, problems)


def _run(
    interpreter: tf.lite.Interpreter, name: str, expected: Answers, *, only_finite: bool
) -> list[str]:
    """Runs a signature, and returns what is wrong with its results."""
    arrays = {**expected.inputs, **expected.outputs}
    empty = {
        key: _type_text(array.dtype, array.shape)
        for key, array in arrays.items()
        if array.size == 0
    }
    if empty:  # LiteRT would write beyond its memory, and the process might die
        return [_describe_empty(empty)]
    try:
        actual = interpreter.get_signature_runner(name)(**expected.inputs)
    except (RuntimeError, ValueError) as e:
        empty = {
            tensor["name"]: _type_text(tensor["dtype"], tensor["shape"])
            for tensor in interpreter.get_tensor_details()
            if 0 in tensor["shape"]
        }
        reason = f"LiteRT fails: {str(e).strip().splitlines()[-1][:300]}"
        return [reason, *([_describe_empty(empty)] if empty else [])]
    return [
        *describe_differences(
            expected.outputs,
            actual,
            max_differences=expected.tolerances,
            only_finite=only_finite,
        )
    ]


def _type_text(dtype: Any, shape: Sequence[int]) -> str:
    return array_type_text(np.dtype(dtype).name, shape)


def _describe_empty(types: Mapping[str, str]) -> str:
    names = some([f"{name}, {kind}" for name, kind in types.items()])
    return f"LiteRT has no arrays without elements: {names}"
