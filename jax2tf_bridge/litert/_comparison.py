"""Runs a LiteRT model once, and compares it with TensorFlow."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text, some
from jax2tf_bridge.comparing import measure_distance, tolerance_of
from jax2tf_bridge.errors import Argument, Message, SavingError, format_bullets
from jax2tf_bridge.litert._convert import DEPRECATED
from jax2tf_bridge.saving import ServedArray, Signature

Arrays = Mapping[str, np.ndarray]

_OPEN_SIZE = 2
"""Size of an open dimension without an example."""

_NARROW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Answers:
    """Inputs of a signature, and TensorFlow's outputs for them.

    Attributes:
      inputs: the inputs by name.
      outputs: the outputs by name.
    """

    inputs: Arrays
    outputs: Arrays


def example_of(signature: Signature, inputs: Mapping[str, ServedArray]) -> dict[str, np.ndarray]:
    """Returns example inputs by name: the user's, or random numbers.

    Args:
      signature: the user's signature, with `args`, `kwargs` and `example`.
      inputs: the inputs of the saved signature, in the order of the arguments.
    """
    leaves = tf.nest.flatten([*signature.args, dict(signature.kwargs)])
    leaves = [leaf for leaf in leaves if leaf is not None]
    example: dict[str, Any] = {}
    if signature.processing.preprocess is None and len(leaves) == len(inputs):
        example = dict(zip(inputs, leaves, strict=True))
    examples = signature.example
    named = examples if isinstance(examples, Mapping) else next(iter(examples), {})
    example |= {name: value for name, value in named.items() if name in inputs}
    rng = np.random.default_rng(0)
    return {name: _array(example.get(name), served, rng) for name, served in inputs.items()}


def _array(value: Any, served: ServedArray, rng: np.random.Generator) -> np.ndarray:
    dtype = tf.as_dtype(served.dtype).as_numpy_dtype
    if value is not None:
        try:
            array = np.asarray(value)
        except TypeError:  # a typed key of jax.random
            array = np.zeros(0)
        if array.dtype == dtype and array.ndim == len(served.shape or ()):
            return array
    shape = [size if isinstance(size, int) else _OPEN_SIZE for size in served.shape or ()]
    if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
        return np.zeros(shape, dtype)
    return rng.normal(size=shape).astype(dtype)


def answers_of_tensorflow(
    folder: Path, signatures: Mapping[str, tuple[Signature, Mapping[str, ServedArray]]]
) -> dict[str, Answers]:
    """Calls the signatures of a SavedModel; skips those that reject the inputs.

    Args:
      folder: the SavedModel.
      signatures: the user's signatures, and the inputs of the saved ones, for `example_of`.
    """
    loaded = tf.saved_model.load(str(folder))
    answers = {}
    for name, (signature, served) in signatures.items():
        inputs = example_of(signature, served)
        tensors = {key: tf.constant(array) for key, array in inputs.items()}
        try:
            outputs = loaded.signatures[name](**tensors)
        except (tf.errors.OpError, ValueError):
            continue  # random numbers may be invalid inputs
        answers[name] = Answers(inputs, {k: v.numpy() for k, v in outputs.items()})
    return answers


def check_model(
    model: bytes, answers: Mapping[str, Answers], steps: Collection[str], *, is_quantized: bool
) -> None:
    """Raises unless LiteRT's results equal TensorFlow's.

    Args:
      model: the bytes of the file.
      answers: TensorFlow's answers by signature.
      steps: the signatures that change weights. After the first of them, answers are only checked
        for NaN and infinity: an optimizer may divide rounding noise by itself.
      is_quantized: whether to check only for NaN and infinity.

    Raises:
      SavingError: LiteRT fails, or an output differs.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", DEPRECATED)
        interpreter = tf.lite.Interpreter(model_content=model)
    for name, expected in answers.items():
        problems = _run(interpreter, name, expected, is_quantized=is_quantized)
        is_quantized = is_quantized or name in steps
        if problems:
            raise SavingError(
                Message(
                    f"In LiteRT the signature {name} does not compute what it does in TensorFlow, "
                    f"for the example of its inputs:{format_bullets(problems)}\nNo file was "
                    "written. Save parts of the function to find the operation. To write the file "
                    "anyway, pass ",
                    Argument("verify", code="verify=False"),
                    ".",
                )
            )


def _run(
    interpreter: tf.lite.Interpreter, name: str, expected: Answers, *, is_quantized: bool
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
    return list(_problems(expected.outputs, actual, is_quantized=is_quantized))


def _type_text(dtype: Any, shape: Sequence[int]) -> str:
    return array_type_text(np.dtype(dtype).name, shape)


def _describe_empty(types: Mapping[str, str]) -> str:
    names = some([f"{name}, {kind}" for name, kind in types.items()])
    return f"LiteRT has no arrays without elements: {names}"


def _problems(expected: Arrays, actual: Arrays, *, is_quantized: bool) -> Iterator[str]:
    for name, want in expected.items():
        got = actual[name]
        if got.shape != want.shape:
            yield f"{name} has the shape {got.shape} and not {want.shape}"
            continue
        dtype = want.dtype.name
        if want.dtype.kind not in "fc" and dtype not in _NARROW:
            if not is_quantized and not np.array_equal(got, want):
                yield f"{name} has other integers in {np.sum(got != want)} of {want.size} places"
            continue
        if dtype in _NARROW:
            got, want = got.astype(np.float32), want.astype(np.float32)
        is_known = np.isfinite(want)
        lost = is_known & ~np.isfinite(got)
        if np.any(lost):
            yield f"{name} is NaN or infinite in {np.sum(lost)} of {want.size} places"
            continue
        if is_quantized or not np.any(is_known):
            continue
        distance = measure_distance(want[is_known], got[is_known])
        difference = distance.relative(float(np.finfo(np.float32).tiny))
        if difference > 10 * tolerance_of(dtype):
            yield f"{name} differs by {difference:.2g} of its largest number"
