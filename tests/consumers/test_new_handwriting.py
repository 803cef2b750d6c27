"""examples/new_handwriting: JAX, then LiteRT alone, which learns, then JAX again."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts._env import ROOT
from tests.consumers.environments import process_environment
from tests.consumers.harness import Harness
from tests.tutorials.test_tutorials import tutorial_python

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

EXAMPLE = ROOT / "examples" / "new_handwriting"


def run(python: Path, script: str, folder: Path) -> str:
    """Returns what a script of the example prints."""
    done = subprocess.run(
        [str(python), str(EXAMPLE / script), str(folder)],
        env=process_environment({"JAX_PLATFORMS": "cpu"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_phone_learns_a_handwriting_and_jax_reads_it(harness: Harness, tmp_path: Path) -> None:
    run(tutorial_python(), "train.py", tmp_path)
    learned = run(harness.litert_python(), "learn.py", tmp_path)
    assert "loaded of JAX and TensorFlow: none" in learned
    before, after = map(float, re.findall(r"([\d.]+)% of 360 slanted digits", learned))
    assert before < 50
    assert after > 80
    evaluated = run(tutorial_python(), "evaluate.py", tmp_path)
    (in_jax,) = map(float, re.findall(r"([\d.]+)% of 360 slanted digits", evaluated))
    assert abs(in_jax - after) <= 0.3  # one digit
    assert "steps of Adam: 700" in evaluated
