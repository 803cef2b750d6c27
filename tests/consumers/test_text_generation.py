"""examples/text_generation: a GPT-2 of Keras Hub in JAX, then LiteRT or ONNX Runtime alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts._env import ROOT
from tests.consumers.environments import environment, process_environment
from tests.consumers.harness import Harness, consumer_base

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

EXAMPLE = ROOT / "examples" / "text_generation"
KERAS_HUB = (
    # Without tensorflow-text, which brings a second TensorFlow and is for tokenizers.
    *("--no-deps", "keras-hub==0.32.0", "kagglehub", "kagglesdk", "regex"),
    *("sentencepiece", "tokenizers"),
)


def run(python: Path, *words: str | Path, packages: str = "") -> str:
    """Returns what a command of an interpreter prints."""
    variables = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": packages}
    done = subprocess.run(
        [str(python), *map(str, words)],
        env=process_environment(variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, and 500 tokens that Keras Hub generates."""
    folder = tmp_path_factory.mktemp("generated")
    keras_hub = environment("keras-hub", consumer_base(), *KERAS_HUB)
    (packages,) = keras_hub.parent.parent.glob("lib/python3*/site-packages")
    run(Path(sys.executable), EXAMPLE / "write.py", folder, "--onnx", packages=str(packages))
    return folder


def test_litert_generates_the_tokens_of_keras_hub(harness: Harness, written: Path) -> None:
    printed = run(harness.litert_python(), EXAMPLE / "generate.py", written)
    assert "loaded of JAX and TensorFlow: none" in printed
    (distinct,) = re.findall(r"500 of 500 tokens are JAX's, (\d+) of them distinct", printed)
    assert int(distinct) > 50
    assert "without a cache 10 of 10 tokens" in printed


def test_onnx_runtime_generates_the_tokens_of_keras_hub(written: Path) -> None:
    assert {path.name for path in (written / "onnx").iterdir()} == {
        "prefill.onnx",
        "decode.onnx",
        "weights.data",
    }
    printed = run(Path(sys.executable), EXAMPLE / "generate_in_onnx.py", written)
    assert "500 of 500 tokens are JAX's" in printed
