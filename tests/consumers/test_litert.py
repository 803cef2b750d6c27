"""Real models in LiteRT, where there is neither JAX nor TensorFlow, at one size and at several."""

from __future__ import annotations

import pytest

from tests.consumers.conftest import Recorder
from tests.consumers.exchange import Outcome
from tests.consumers.harness import Harness
from tests.models.exports import SAMPLE, consumed, exported, sampled
from tests.models.model import Model
from tests.models.table import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]


def _outcome(harness: Harness, model: Model) -> Outcome:
    """Writes the models and runs them, as far as this is not done."""
    command = [harness.litert_python(), "-m", "tests.models.consume_litert"]
    title = "writing real models for LiteRT"
    module = "tests.models.export_litert"
    exports = exported(harness, title, "litert", module, sampled(harness))
    return consumed(harness, "LiteRT on real models", "litert", command, exports, model)


def test_the_sample_has_a_model_of_every_library() -> None:
    assert {m.library for m in MODELS if m.name in SAMPLE} == {m.library for m in MODELS}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if model.name in SAMPLE else pytest.mark.complete)
        for model in MODELS
    ],
    ids=str,
)
def test_values_are_those_of_jax(harness: Harness, record: Recorder, model: Model) -> None:
    outcome = _outcome(harness, model)
    assert not outcome.failures, str(outcome)
    for case, error in outcome.errors.items():
        record("LiteRT", model.name, case, error)
