"""`jax2tf-bridge litert`: files and SavedModels as LiteRT models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import export, inspect, save, write_function, write_weights
from tests.cli.conftest import Ok, Run
from tests.litert.running import interpreter

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
PARAMS = {"w": np.linspace(0, 2, 6, dtype=np.float32).reshape(3, 2)}


def predict(params: Any, x: Any) -> Any:
    return {"y": jnp.tanh(x @ params["w"])}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("functions") / "predict.jaxfn"
    write_function(file, export(predict, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X))
    return file


def _result(path: Path, name: str) -> Any:
    (found,) = interpreter(path).get_signature_runner(name)(x=X).values()
    return found


def test_files_as_signatures_over_one_set_of_weights(ok: Ok, tmp_path: Path, file: Path) -> None:
    write_weights(tmp_path / "weights.msgpack", PARAMS)
    words = (f"a={file}", f"b={file}", "--params", "weights.msgpack", "-o", "model.tflite")
    printed = ok("litert", *words)
    assert printed.splitlines() == [
        "model.tflite",
        "  a(x: float32[b,3]) -> (y: float32[b,2])",
        "  b(x: float32[b,3]) -> (y: float32[b,2])",
        "  0.00 MB",
    ]
    for name in ("a", "b"):
        found = _result(tmp_path / "model.tflite", name)
        np.testing.assert_allclose(found, predict(PARAMS, X)["y"], atol=1e-6)


@pytest.mark.costly
def test_a_saved_model_with_ranges_of_its_inputs(ok: Ok, tmp_path: Path, file: Path) -> None:
    save(tmp_path / "model", file, params=PARAMS)
    np.savez(tmp_path / "inputs.npz", x=np.stack([X, -X]))
    words = ("--quantize", "int8", "--representative-data", "inputs.npz", "-o", "model.tflite")
    printed = ok("litert", "model", *words, "--json")
    assert json.loads(printed) == inspect("model.tflite").as_json()
    found = _result(tmp_path / "model.tflite", "serving_default")
    np.testing.assert_allclose(found, predict(PARAMS, X)["y"], atol=0.05)
    printed = ok("litert", "model", *words, "--integers-only", "--overwrite")
    assert "serving_default(x: int8[?,3]) -> (y: int8[?,2])" in printed


def test_what_is_refused(run: Run, tmp_path: Path, file: Path) -> None:
    (tmp_path / "folder").mkdir()
    np.savez(tmp_path / "uneven.npz", x=X, y=X[1:])
    (tmp_path / "text.npz").write_text("text")
    out = ("-o", "model.tflite")
    expected = {
        (file, file, *out): "with several files, each needs the name of its signature, such as "
        f"predict={file}",
        ("folder", file, *out): "folder is a SavedModel, whose signatures already have names. "
        "Pass it alone, without NAME=",
        (file, *out, "--quantize", "int8"): "--quantize int8 measures ranges with typical "
        "inputs. Pass about a hundred of them as --representative-data.",
        (file, *out, "--integers-only"): "--integers-only is for --quantize int8, --quantize "
        "int16x8 and --quantize as_trained, which compute with integers.",
        (file, *out, "--representative-data", "uneven.npz"): "each array in uneven.npz needs "
        "one entry per call on its first axis, so these axes must be equal. Got: x (4, 3), "
        "y (3, 3)",
        (file, *out, "--representative-data", "text.npz"): "text.npz is not an .npz file of "
        "arrays, as numpy.savez writes",
        (file, "-o", "folder"): "--output: folder is a folder; name the file to write",
    }
    for words, text in expected.items():
        ended = run("litert", *words)
        assert ended.code in (1, 2)
        assert text in ended.error
    assert not (tmp_path / "model.tflite").exists()
