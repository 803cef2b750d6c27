"""Real models with random weights: in TensorFlow alone, in Keras layers, and in LiteRT."""

from __future__ import annotations

import sys

import pytest

from tests.consumers.conftest import Recorder
from tests.consumers.exchange import OPERATIONS, Outcome
from tests.consumers.harness import CONSUMER_RELEASES, NEWEST_TENSORFLOW, Harness
from tests.models.exports import (
    PARTS,
    SAMPLE,
    WRONG_IF_QUICK,
    consumed,
    exported,
    exported_part,
    names_of_part,
    part_of,
    sampled,
)
from tests.models.model import Model
from tests.models.table import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

RELEASES = (CONSUMER_RELEASES[1], NEWEST_TENSORFLOW)
LAYERS = "Keras layers"
# In the order in which four workers of pytest have one process each to wait for.
_CASES = [(release, model) for part in PARTS for release in (*RELEASES, LAYERS) for model in part]


def _outcome(harness: Harness, release: str, model: Model) -> Outcome:
    """Runs a model's export and a TensorFlow release on it, as far as they have not run.

    Or makes layers of Keras of them, with the TensorFlow that is installed here.
    """
    as_layers = release == LAYERS
    python = sys.executable if as_layers else harness.consumer_python(release)
    part = part_of(harness, model)
    title = f"{release} on real models, part {part + 1}"
    module = "tests.models.layers" if as_layers else "tests.models.consume_models"
    exports = exported_part(harness, part)
    # The newest release without layers compiles the same models with XLA's defaults.
    command = [python, "-m", module]
    is_quick = as_layers and WRONG_IF_QUICK.isdisjoint(names_of_part(harness, part))
    return consumed(harness, title, release, command, exports, model, quickly=is_quick)


def test_the_sample_has_a_model_of_every_library() -> None:
    assert len(SAMPLE) == 4
    assert {m.library for m in MODELS if m.name in SAMPLE} == {m.library for m in MODELS}


@pytest.mark.parametrize(
    ("release", "model"),
    [
        pytest.param(*case, marks=() if case[1].name in SAMPLE else pytest.mark.complete)
        for case in _CASES
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_jax(
    harness: Harness, record: Recorder, release: str, model: Model
) -> None:
    outcome = _outcome(harness, release, model)
    assert not outcome.failures, str(outcome)
    for name, error in outcome.errors.items():
        if release == LAYERS:
            record("Keras layer", model.name, name, error)
        else:
            way = "operations" if name.startswith(OPERATIONS) else "XLA"
            measures = outcome.measures.get(name)
            record(f"TensorFlow, {way}", model.name, release, error, measures)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if model.name in SAMPLE else pytest.mark.complete)
        for model in MODELS
    ],
    ids=str,
)
def test_values_in_litert_are_those_of_jax(
    harness: Harness, record: Recorder, model: Model
) -> None:
    """Runs the models where there is neither JAX nor TensorFlow, at one size and at several."""
    command = [harness.litert_python(), "-m", "tests.models.consume_litert"]
    title = "writing real models for LiteRT"
    exports = exported(harness, title, "litert", "tests.models.export_litert", sampled(harness))
    outcome = consumed(harness, "LiteRT on real models", "litert", command, exports, model)
    assert not outcome.failures, str(outcome)
    for case, error in outcome.errors.items():
        record("LiteRT", model.name, case, error, outcome.measures.get(case))
