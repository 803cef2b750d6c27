"""Runs an ONNX model once, and compares it with JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import KEYS
from jax2tf_bridge.comparing import (
    ROUNDING_SEEDS,
    describe_differences,
    drop_explained,
    make_difference_error,
)
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.portable import Aval, PortableFunction

_MAX_MEAN_DIFFERENCE = 1 / 64
"""Tolerance of the results of a model that rounds, relative to the largest number."""
_MAX_OTHER_INTEGERS = 1 / 8
"""Maximum share of other integers, such as indices of the largest number."""
_OF_BYTES = (b"QuantizeLinear", b"MatMulInteger", b"ConvInteger")


def compare_with_jax(
    model: bytes | Path,
    name: str,
    portable: PortableFunction,
    inputs: Mapping[int, str],
    outputs: Sequence[str],
    weights: Mapping[int, tuple[str, np.ndarray]],
    example: Mapping[str, np.ndarray],
) -> str:
    """Runs a model in ONNX Runtime, and compares it with JAX, as far as these are installed.

    Args:
      model: the bytes or the path of the model.
      name: the name of the signature, for messages.
      portable: the function.
      inputs: the names of the flat arguments that are inputs, by index.
      outputs: the names of the flat results.
      weights: the names and values of the other flat arguments, by index.
      example: values of the inputs by name.

    Returns:
      How the model was checked, as "compared with JAX in ONNX Runtime 1.23".

    Raises:
      SavingError: ONNX Runtime fails, or an output differs.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return "not run: onnxruntime is not installed"
    release = f"ONNX Runtime {onnxruntime.__version__}"
    try:
        feed = {key: _to_parts(array) for key, array in example.items()}
        results = _run(str(model) if isinstance(model, Path) else model, feed)
        actual = dict(zip(outputs, results, strict=True))
    except Exception as e:  # of a type of its own
        problem = f"{release} fails: {str(e).strip()[:300]}"
        raise make_difference_error("ONNX Runtime", "JAX", name, [problem]) from e
    arguments = {i: array for i, (_, array) in weights.items()}
    arguments |= {i: example[key] for i, key in inputs.items()}
    in_jax = _run_in_jax(portable, arguments)
    if in_jax is None:
        return f"run in {release}"
    expected = dict(zip(outputs, map(_to_parts, in_jax), strict=True))
    problems = [*describe_differences(expected, actual)]
    problems = drop_explained(problems, expected, actual, _run_rounded(portable, arguments))
    if problems and not (_rounds_numbers(model) and differ_by_steps(expected, actual)):
        raise make_difference_error("ONNX Runtime", "JAX", name, problems)
    return f"compared with JAX in {release}"


def _run(model: str | bytes, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    # Products of bytes in place of rounded floats differ by steps, which would hide faults.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


def _rounds_numbers(model: bytes | Path) -> bool:
    """Returns whether a model rounds numbers to bytes, or multiplies bytes."""
    data = model if isinstance(model, bytes) else model.read_bytes()
    return any(name in data for name in _OF_BYTES)


def differ_by_steps(
    expected_by_name: Mapping[str, np.ndarray], actual_by_name: Mapping[str, np.ndarray]
) -> bool:
    """Returns whether results differ by few steps.

    A number between two steps may be rounded to either.
    """
    for name, expected in expected_by_name.items():
        actual = actual_by_name[name]
        if expected.shape != actual.shape:
            return False
        if expected.dtype.kind != "f":
            if expected.size and np.mean(expected != actual) > _MAX_OTHER_INTEGERS:
                return False
            continue
        largest = np.max(np.abs(expected), initial=0.0)
        difference = np.mean(np.abs(expected - actual)) if expected.size else 0.0
        if not difference <= _MAX_MEAN_DIFFERENCE * largest:
            return False
    return True


def _to_parts(array: np.ndarray) -> np.ndarray:
    """Returns complex numbers as parts along a new last axis."""
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array


def _run_in_jax(
    portable: PortableFunction, arguments: Mapping[int, np.ndarray]
) -> list[np.ndarray] | None:
    """Returns JAX's results as the model's outputs; None if JAX cannot run the function here."""
    try:
        import jax
    except ModuleNotFoundError:
        return None
    from jax2tf_bridge.from_jax import to_exported

    try:
        exported = to_exported(portable)
        leaves = _list_leaves(portable, arguments)
        args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, leaves)
        results = jax.tree_util.tree_leaves(jax.jit(exported.call)(*args, **kwargs))
    except (BridgeError, ValueError):
        return None  # random numbers or sizes may be invalid inputs
    return _list_arrays(portable, results)


def _run_rounded(
    portable: PortableFunction, arguments: Mapping[int, np.ndarray]
) -> Iterator[list[np.ndarray]]:
    """Yields JAX's results if operations round, in the form of the model's outputs.

    Yields nothing if JAX cannot round them.
    """
    from jax2tf_bridge.from_jax import run_rounded

    leaves = _list_leaves(portable, arguments)
    with contextlib.suppress(BridgeError):
        for results in run_rounded(portable, leaves, ROUNDING_SEEDS):
            yield [*map(_to_parts, _list_arrays(portable, results))]


def _list_leaves(portable: PortableFunction, arguments: Mapping[int, np.ndarray]) -> list[Any]:
    return [_as_argument(arguments[i], aval) for i, aval in enumerate(portable.in_avals)]


def _list_arrays(portable: PortableFunction, results: Sequence[Any]) -> list[np.ndarray]:
    import jax

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
