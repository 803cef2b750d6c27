"""verify() in ONNX Runtime and OpenVINO, beside JAX and TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.consumers import verify_converted
from tests.consumers.harness import Harness

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


def _run(command: list[str], folder: Path, **variables: str) -> str:
    """Runs a command, and returns what it prints."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
