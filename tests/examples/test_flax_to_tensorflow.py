"""A Flax model in two files, served where JAX and Flax cannot be imported; a short training."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.fresh_process import run_python

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples" / "flax_to_tensorflow" / "train.py"
SERVE = TRAIN.with_name("serve.py")

pytestmark = pytest.mark.checkout


def train(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TRAIN), str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def serve(folder: Path) -> str:
    """What serve.py prints in a process in which JAX and Flax cannot be imported."""
    code = """
    import runpy, sys
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    """
    return run_python(code, str(SERVE), str(folder), without_jax=True)


def right(printed: str) -> float:
    (share,) = re.findall(r"([\d.]+)% of 360 held-out digits", printed)
    return float(share)


@pytest.mark.slow
def test_two_files_and_then_new_weights(tmp_path: Path) -> None:
    """One test, since the trainings are the long part of it."""
    folder = tmp_path / "digits"
    first = train(folder, "--steps", "100")
    assert first.returncode == 0, first.stderr
    assert right(first.stdout) > 80
    function = (folder / "net.jaxfn").read_bytes()
    served = serve(folder)
    assert f"{folder / 'served' / '1'}, TensorFlow " in served
    assert "of JAX and Flax there are loaded: none" in served
    assert right(served) == right(first.stdout)

    second = train(folder, "--steps", "60", "--seed", "1")
    assert second.returncode == 0, second.stderr
    assert (folder / "net.jaxfn").read_bytes() == function
    served = serve(folder)
    assert f"{folder / 'served' / '2'}, TensorFlow " in served
    assert right(served) == right(second.stdout)
    graphs = [folder / "served" / version / "saved_model.pb" for version in "12"]
    assert graphs[0].samefile(graphs[1])

    # What is compared is Flax's: other answers are a failure.
    with np.load(folder / "held_out.npz") as data:
        np.savez(folder / "held_out.npz", **{**data, "probabilities": data["probabilities"] + 0.1})
    with pytest.raises(AssertionError, match="The two differ by more than"):
        serve(folder)


def test_bad_steps_are_refused(tmp_path: Path) -> None:
    done = train(tmp_path / "digits", "--steps", "0")
    assert done.returncode == 2
    assert "--steps must be at least 1" in done.stderr
    assert not any(tmp_path.iterdir())
