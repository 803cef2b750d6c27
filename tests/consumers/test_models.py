"""Real models with random weights, served with open sizes where there is TensorFlow alone.

Each is exported once; two processes share the exports, since compiling is what takes time.
"""

from __future__ import annotations

import sys

import pytest

from tests.consumers.environments import locked
from tests.consumers.exchange import Outcome, Report
from tests.consumers.harness import Harness, NotAvailableError, run_to_the_end
from tests.models.model import Model
from tests.models.table import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

RELEASES = ("2.17.1", "2.21.0")
_HALF = (len(MODELS) + 1) // 2
_PARTS = (MODELS[:_HALF], MODELS[_HALF:])
# One of each library, of those that compile soon.
_SAMPLE = {"lstm", "actor_critic", "recommender", "keras_text"}
# In the order in which four workers of pytest have one process each to wait for.
_CASES = [(release, model) for part in _PARTS for release in RELEASES for model in part]


def _run(
    harness: Harness, report: Report, title: str, python: str, *words: str
) -> dict[str, Outcome]:
    """What came of a run, which the first who asks starts."""
    finished = report.path.with_suffix(".finished")
    with locked(report.path.with_suffix(".lock")):
        if not finished.exists():
            run_to_the_end(title, [python, "-m", *words], report, harness.stage(), say=harness.say)
            finished.touch()
    return report.outcomes()


def _outcome(harness: Harness, release: str, model: Model) -> Outcome:
    """How a model came out, at its export or in a TensorFlow release."""
    python = str(harness.consumer_python(release))
    part = next(i for i, models in enumerate(_PARTS) if model in models)
    names = [m.name for m in _PARTS[part] if harness.whole or m.name in _SAMPLE]
    folder = harness.folder / f"models-{part}"
    folder.mkdir(exist_ok=True)
    title = f"exporting real models, part {part + 1} of {len(_PARTS)}"
    words = ("tests.models.export_models", str(folder), *names)
    exports = _run(harness, Report(folder / "export.jsonl"), title, sys.executable, *words)
    if exports[model.name].failures:
        return exports[model.name]
    good = [name for name in names if not exports[name].failures]
    report = Report(folder / f"{release}.jsonl")
    title = f"TensorFlow {release} on real models, part {part + 1} of {len(_PARTS)}"
    words = ("tests.models.consume_models", str(folder), str(report.path), *good)
    return _run(harness, report, title, python, *words)[model.name]


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
    try:
        outcome = _outcome(harness, release, model)
    except NotAvailableError as e:
        pytest.skip(str(e))
    assert not outcome.failures, str(outcome)
