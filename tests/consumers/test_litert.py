"""Real models in LiteRT, where there is neither JAX nor TensorFlow, at one size and at several."""

from __future__ import annotations

import sys

import pytest

from tests.consumers.conftest import Recorder
from tests.consumers.exchange import Outcome, Report
from tests.consumers.harness import Harness
from tests.models.model import Model
from tests.models.table import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

# One of each library, of those that compile soon.
_SAMPLE = {"lstm", "actor_critic", "recommender", "keras_text"}


def _outcome(harness: Harness, model: Model) -> Outcome:
    """Writes the models and runs them, as far as this is not done."""
    python = harness.litert_python()
    names = [m.name for m in MODELS if harness.whole or m.name in _SAMPLE]
    folder = harness.folder / "litert"
    folder.mkdir(exist_ok=True)
    export = Report(folder / "export.jsonl")
    module = "tests.models.export_litert"
    title = "writing real models for LiteRT"
    harness.complete(title, [sys.executable, "-m", module, folder, *names], export)
    exports = export.outcomes()
    if exports[model.name].failures:
        return exports[model.name]
    good = [name for name in names if not exports[name].failures]
    report = Report(folder / "litert.jsonl")
    module = "tests.models.consume_litert"
    command = [python, "-m", module, folder, report.path, *good]
    harness.complete("LiteRT on real models", command, report)
    return report.outcomes()[model.name]


def test_the_sample_has_a_model_of_every_library() -> None:
    assert {m.library for m in MODELS if m.name in _SAMPLE} == {m.library for m in MODELS}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if model.name in _SAMPLE else pytest.mark.complete)
        for model in MODELS
    ],
    ids=str,
)
def test_values_are_those_of_jax(harness: Harness, record: Recorder, model: Model) -> None:
    outcome = _outcome(harness, model)
    assert not outcome.failures, str(outcome)
    for case, error in outcome.errors.items():
        record("LiteRT", model.name, case, error)
