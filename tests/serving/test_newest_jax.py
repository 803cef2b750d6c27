"""Models of the newest JAX in a real TensorFlow Serving, compared with that JAX's answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scripts._env import ROOT
from tests.consumers.environments import process_environment
from tests.consumers.harness import Harness, NotAvailableError
from tests.serving.client import Call, call_from_many, find_rest_problems
from tests.serving.save_for_server import SIZES
from tests.serving.server import Runtime, read_instructions, serving

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

COMPILES = {"buckets": 3, "operations": 0}


@pytest.fixture(scope="module")
def folder(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder with the models and the answers."""
    folder = tmp_path_factory.mktemp("newest")
    harness = Harness(folder, lambda text: print(text, file=sys.stderr))
    try:
        python = harness.exporter_python("newest")
    except NotAvailableError as e:
        pytest.skip(str(e))
    done = subprocess.run(
        [str(python), "-m", "tests.serving.save_for_server", str(folder)],
        cwd=ROOT,
        env=process_environment({"JAX_PLATFORMS": "cpu"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    major, minor = map(int, done.stdout.split(".")[:2])
    assert (major, minor) >= (0, 12)
    return folder


@pytest.mark.parametrize("model", COMPILES)
def test_the_answers_are_those_of_jax(
    model: str, folder: Path, runtime: Runtime, tmp_path: Path
) -> None:
    with np.load(folder / "answers.npz") as arrays:
        calls = [
            Call(
                {"x": arrays[f"x_{number}"]},
                {name: arrays[f"{name}_{number}"] for name in ("classes", "probabilities")},
            )
            for number in range(len(SIZES))
        ]
    instructions = read_instructions((folder / f"{model}.txt").read_text())
    with serving(runtime, instructions, tmp_path) as server:
        assert server.count_compiles() == COMPILES[model]

        def draw(random: np.random.Generator) -> Call:
            return calls[random.integers(len(calls))]

        for callers in (1, 8):
            assert call_from_many(server, draw, callers=callers, calls=20) == []
        assert find_rest_problems(server, calls[2]) == []
        assert server.count_compiles() == COMPILES[model]
