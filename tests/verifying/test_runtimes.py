"""Models without JAX's dtypes: ONNX without complex numbers, LiteRT with integers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Signature, save, save_litert, save_onnx, verify
from tests.litert.running import interpreter

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def spin(z: Any) -> Any:
    return {"spun": z * 2j, "size": jnp.abs(z)}


def spin_back(z: Any) -> Any:
    return {"spun": z * -2j, "size": jnp.abs(z)}


def test_complex_numbers_of_onnx_are_compared_by_their_parts(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    signature = Signature(spin, args=[X + 1j * X[::-1]])
    save(tmp_path / "model", signature, vjp_order=0)
    save_onnx(tmp_path / "model.onnx", signature, verify=False)
    options: Any = {"runtime": "onnx", "model": tmp_path / "model.onnx", "samples": 1}
    report = verify(tmp_path / "model", spin, **options)
    assert report.ok, report
    report = verify(tmp_path / "model", spin_back, **options)
    assert {d.name: d.within for d in report.differences} == {"spun": False, "size": True}


def join(x: Any, y: Any) -> Any:
    return jnp.concatenate([x, 9 * y]), jnp.concatenate([x, y / 9])


@pytest.mark.slow
def test_integers_of_litert_are_compared_as_floats(tmp_path: Path) -> None:
    signature = Signature(join, args=[X, X])
    save(tmp_path / "model", signature, vjp_order=0)
    data = [tuple(np.random.default_rng(i).normal(size=(2, 4, 3)).astype("f4")) for i in range(50)]
    options: Any = {"quantize": "int8", "representative_data": data, "integers_only": True}
    saved = save_litert(tmp_path / "model.tflite", signature, **options)
    # LiteRT converts x to the scale of the first result.
    details = interpreter(saved.path).get_signature_runner().get_input_details()
    scales = saved.signatures["serving_default"].scales
    assert {name: scales[name] for name in details} == {
        name: detail["quantization"] for name, detail in details.items()
    }
    options = {"runtime": "litert", "model": saved.path, "samples": 1}
    report = verify(tmp_path / "model", join, tolerance=0.05, **options)
    assert report.ok, report


W = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)


def decide(x: Any) -> Any:
    y = jnp.tanh(x @ W)
    y = y * 2 + x[:, :1]
    return jnp.maximum(y, -1)


def decide_differently(x: Any) -> Any:
    y = jnp.tanh(x @ W)
    y = y * 2 - x[:, :1]
    return jnp.maximum(y, -1)


@pytest.mark.slow
@pytest.mark.parametrize("integers_only", [True, False])
def test_lines_are_located_in_models_of_integers(tmp_path: Path, integers_only: bool) -> None:
    signature = Signature(decide, args=[X])
    save(tmp_path / "model", signature, vjp_order=0)
    data = list(np.random.default_rng(0).normal(size=(50, 4, 3)).astype(np.float32))
    options: Any = {"representative_data": data, "integers_only": integers_only}
    saved = save_litert(tmp_path / "model.tflite", signature, quantize="int8", **options)
    options = {"runtime": "litert", "model": saved.path, "samples": 1, "locate": True}
    assert verify(tmp_path / "model", decide, tolerance=0.05, **options).ok
    report = verify(tmp_path / "model", decide_differently, tolerance=0.05, **options)
    assert report.location is not None
    assert report.location.operation == "sub"
    assert report.location.tensor is not None
    assert "test_runtimes.py" in report.location.tensor
    assert abs(report.location.actual - report.location.expected) > 0.1  # floats, not steps
