"""Real models in onnxruntime and in OpenVINO, at several sizes, by docs/onnx-and-openvino.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumers.conftest import Recorder
from tests.consumers.exchange import Outcome
from tests.consumers.harness import ONNX, OPENVINO, Harness
from tests.models.exports import consumed, exported, sampled
from tests.models.model import Model
from tests.models.table import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

_COLUMNS = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}
# Of those that are converted soon: a loop, random numbers, and embeddings.
_SAMPLE = frozenset({"lstm", "actor_critic", "recommender"})
_PAGE = Path(__file__).parents[2] / "docs" / "onnx-and-openvino.md"


def _outcome(harness: Harness, runtime: str, model: Model) -> Outcome:
    """Writes the models and runs them, as far as this is not done."""
    title = "writing real models for converters"
    module = "tests.models.export_for_converters"
    exports = exported(harness, title, "converters", module, sampled(harness, _SAMPLE))
    command = [harness.converter_python(runtime), "-m", "tests.models.consume_converted", runtime]
    return consumed(harness, f"{runtime} on real models", runtime, command, exports, model)


@pytest.mark.parametrize(
    ("runtime", "model"),
    [
        pytest.param(runtime, model, marks=() if model.name in _SAMPLE else pytest.mark.complete)
        for runtime in ("onnx", "openvino")
        for model in MODELS
    ],
    ids=str,
)
def test_values_are_those_of_jax(
    harness: Harness, record: Recorder, runtime: str, model: Model
) -> None:
    outcome = _outcome(harness, runtime, model)
    assert not outcome.failures, str(outcome)
    record(_COLUMNS[runtime], model.name, "open", outcome.errors["open"])


@pytest.mark.checkout
def test_the_page_has_what_is_tested() -> None:
    text = _PAGE.read_text()
    for requirement in (*ONNX[:2], OPENVINO):
        assert requirement.replace("==", " ") in text
    for part in ("--saved-model model --output model.onnx --opset 18", "INFERENCE_PRECISION_HINT"):
        assert part in text
    for model in MODELS:
        assert f"| `{model.name}` |" in text
