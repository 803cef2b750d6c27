"""Versions and labels of a model in a real TensorFlow Serving."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax2tf_bridge import Signature, Target, promote, publish, rollback
from tests.serving.client import post
from tests.serving.server import Runtime, Server, read_instructions, serving
from tests.serving.versions_under_load import (
    Publisher,
    dense,
    run,
    wait_until_available,
)

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

ROW = np.ones((1, 3), np.float32)
_SECONDS = 30


def test_no_request_fails_while_versions_change(runtime: Runtime, tmp_path: Path) -> None:
    report = run(runtime, tmp_path, calls=1000, changes=12, seed=3)
    assert set(report.statuses) == {"OK"}
    assert not report.wrong
    assert set(report.changes) >= {"publish_weights", "roll_back", "damage", "remove"}


def predict_by_label(server: Server, label: str) -> float | str:
    """Returns the answer of the version with a label, or the error."""
    url = f"http://localhost:{server.rest_port}/v1/models/{server.model}/labels/{label}:predict"
    request = json.dumps({"instances": [{"x": [1, 1, 1]}]}).encode()
    try:
        with urllib.request.urlopen(url, request) as answer:
            value: float = json.load(answer)["predictions"][0][0]
            return value
    except urllib.error.HTTPError as e:
        with e:
            return f"{e.code}: {e.read().decode()}"


def wait_for(server: Server, expected: dict[str, Any]) -> None:
    end = time.monotonic() + _SECONDS
    while (found := {label: predict_by_label(server, label) for label in expected}) != expected:
        assert time.monotonic() < end, found
        time.sleep(0.2)


def test_canary_becomes_stable(runtime: Runtime, tmp_path: Path) -> None:
    root = tmp_path / "dense"
    signature = Signature(dense, args=[ROW], polymorphic_shapes="(b, 3)")
    w = np.ones((3, 2), np.float32)
    target = Target.tensorflow("2.19", xla=False)
    first = publish(root, signature, params=w, target=target, label="stable")
    assert first.saved is not None
    poll = "--model_config_file_poll_wait_seconds="
    instructions = read_instructions(str(first.saved.serving))
    assert f"{poll}10" in instructions.options
    instructions = instructions.with_options(f"{poll}1", without=(poll,))
    with serving(runtime, instructions, tmp_path, model="dense") as server:
        wait_for(server, {"stable": 3.0})
        publish(root, params=w * 2, label="canary")
        wait_for(server, {"stable": 3.0, "canary": 6.0})
        promote(root)
        wait_for(server, {"stable": 6.0, "canary": 6.0})
        promote(root, 1)
        wait_for(server, {"stable": 3.0, "canary": 6.0})
        publish(root, params=w * 3, label="canary", keep=1)
        rollback(root, 1, label="stable", keep=1)
        wait_for(server, {"stable": 3.0, "canary": 9.0})


def test_rollback_of_a_version_that_cannot_be_loaded(runtime: Runtime, tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "dense", seed=0)
    instructions = publisher.publish_model()
    with serving(runtime, instructions, tmp_path) as server:
        publisher.publish_model()
        graph = publisher.root / "2" / "saved_model.pb"
        graph.write_bytes(graph.read_bytes()[:100])
        wait_until_available(server, 2, "LOADING")
        time.sleep(0.5)  # its first load fails, and it will be tried again
        publisher.roll_back()
        wait_until_available(server, 3)
        assert post(server, {"instances": [[1, 1, 1]]})[1] == {"predictions": [[3, 3]]}
        # Fails like a version that was removed as the server began to load it.
        gone = publisher.root / "new"
        shutil.copytree(publisher.root / "3", gone)
        (gone / "missing").symlink_to("/missing")
        gone.rename(publisher.root / "4")
        wait_until_available(server, 4, "START")
        publisher.roll_back()
        wait_until_available(server, 5)
