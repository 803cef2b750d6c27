"""Rounding to the steps of bytes becomes QuantizeLinear, and gives JAX's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax
from onnx import numpy_helper

from jax2tf_bridge import Signature, save_onnx

# Private: results that ONNX Runtime does not give are judged.
from jax2tf_bridge.to_onnx._check import differ_by_steps
from tests.to_onnx.running import run

RANDOM = np.random.default_rng(0)
KERNEL = RANDOM.normal(size=(64, 33)).astype(np.float32)
X = np.array(
    # Ties, which are rounded to even steps; numbers beyond the range; zeros; NaN is left out.
    [[0.25, 0.75, -0.25, -0.75, 1.25], [1e4, -1e4, 64, -64, 63.7], [0.0, -0.0, 0.1, -63.75, -63.5]],
    np.float32,
)


def _round(x: Any, scale: Any, low: int = -127, high: int = 127, zero_point: Any = 0) -> Any:
    return (jnp.clip(jnp.round(x / scale) + zero_point, low, high) - zero_point) * scale


def rounded(params: Any, x: Any) -> dict[str, Any]:
    kernel, scale = params["kernel"], params["scale"]
    # XLA divides by 127 with the last bit wrong, and by 128 exactly.
    of_columns = jnp.max(jnp.abs(kernel), axis=0, keepdims=True) / 128
    return {
        "symmetric": _round(x, 0.5),
        "of 4 bits": _round(x, 0.5, -8, 7),
        "asymmetric": _round(x, scale, -128, 127, -5.0),
        "unsigned": _round(x, 0.5, 0, 255, 128.0),
        "few unsigned": _round(x, 0.5, 0, 15, 8.0),
        "above zero": _round(jax.nn.relu(x), 0.5),
        "of 16 bits": _round(x, 0.01, -32768, 32767),
        "of an axis": _round(x, jnp.arange(1.0, 6) / 4),
        "of two axes": _round(x, 1 + jnp.abs(jnp.round(x))),
        "measured": _round(x, jnp.max(jnp.abs(x)) / 128),
        "weights": _round(kernel, of_columns),
        "all weights": _round(kernel, jnp.max(jnp.abs(kernel)) / 128),
    }


def test_the_numbers_are_those_of_jax(tmp_path: Path) -> None:
    params = {"kernel": KERNEL, "scale": np.float32(0.5)}
    signature = Signature(rounded, args=[X], polymorphic_shapes="(b, 5)")
    saved = save_onnx(tmp_path / "a.onnx", signature, params=params)
    model = onnx.load(saved.path)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("QuantizeLinear") == 8
    assert kinds.count("DequantizeLinear") == 10
    # The bytes of the weights are in the file, and their floats are not.
    weights = [numpy_helper.to_array(each) for each in model.graph.initializer]
    large = {each.dtype.name for each in weights if each.size == KERNEL.size}
    assert large == {"int8", "uint8"}
    expected = jax.jit(rounded)(params, X)
    found = run(saved.path, {"x": X})
    for name, key in zip(sorted(expected), sorted(found), strict=True):
        np.testing.assert_array_equal(found[key], expected[name], err_msg=name)


def _net(params: Any, x: Any) -> Any:
    scales = params["scales"]
    kernels = [_round(k, jnp.max(jnp.abs(k), (0, 1, 2)) / 127) for k in params["kernels"]]
    x = x + lax.stop_gradient(_round(x, scales[0]) - x)
    for kernel, scale in zip(kernels, scales[1:], strict=True):
        x = lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = _round(jax.nn.relu(x + params["bias"]), scale)
    return x


@pytest.mark.costly
def test_onnx_runtime_makes_convolutions_of_bytes(tmp_path: Path) -> None:
    import onnxruntime

    kernels = [
        RANDOM.normal(0, 0.3, shape).astype(np.float32) for shape in ((3, 3, 2, 4), (3, 3, 4, 4))
    ]
    params: dict[str, Any] = {
        "kernels": kernels,
        "bias": RANDOM.normal(size=4).astype(np.float32),
        "scales": [np.float32(s) for s in (0.02, 0.03, 0.05)],
    }
    x = RANDOM.uniform(-2, 2, (2, 6, 6, 2)).astype(np.float32)
    signature = Signature(_net, args=[x], polymorphic_shapes="(b, 6, 6, 2)")
    saved = save_onnx(tmp_path / "a.onnx", signature, params=params)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        str(saved.path), options, providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"x": x})
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kinds.count("QLinearConv") == 2
    assert "Conv" not in kinds
    assert np.abs(found - _net(params, x)).max() <= 1.01 * params["scales"][-1]


def test_steps_between_are_no_fault_and_other_scales_are() -> None:
    numbers = np.arange(-20, 20, dtype=np.float32) / 2
    flipped = numbers.copy()
    flipped[3] += 0.5
    assert differ_by_steps({"y": numbers}, {"y": flipped})
    assert not differ_by_steps({"y": numbers}, {"y": numbers * np.float32(1.1)})
    assert not differ_by_steps({"y": numbers}, {"y": numbers[1:]})
    places = np.arange(40)
    assert differ_by_steps({"y": places}, {"y": np.where(places == 3, 4, places)})
    assert not differ_by_steps({"y": places}, {"y": places + 1})
