"""`jax2tf-bridge tfjs`: files as models of TensorFlow.js."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax2tf_bridge import export, write_function, write_weights
from tests.cli.conftest import Ok
from tests.tfjs.graph_models import read_weights

X = np.ones((4, 3), np.float32)
PARAMS = {"w": np.linspace(0, 2, 6, dtype=np.float32).reshape(3, 2)}


def predict(params: Any, x: Any) -> Any:
    return {"y": jnp.tanh(x @ params["w"])}


def test_files_as_signatures(ok: Ok, tmp_path: Path) -> None:
    file = tmp_path / "predict.jaxfn"
    write_function(file, export(predict, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X))
    write_weights(tmp_path / "weights.msgpack", PARAMS)
    words = (f"a={file}", f"b={file}", "--params", "weights.msgpack", "--quantize", "float16")
    printed = ok("tfjs", *words, "-o", "model")
    assert printed.splitlines() == [
        "model",
        "  a.json: a(x: float32[b,3]) -> (y: float32[b,2])",
        "  b.json: b(x: float32[b,3]) -> (y: float32[b,2])",
        "  0.00 MB, quantised: float16",
    ]
    for name in ("a", "b"):
        (found,) = read_weights(tmp_path / "model" / f"{name}.json").values()
        np.testing.assert_allclose(found, PARAMS["w"], atol=1e-3)
    described = json.loads(ok("tfjs", *words, "-o", "model", "--overwrite", "--json"))
    assert described["signatures"]["b"] == {
        "file": "b.json",
        "inputs": {"x": "float32[b,3]"},
        "outputs": {"y": "float32[b,2]"},
        "is_async": False,
    }
    assert described["quantize"] == "float16"
