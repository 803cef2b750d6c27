"""`jax2tf-bridge onnx`: files as ONNX models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import export, write_function, write_weights
from tests.cli.conftest import Ok, Run
from tests.to_onnx import running

import onnx  # isort: skip  # where it is missing, the import of tests.to_onnx.running skips

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
PARAMS = {"w": np.linspace(0, 2, 6, dtype=np.float32).reshape(3, 2)}


def predict(params: Any, x: Any) -> Any:
    return {"y": jnp.tanh(x @ params["w"])}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("functions") / "predict.jaxfn"
    write_function(file, export(predict, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X))
    return file


def _is_right(path: Path) -> bool:
    got = running.run(path, {"x": X})["y"]
    return np.allclose(got, predict(PARAMS, X)["y"], atol=1e-6)


def test_a_file_as_a_model(ok: Ok, tmp_path: Path, file: Path) -> None:
    write_weights(tmp_path / "weights.msgpack", PARAMS)
    words = ("onnx", file, "--params", "weights.msgpack", "-o", "model.onnx", "--opset", "20")
    assert ok(*words, "--no-verify").splitlines() == [
        "model.onnx",
        "  serving_default(x: float32[b,3]) -> (y: float32[b,2])",
        "    0.00 MB, not run",
        "  opset 20",
    ]
    assert _is_right(tmp_path / "model.onnx")


@jax.jit
def step(x: Any) -> Any:
    x = jnp.tanh(x) + 1
    return x * jnp.cos(x)


def test_functions_of_the_model(ok: Ok, tmp_path: Path) -> None:
    write_function(tmp_path / "f.jaxfn", export(lambda x: step(step(x)))(X))
    ok("onnx", "f.jaxfn", "-o", "f.onnx", "--functions")
    model = onnx.load(str(tmp_path / "f.onnx"))
    assert [function.name for function in model.functions] == ["step"]


def test_several_files_over_one_set_of_weights(ok: Ok, tmp_path: Path, file: Path) -> None:
    write_weights(tmp_path / "weights.msgpack", PARAMS)
    words = ("onnx", f"a={file}", f"b={file}", "--params", "weights.msgpack", "-o", "models")
    printed = json.loads(ok(*words, "--json"))
    assert (printed["path"], printed["opset"]) == ("models", 18)
    assert list(printed["signatures"]) == ["a", "b"]
    first = printed["signatures"]["a"]
    assert first["checked"].startswith("compared with JAX in ONNX Runtime ")
    size = (tmp_path / "models" / "a.onnx").stat().st_size
    assert first == {
        "path": "models/a.onnx",
        "inputs": {"x": "float32[b,3]"},
        "outputs": {"y": "float32[b,2]"},
        "size": size,
        "checked": first["checked"],
    }
    assert _is_right(tmp_path / "models" / "a.onnx")
    assert _is_right(tmp_path / "models" / "b.onnx")


def test_what_is_refused(run: Run, tmp_path: Path, file: Path) -> None:
    (tmp_path / "folder").mkdir()
    out = ("-o", "model.onnx")
    expected = {
        (file, file, *out): "with several files, each needs the name of its signature, such as "
        f"predict={file}",
        ("folder", *out): "folder is a folder, and this command reads files that export wrote. To "
        "convert a SavedModel, write it with: jax2tf-bridge retarget --for-converters, and use "
        "tf2onnx",
        (file, *out, "--opset", "12"): "--opset must be 18 to 23. Got: 12",
        (file, "-o", "folder"): "--output: folder is a folder; name the file to write",
    }
    for words, text in expected.items():
        ended = run("onnx", *words)
        assert ended.code in (1, 2)
        assert text in ended.error
    assert not (tmp_path / "model.onnx").exists()
