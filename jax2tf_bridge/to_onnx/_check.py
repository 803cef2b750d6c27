"""Runs an ONNX model once, and compares it with JAX."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import KEYS, find_dtype
from jax2tf_bridge.comparing import measure_distance, tolerance_of
from jax2tf_bridge.errors import Argument, BridgeError, Message, SavingError, format_bullets
from jax2tf_bridge.portable import Aval, PortableFunction
from jax2tf_bridge.signatures import Signature
from jax2tf_bridge.to_onnx._fake_quantization import differ_by_steps, rounds_numbers

_OPEN_SIZE = 2
"""Size of an open dimension without an example."""


@dataclass(frozen=True)
class CheckedModel:
    """Description of the check of a model, in a few words."""

    text: str

    def __str__(self) -> str:
        return self.text


def check_model(
    model: bytes | Path,
    name: str,
    signature: Signature,
    inputs: Mapping[int, str],
    outputs: Sequence[str],
    weights: Mapping[int, tuple[str, np.ndarray]],
) -> CheckedModel:
    """Runs a model in ONNX Runtime, and compares it with JAX, as far as these are installed.

    Args:
      model: the bytes or the path of the model.
      name: the name of the signature, for messages.
      signature: the signature, whose function is a portable function.
      inputs: the names of the flat arguments that are inputs, by index.
      outputs: the names of the flat results.
      weights: the names and values of the other flat arguments, by index.

    Raises:
      SavingError: ONNX Runtime fails, or an output differs.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return CheckedModel("not run: onnxruntime is not installed")
    portable: PortableFunction = signature.function
    release = f"ONNX Runtime {onnxruntime.__version__}"
    example = _make_example(signature, portable, inputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    # Products of bytes in place of rounded floats differ by steps, which would hide faults.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        session = onnxruntime.InferenceSession(
            str(model) if isinstance(model, Path) else model,
            options,
            providers=["CPUExecutionProvider"],
        )
        feed = {inputs[i]: _to_parts(array) for i, array in example.items()}
        got = session.run(list(outputs), feed)
    except Exception as e:  # of a type of its own
        raise _make_error(name, [f"{release} fails: {str(e).strip()[:300]}"]) from e
    want = _run_in_jax(portable, weights, example)
    if want is None:
        return CheckedModel(f"run in {release}")
    problems = list(_problems(outputs, want, got))
    if problems and not (rounds_numbers(model) and differ_by_steps(want, got)):
        raise _make_error(name, problems)
    return CheckedModel(f"compared with JAX in {release}")


def _make_error(name: str, problems: Sequence[str]) -> SavingError:
    return SavingError(
        Message(
            f"In ONNX Runtime the signature {name} does not compute what it does in JAX, for the "
            f"example of its inputs:{format_bullets(problems)}\nNo file was written. Save parts of "
            "the function to find the operation. To write the file anyway, pass ",
            Argument("verify", code="verify=False"),
            ".",
        )
    )


def _make_example(
    signature: Signature, portable: PortableFunction, inputs: Mapping[int, str]
) -> dict[int, np.ndarray]:
    """Returns example inputs by the index of the flat argument: the user's, or random numbers."""
    given = dict.fromkeys(inputs)
    leaves = _leaves_of(signature)
    if len(leaves) == len(inputs):
        given = dict(zip(inputs, leaves, strict=True))
    examples = signature.example
    named = examples if isinstance(examples, Mapping) else next(iter(examples), {})
    given |= {i: named[name] for i, name in inputs.items() if name in named}
    rng = np.random.default_rng(0)
    return {i: _array(given[i], portable.in_avals[i], rng) for i in inputs}


def _leaves_of(signature: Signature) -> list[Any]:
    if "jax" not in sys.modules:
        return []
    import jax

    return jax.tree_util.tree_leaves((tuple(signature.args), dict(signature.kwargs)))


def _array(value: Any, aval: Aval, rng: np.random.Generator) -> np.ndarray:
    row = find_dtype(aval.op_dtype)
    assert row is not None, "an argument has a dtype of the table"
    dtype = np.dtype(row.numpy())
    if value is not None:
        try:
            array = np.asarray(value)
        except TypeError:  # a typed key of jax.random
            array = np.zeros(0)
        if aval.widened:
            array = array.astype(dtype)
        if array.dtype == dtype and array.ndim == len(aval.op_shape):
            return array
    shape = [size if isinstance(size, int) else _OPEN_SIZE for size in aval.op_shape]
    if dtype.kind not in "fc":
        return np.zeros(shape, dtype)
    numbers = rng.normal(size=shape)
    return (numbers + 1j * rng.normal(size=shape) if dtype.kind == "c" else numbers).astype(dtype)


def _to_parts(array: np.ndarray) -> np.ndarray:
    """Returns complex numbers as parts along a new last axis."""
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array


def _run_in_jax(
    portable: PortableFunction,
    weights: Mapping[int, tuple[str, np.ndarray]],
    example: Mapping[int, np.ndarray],
) -> list[np.ndarray] | None:
    """Returns JAX's results as the model's outputs; None if JAX cannot run the function here."""
    try:
        import jax
    except ModuleNotFoundError:
        return None
    from jax2tf_bridge.from_jax import to_exported

    arrays = {**{i: array for i, (_, array) in weights.items()}, **example}
    try:
        exported = to_exported(portable)
        leaves = [_as_argument(arrays[i], aval) for i, aval in enumerate(portable.in_avals)]
        args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, leaves)
        results = jax.tree_util.tree_leaves(jax.jit(exported.call)(*args, **kwargs))
    except (BridgeError, ValueError):
        return None  # random numbers or sizes may be invalid inputs
    return [
        np.asarray(jax.random.key_data(x) if aval.is_key else x)
        for x, aval in zip(results, portable.out_avals, strict=True)
    ]


def _as_argument(array: np.ndarray, aval: Aval) -> Any:
    import jax

    if aval.is_key:
        words = jax.numpy.asarray(array)
        return jax.random.wrap_key_data(words, impl=KEYS[aval.dtype].implementation)
    return array.astype(jax.dtypes.bfloat16) if aval.widened else array


def _problems(
    names: Sequence[str], want: Sequence[np.ndarray], got: Sequence[np.ndarray]
) -> Iterator[str]:
    for name, expected, actual in zip(names, map(_to_parts, want), got, strict=True):
        if actual.shape != expected.shape:
            yield f"{name} has the shape {actual.shape} and not {expected.shape}"
            continue
        dtype = expected.dtype.name
        if expected.dtype.kind in "biu":
            if not np.array_equal(actual, expected):
                n_wrong = np.sum(actual != expected)
                yield f"{name} has other values in {n_wrong} of {expected.size} places"
            continue
        wide = np.float64 if dtype == "float64" else np.float32
        expected, actual = expected.astype(wide), actual.astype(wide)
        is_known = np.isfinite(expected)
        lost = is_known & ~np.isfinite(actual)
        if np.any(lost):
            yield f"{name} is NaN or infinite in {np.sum(lost)} of {expected.size} places"
            continue
        if np.any(is_known):
            distance = measure_distance(expected[is_known], actual[is_known])
            difference = distance.relative(float(np.finfo(np.float32).tiny))
            if difference > 10 * tolerance_of(dtype):
                yield f"{name} differs by {difference:.2g} of its largest number"
