"""A C++ program against the wheel's libraries serves a SavedModel, as TF Serving does."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from jax2tf_bridge import Batching, Signature, save
from tests.consumers.comparison import differences
from tests.consumers.cpp_programs import compiled
from tests.consumers.environments import process_environment
from tests.consumers.exchange import SERVED, Array, read_arrays
from tests.consumers.harness import NEWEST_TENSORFLOW, OLDEST_TENSORFLOW, Harness, newest_exporter

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

WIDTH = 28


@pytest.fixture(params=[OLDEST_TENSORFLOW, NEWEST_TENSORFLOW])
def serve(harness: Harness, request: pytest.FixtureRequest) -> Path:
    """Compiles the program against one TensorFlow release."""
    return compiled("serve", harness, request.param)


@pytest.fixture
def exported(harness: Harness) -> Path:
    """Returns the folder of the served program: its SavedModel, and JAX's answers."""
    return harness.exported(newest_exporter()) / SERVED


def _serve(
    program: Path, exported: Path, numbers: Array, folder: Path, width: int, *batches: int | str
) -> subprocess.CompletedProcess[str]:
    numbers.tofile(folder / "input")
    arguments = [exported / "model", folder / "input", folder / "output", width, *batches]
    return subprocess.run(
        [str(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=process_environment({"TF_CPP_MIN_LOG_LEVEL": "3"}),
    )


def test_several_batch_sizes(serve: Path, exported: Path, tmp_path: Path) -> None:
    calls = [read_arrays(exported / f"call-{i}.npz") for i in range(3)]
    sizes = [len(c["inputs"][0]) for c in calls]
    assert sizes == [1, 3, 8]
    for call, size in zip(calls, sizes, strict=True):
        done = _serve(serve, exported, call["inputs"][0], tmp_path, WIDTH, size)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"batch {size}: [{size},10]\n"
        answer = np.fromfile(tmp_path / "output", np.float32).reshape(size, 10)
        assert differences("result", [answer], call["results"], 2e-4) == []


def test_batch_sizes_in_one_session(serve: Path, exported: Path, tmp_path: Path) -> None:
    call = read_arrays(exported / "call-2.npz")
    done = _serve(serve, exported, call["inputs"][0], tmp_path, WIDTH, 8, 1, 3, 8)
    assert done.returncode == 0, done.stderr
    answer = np.fromfile(tmp_path / "output", np.float32).reshape(20, 10)
    (expected,) = call["results"]
    rows = np.concatenate([expected, expected[:1], expected[:3], expected])
    assert differences("result", [answer], [rows], 2e-4) == []


def test_a_wrong_inner_dimension_is_an_error_status(
    serve: Path, exported: Path, tmp_path: Path
) -> None:
    numbers = np.zeros((3, WIDTH + 1), np.float32)
    done = _serve(serve, exported, numbers, tmp_path, WIDTH + 1, 3)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "run: INVALID_ARGUMENT" in done.stderr


def test_requests_of_several_threads_are_joined(serve: Path, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(48, WIDTH)).astype(np.float32)
    # A request waits for two minutes, unless requests of 16 rows have come.
    save(
        tmp_path / "model",
        Signature(lambda w, x: x @ w, args=[numbers], polymorphic_shapes=f"(b, {WIDTH})"),
        params=numbers[:WIDTH, :10],
        buckets={"b": [16]},
        batching=Batching(batch_timeout_micros=120_000_000),
    )
    start = time.monotonic()
    done = _serve(serve, tmp_path, numbers, tmp_path, WIDTH, "16x1", "8x2", "16x3", 17, 0)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 120
    answer = np.fromfile(tmp_path / "output", np.float32).reshape(-1, 10)
    rows = [numbers[:16], numbers[:16], numbers, numbers[:17]]
    expected = np.concatenate(rows) @ numbers[:WIDTH, :10]
    np.testing.assert_allclose(answer, expected, rtol=2e-4, atol=2e-4)
