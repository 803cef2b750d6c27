"""The demo does what it says, with a short training."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "examples" / "digits" / "main.py"
SERVE = MAIN.with_name("serve.py")

pytestmark = pytest.mark.checkout


def test_demo(tmp_path: Path) -> None:
    """One test, since the training is the long part of it."""
    done = subprocess.run(
        [sys.executable, str(MAIN), "--steps", "60", "--output", "here"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    printed, folder = done.stdout, tmp_path / "here"
    assert done.returncode == 0, printed + done.stderr

    accuracies = re.search(r"held-out digits: JAX ([\d.]+)%, SavedModel ([\d.]+)%", printed)
    assert accuracies is not None
    assert float(accuracies[1]) > 85
    assert abs(float(accuracies[1]) - float(accuracies[2])) < 0.5
    assert re.search(r"largest difference of the logits: \d", printed)
    assert re.search(r"by the images \d\S*, by the 8 weights \d", printed)

    with np.load(folder / "answers.npz") as answers:
        report = json.loads(str(answers["report"]))
        assert answers["logits"].shape == (360, 10)
        assert answers["d images"].shape == (64, 8, 8)
        assert np.abs(answers["d conv1/kernel"]).max() > 0
    assert report["loaded_of_blocked"] == []
    assert set(report["blocked"]) >= {"jax", "jaxlib", "jax2tf_bridge"}

    assert (folder / "digits" / "1" / "saved_model.pb").is_file()
    assert str(folder / "digits" / "1") in printed
    assert f"--model_base_path={folder / 'digits'}" in printed
    request = json.loads((folder / "request.json").read_text())
    assert np.shape(request["instances"]) == (3, 8, 8)
    with Image.open(folder / "digits.png") as picture:
        assert min(picture.size) > 800
        colors = picture.convert("RGB").getcolors(maxcolors=1 << 24)
        assert colors is not None
        assert len(colors) > 100


def test_blocker_stops_jax() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SERVE.parent)!r})\n"
        "import serve; sys.meta_path.insert(0, serve._Blocker())\n"
        "for name in ('jax', 'jaxlib', 'jax2tf_bridge._convert'):\n"
        "    try: __import__(name)\n"
        "    except ModuleNotFoundError as e: assert 'blocked' in str(e)\n"
        "    else: sys.exit(f'{name} was imported')\n"
        "import json.tool\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_check_fails_where_nothing_blocks_jax() -> None:
    """The proof that JAX is blocked is one: without the blocker it fails."""
    code = (
        f"import sys; sys.path.insert(0, {str(SERVE.parent)!r})\n"
        "import serve; serve._check_that_jax_is_blocked()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "AssertionError: jax could be imported" in done.stderr


@pytest.mark.parametrize("steps", ["0", "many"])
def test_bad_steps_are_refused(steps: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(MAIN), "--steps", steps],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--steps" in done.stderr
    assert not any(tmp_path.iterdir())
