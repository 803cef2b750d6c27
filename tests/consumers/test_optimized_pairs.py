"""The oldest TensorFlow's graph optimizer makes only operations that have kernels."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from jax2tf_bridge import write_function
from tests.consumers.environments import process_environment
from tests.consumers.harness import OLDEST_TENSORFLOW, Harness
from tests.sampling import sampled
from tests.to_tensorflow.operations import pairs

pytestmark = [pytest.mark.slow, pytest.mark.consumers]


@pytest.mark.parametrize("dtype", sampled(pairs.INTEGERS, every=100))
def test_pairs_of_operations_run_and_agree_with_jax(
    harness: Harness, dtype: str, tmp_path: Path
) -> None:
    path, results = tmp_path / "pairs.jaxfn", tmp_path / "results.npz"
    write_function(path, pairs.portable(dtype))
    np.savez(tmp_path / "arguments.npz", *pairs.arguments(dtype))
    python, stage = harness.consumer_python(OLDEST_TENSORFLOW), harness.stage()
    command = [python, "-m", "tests.consumers.run_pairs", path, tmp_path / "arguments.npz", results]
    done = subprocess.run(
        list(map(str, command)),
        cwd=stage,
        env=process_environment({"PYTHONPATH": str(stage)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with np.load(results) as arrays:
        assert not pairs.differences(dict(arrays), pairs.expected(dtype))
