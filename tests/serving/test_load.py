"""Tests measure_load with a real TensorFlow Serving."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Signature, Target, measure_load, save
from jax2tf_bridge.serve_checking import SERVER_VARIABLE
from tests.serving.server import Runtime, wrap_server

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

W = np.random.default_rng(0).normal(size=(28, 10)).astype(np.float32)


def test_a_load_is_measured(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = wrap_server(runtime, tmp_path)
    monkeypatch.setenv(SERVER_VARIABLE, str(program))
    saved = save(
        tmp_path / "dense" / "1",
        Signature(
            lambda w, x: jnp.tanh(x @ w),
            args=[np.ones((2, 28), np.float32)],
            polymorphic_shapes="(b, 28)",
        ),
        params=W,
        buckets={"b": [1, 8, 32]},
        target=Target.tensorflow("2.19"),
    )
    report = measure_load(saved.path, callers=3, seconds=0.5, sizes={"b": [1, 2, 30]})
    assert report.ok, report
    assert (report.runtime, report.protocol) == ("TensorFlow Serving", "gRPC")
    # The server replays a warm-up request for each bucket.
    assert (report.compiles_at_load, report.compiles) == (3, 0)
    assert report.joins_requests
    rows = sum(each.batches * each.size - each.padding for each in report.batches)
    assert {each.size for each in report.batches} <= {1, 8, 32}
    assert report.requests < rows < 33 * report.requests
    assert report.peak_bytes is not None
    assert report.peak_bytes > 10**8
    assert 0 < report.p50_ms <= report.p99_ms <= report.max_ms
    monkeypatch.chdir(tmp_path)
    report = measure_load(
        saved.path,
        callers=2,
        seconds=0.5,
        sizes={"b": [1, 33]},
        protocol="REST",
        server=f"./{program.name}",
    )
    assert report.protocol == "REST"
    assert report.requests > 0
    assert [*report.failures] == ["400: Task size 33 is larger than maximum input batch size 32"]
    assert str(report.problem).startswith(f"{saved.path}: {sum(report.failures.values())} of ")
