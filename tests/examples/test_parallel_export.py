"""The examples of exporting in parallel write files that can be read and run."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf

from examples.parallel_export.jobs import jobs, write
from jax2tf_bridge import export_many, read_function, to_tf

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "parallel_export"

pytestmark = pytest.mark.checkout


def check(folder: Path) -> None:
    """Checks the files that an example has written."""
    names = ["classify", "classify_long_tpu", "classify_short", "embed"]
    assert sorted(path.stem for path in folder.iterdir()) == names
    portables = {path.stem: read_function(path) for path in folder.iterdir()}
    assert portables["classify_long_tpu"].platforms == ("tpu",)
    assert portables["classify"].has_vjp
    assert not portables["embed"].has_vjp

    sizes = {"embedding": (1000, 32), "mix": (32, 32), "head": (32, 4)}
    params = {key: tf.ones(size) / 32 for key, size in sizes.items()}
    tokens = tf.zeros((5, 3), tf.int32)
    probabilities = to_tf(portables["classify"])(params, tokens)
    assert probabilities.numpy().sum(1) == pytest.approx([1.0] * 5)
    assert to_tf(portables["embed"])(params, tokens).shape == (5, 32)


def test_what_the_examples_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as executor:
        write(export_many(jobs(), executor=executor), tmp_path / "files")
    assert "classify_long_tpu.jaxfn: (float32[1000,32], " in capsys.readouterr().out
    check(tmp_path / "files")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_workers.py", "on_dask.py", "on_ray.py"])
def test_example(name: str, tmp_path: Path) -> None:
    if name == "on_ray.py":
        pytest.importorskip("ray", reason="Ray has no wheels for this platform")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "files"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "classify_long_tpu.jaxfn: (float32[1000,32], " in done.stdout
    check(tmp_path / "files")
