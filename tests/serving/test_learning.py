"""A model that learns in a real TensorFlow Serving."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jax2tf_bridge import save
from tests.serving.client import connect, predict_by_rest
from tests.serving.server import Runtime, Server, read_instructions, serving
from tests.training.steps import TRAININGS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

TRAINING = TRAININGS[1]
CALLERS, CALLS = 8, 15


def train(server: Server) -> list[float]:
    """Calls the step several times over one connection, and returns the losses."""
    with connect(server) as predict:
        arrays = {"x": TRAINING.x, "y": TRAINING.y}
        return [float(predict(arrays, "train")["loss"]) for _ in range(CALLS)]


def test_callers_train_one_model(runtime: Runtime, tmp_path: Path) -> None:
    """Steps of several callers do not interleave, so the losses are those of one after another."""
    saved = save(
        tmp_path / "learner" / "1",
        TRAINING.signatures(),
        params=TRAINING.state,
        trainable=["params"],
        weight_signatures=["get_weights", "reset_weights"],
    )
    state: Any = TRAINING.state
    step, expected = jax.jit(TRAINING.train), []
    for _ in range(CALLERS * CALLS):
        outputs, state = step(state, TRAINING.x, TRAINING.y)
        expected.append(float(outputs["loss"]))
    answer = np.asarray(TRAINING.predict(state, TRAINING.x))

    with serving(runtime, read_instructions(str(saved.serving)), tmp_path) as server:
        with ThreadPoolExecutor(CALLERS) as pool:
            losses = [loss for own in pool.map(train, [server] * CALLERS) for loss in own]
        np.testing.assert_allclose(sorted(losses), sorted(expected), rtol=1e-4)
        with connect(server) as predict:
            (output,) = predict({"x": TRAINING.x}, "predict").values()
            np.testing.assert_allclose(output, answer, rtol=1e-3, atol=1e-4)
            weights = predict({}, "get_weights")
            assert weights["optimizer_0_count"] == CALLERS * CALLS
        status, rest = predict_by_rest(server, {"x": TRAINING.x}, "predict")
        assert status == 200
        np.testing.assert_allclose(rest["outputs"], answer, rtol=1e-3, atol=1e-4)
        with connect(server) as predict:
            predict({}, "reset_weights")
            (output,) = predict({"x": TRAINING.x}, "predict").values()
        before = TRAINING.predict(TRAINING.state, TRAINING.x)
        np.testing.assert_allclose(output, before, rtol=1e-3, atol=1e-4)
