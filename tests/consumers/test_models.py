"""Real models with random weights, served with open sizes where there is TensorFlow alone.

Each is exported once; two processes share the exports, since compiling is what takes time.
"""

from __future__ import annotations

import sys

import pytest

from tests.consumers.exchange import Outcome, Report
from tests.consumers.harness import (
    NEWEST_TENSORFLOW,
    TENSORFLOW_RELEASES,
    Harness,
)
from tests.models.model import Model
from tests.models.table import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

RELEASES = (TENSORFLOW_RELEASES[1], NEWEST_TENSORFLOW)
_HALF = (len(MODELS) + 1) // 2
_PARTS = (MODELS[:_HALF], MODELS[_HALF:])
# One of each library, of those that compile soon.
_SAMPLE = {"lstm", "actor_critic", "recommender", "keras_text"}
LAYERS = "Keras layers"
# In the order in which four workers of pytest have one process each to wait for.
_CASES = [(release, model) for part in _PARTS for release in (*RELEASES, LAYERS) for model in part]


def _outcome(harness: Harness, release: str, model: Model) -> Outcome:
    """Runs a model's export and a TensorFlow release on it, as far as they have not run.

    Or makes layers of Keras of them, with the TensorFlow that is installed here.
    """
    as_layers = release == LAYERS
    python = sys.executable if as_layers else harness.consumer_python(release)
    part = next(i for i, models in enumerate(_PARTS) if model in models)
    names = [m.name for m in _PARTS[part] if harness.whole or m.name in _SAMPLE]
    folder = harness.folder / f"models-{part}"
    folder.mkdir(exist_ok=True)
    title = f"exporting real models, part {part + 1} of {len(_PARTS)}"
    export = Report(folder / "export.jsonl")
    module = "tests.models.export_models"
    harness.complete(title, [sys.executable, "-m", module, folder, *names], export)
    exports = export.outcomes()
    if exports[model.name].failures:
        return exports[model.name]
    good = [name for name in names if not exports[name].failures]
    report = Report(folder / f"{release}.jsonl")
    title = f"{release} on real models, part {part + 1} of {len(_PARTS)}"
    module = "tests.models.layers" if as_layers else "tests.models.consume_models"
    harness.complete(title, [python, "-m", module, folder, report.path, *good], report)
    return report.outcomes()[model.name]


def test_the_sample_has_a_model_of_every_library() -> None:
    assert len(_SAMPLE) == 4
    assert {m.library for m in MODELS if m.name in _SAMPLE} == {m.library for m in MODELS}


@pytest.mark.parametrize(
    ("release", "model"),
    [
        pytest.param(*case, marks=() if case[1].name in _SAMPLE else pytest.mark.complete)
        for case in _CASES
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_jax(
    harness: Harness, release: str, model: Model
) -> None:
    outcome = _outcome(harness, release, model)
    assert not outcome.failures, str(outcome)
