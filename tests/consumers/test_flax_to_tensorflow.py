"""examples/flax_to_tensorflow in two environments: Flax in one, TensorFlow alone in the other."""

from __future__ import annotations

import datetime
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.consumers.environments import (
    ROOT,
    environment,
    locked,
    plain_requirements,
    process_environment,
)
from tests.consumers.harness import (
    NO_NEWER_PYTHON,
    Harness,
    NotAvailableError,
    newer_python,
)

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

EXAMPLE = ROOT / "examples" / "flax_to_tensorflow"
RELEASES = ("2.15.1", "2.19.1")


def _run(harness: Harness, scripts: Path, python: Path, script: str, *words: str | Path) -> str:
    """What a script of the example prints, which finds our packages and nothing else of ours."""
    done = subprocess.run(
        [str(python), str(scripts / script), *map(str, words)],
        env=process_environment({"PYTHONPATH": str(harness.stage()), "JAX_PLATFORMS": "cpu"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def flax_python(harness: Harness) -> Path:
    """An environment with the newest Flax and without TensorFlow."""
    base = newer_python()
    if base is None:
        pytest.skip(NO_NEWER_PYTHON)
    week = "{}-{}".format(*datetime.date.today().isocalendar()[:2])
    requirements = ["flax", "jax", "scikit-learn", *plain_requirements()]
    return environment("newest-flax", base, requirements, period=week, say=harness.say)


@pytest.fixture(scope="module")
def scripts(harness: Harness) -> Path:
    """The example in a folder where our packages do not lie beside it."""
    folder = harness.folder / "scripts" / "examples" / EXAMPLE.name
    with locked(harness.folder / "scripts.lock"):
        if not folder.exists():
            shutil.copytree(EXAMPLE, folder)
    return folder


@pytest.mark.parametrize("release", RELEASES)
def test_trained_in_one_and_served_from_the_other(
    harness: Harness, flax_python: Path, scripts: Path, release: str, tmp_path: Path
) -> None:
    try:
        python = harness.consumer_python(release)
    except NotAvailableError as e:
        pytest.skip(str(e))
    for version in (1, 2):
        words = (tmp_path, "--steps", "60", "--seed", str(version))
        trained = _run(harness, scripts, flax_python, "train.py", *words)
        served = _run(harness, scripts, python, "serve.py", tmp_path)
        assert f"served/{version}, TensorFlow {release}" in served
        assert "of JAX and Flax there are loaded: none" in served
        (line,) = (line for line in trained.splitlines() if "held-out digits are right" in line)
        assert line.partition(": ")[2] in served
