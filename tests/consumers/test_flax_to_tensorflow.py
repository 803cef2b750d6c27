"""examples/flax_to_tensorflow in two environments: Flax in one, TensorFlow alone in the other."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from scripts._env import ROOT, locked
from tests.consumers.environments import process_environment
from tests.consumers.harness import CONSUMER_RELEASES, Harness
from tests.sampling import sampled

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

EXAMPLE = ROOT / "examples" / "flax_to_tensorflow"
RELEASES = CONSUMER_RELEASES[:-1:2]


def _try(
    harness: Harness, scripts: Path, python: Path, script: str, *words: str | Path
) -> subprocess.CompletedProcess[str]:
    """Runs a script of the example, which finds our packages and nothing else of ours."""
    return subprocess.run(
        [str(python), str(scripts / script), *map(str, words)],
        env=process_environment({"PYTHONPATH": str(harness.stage()), "JAX_PLATFORMS": "cpu"}),
        capture_output=True,
        text=True,
        check=False,
    )


def _run(harness: Harness, scripts: Path, python: Path, script: str, *words: str | Path) -> str:
    """Returns what a script of the example prints."""
    done = _try(harness, scripts, python, script, *words)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _right(printed: str) -> float:
    (share,) = re.findall(r"([\d.]+)% of 360 held-out digits", printed)
    return float(share)


@pytest.fixture(scope="module")
def flax_python(harness: Harness) -> Path:
    """An environment with the newest Flax and without TensorFlow."""
    return harness.newest_python("newest-flax", "flax", "jax", "scikit-learn")


@pytest.fixture(scope="module")
def scripts(harness: Harness) -> Path:
    """Copies the example to a folder where our packages do not lie beside it."""
    folder = harness.folder / "scripts" / "examples" / EXAMPLE.name
    with locked(harness.folder / "scripts.lock"):
        if not folder.exists():
            shutil.copytree(EXAMPLE, folder)
    return folder


@pytest.mark.parametrize("release", sampled(RELEASES, every=len(RELEASES)))
def test_trained_in_one_and_served_from_the_other(
    harness: Harness, flax_python: Path, scripts: Path, release: str, tmp_path: Path
) -> None:
    """One test, since the trainings and the starts are the long part of it."""
    python = harness.consumer_python(release)
    functions = []
    for version, steps in (("1", "100"), ("2", "60")):
        words = (tmp_path, "--steps", steps, "--seed", version)
        trained = _run(harness, scripts, flax_python, "train.py", *words)
        served = _run(harness, scripts, python, "serve.py", tmp_path)
        assert f"{tmp_path / 'served' / version}, TensorFlow {release}" in served
        assert "of JAX and Flax there are loaded: none" in served
        assert _right(served) == _right(trained)
        assert _right(served) > 80 or version == "2"
        functions.append((tmp_path / "net.jaxfn").read_bytes())
    assert functions[0] == functions[1]
    graphs = [tmp_path / "served" / version / "saved_model.pb" for version in "12"]
    assert graphs[0].samefile(graphs[1])

    # The script compares with Flax's answers, so other answers are a failure.
    with np.load(tmp_path / "held_out.npz") as data:
        changed = {**data, "probabilities": data["probabilities"] + 0.1}
    np.savez(tmp_path / "held_out.npz", **changed)
    failed = _try(harness, scripts, python, "serve.py", tmp_path)
    assert failed.returncode != 0
    assert "The two differ by more than" in failed.stderr
