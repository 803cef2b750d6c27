"""verify() in ONNX Runtime, OpenVINO and TensorFlow.js, beside JAX and TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Signature, Target, save, save_tfjs, verify
from jax2tf_bridge.errors import BridgeError, MissingDependencyError
from tests.consumers import verify_converted
from tests.consumers.harness import Harness
from tests.consumers.node_addon import Node, node_for_browsers

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

_PATHS = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_path('purelib'))"


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "model"
    verify_converted.write(folder)
    return folder


@pytest.mark.parametrize(("runtime", "title"), [("onnx", "ONNX Runtime"), ("openvino", "OpenVINO")])
def test_a_converted_model_is_compared_and_its_line_is_named(
    harness: Harness, saved_model: Path, tmp_path: Path, runtime: str, title: str
) -> None:
    python = harness.converter_python(runtime)
    major, minor, site_packages = _run([str(python), "-c", _PATHS], tmp_path).split(" ", 2)
    if (int(major), int(minor)) != sys.version_info[:2]:
        pytest.skip("the runtime's packages are those of another Python")
    models = []
    if runtime == "onnx":
        models = [str(tmp_path / "model.onnx")]
        convert = ["-m", "tf2onnx.convert", "--saved-model", str(saved_model), "--opset", "18"]
        _run([str(python), *convert, "--output", *models], tmp_path)
    script = [sys.executable, "-m", verify_converted.__name__, runtime, site_packages.strip()]
    root = str(Path(__file__).parents[2])
    text = _run([*script, str(saved_model), *models], tmp_path, PYTHONPATH=root)
    facts = json.loads(text.strip().splitlines()[-1])
    assert facts["ok"]
    assert facts["title"].startswith(title)
    location = facts["location"]
    assert location["operation"] == "tanh"
    assert location["line"].endswith(" (changed_network)")
    assert location["tensor"]
    assert location["jax"] != pytest.approx(location["model"])


@pytest.fixture
def node(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Node on the PATH, with TensorFlow.js where it looks for packages."""
    installed = node_for_browsers(harness)
    monkeypatch.setenv("PATH", str(installed.program.parent), prepend=os.pathsep)
    monkeypatch.setenv("NODE_PATH", str(installed.modules))
    return installed


def _draw(params: Any, x: Any) -> dict[str, Any]:
    words, hidden = jax.random.bits(jax.random.key(0), (3,)), x @ params["w"]
    hidden, _ = jax.lax.scan(lambda carry, row: (carry + row, None), hidden, hidden)
    return {"words": words, "sums": hidden, "spectrum": jnp.fft.fft(hidden)}


def _draw_differently(params: Any, x: Any) -> dict[str, Any]:
    words, hidden = jax.random.bits(jax.random.key(0), (3,)), x @ params["w"]
    hidden, _ = jax.lax.scan(lambda carry, row: (carry + row, None), hidden, hidden)
    return {"words": ~words, "sums": hidden, "spectrum": jnp.fft.fft(hidden)}


def _write_for_tfjs(folder: Path, function: Any) -> tuple[Path, Path]:
    signature = Signature(function, args=[np.ones((2, 3), np.float32)])
    save(
        folder / "model",
        signature,
        params=verify_converted.PARAMS,
        target=Target.converters(),
        vjp_order=0,
    )
    save_tfjs(folder / "web", signature, params=verify_converted.PARAMS)
    return folder / "model", folder / "web"


@pytest.mark.usefixtures("node")
def test_a_model_of_tensorflow_js_is_compared_and_its_line_is_named(tmp_path: Path) -> None:
    saved, model = _write_for_tfjs(tmp_path, verify_converted.network)
    report = verify(saved, verify_converted.network, samples=1, runtime="tfjs", model=model)
    assert report.ok, report
    assert report.title == "TensorFlow.js 4.22.0 (wasm)"
    changed = verify_converted.changed_network
    report = verify(saved, changed, samples=1, runtime="tfjs", model=model, locate=True)
    location = report.location
    assert location is not None
    assert location.operation == "tanh"
    assert (location.line or "").endswith(" (changed_network)")
    assert location.actual != pytest.approx(location.expected)


@pytest.mark.usefixtures("node")
def test_loops_unsigned_and_complex_numbers_are_compared_in_tensorflow_js(tmp_path: Path) -> None:
    saved, model = _write_for_tfjs(tmp_path, _draw)
    file = model / "model.json"
    report = verify(saved, _draw, samples=1, runtime="tfjs", model=file)
    assert report.ok, report
    # "wasm" has no FFT.
    assert report.title == "TensorFlow.js 4.22.0 (cpu)"
    report = verify(saved, _draw_differently, samples=1, runtime="tfjs", model=file, locate=True)
    assert report.location is not None
    assert report.location.operation == "not"


@pytest.mark.usefixtures("node")
def test_what_tensorflow_js_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, model = _write_for_tfjs(tmp_path, verify_converted.network)
    graph = json.loads((model / "model.json").read_text())
    nodes = graph["modelTopology"]["node"]
    next(node for node in nodes if node["op"] == "Exp")["op"] = "Unknown"
    (model / "model.json").write_text(json.dumps(graph))
    with pytest.raises(BridgeError) as caught:
        verify(saved, verify_converted.network, samples=1, runtime="tfjs", model=model)
    assert str(caught.value).startswith(f"TensorFlow.js cannot run {model / 'model.json'}: ")
    assert "Unknown" in str(caught.value)
    monkeypatch.delenv("NODE_PATH")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingDependencyError) as missing:
        verify(saved, verify_converted.network, samples=1, runtime="tfjs", model=model)
    assert str(missing.value) == (
        "verify(runtime='tfjs') needs TensorFlow.js, which is not installed here. Install it "
        "with: npm install @tensorflow/tfjs @tensorflow/tfjs-backend-wasm"
    )


def _run(command: list[str], folder: Path, **variables: str) -> str:
    """Runs a command, and returns what it prints."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
