"""Real models as Core ML packages, whose programs run on Linux by coremltools' value inference."""

from __future__ import annotations

import itertools

import pytest

from tests.consumers.harness import Harness
from tests.models.exports import consumed, exported, sampled
from tests.models.model import Model
from tests.models.table import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

# Those that other converters take as well, so that they are exported once.
_MODELS = frozenset({"actor_critic", "recommender"})
_WITH_OPEN_SIZES = frozenset(
    {
        "actor_critic",
        "dual_encoder",
        "keras_mobilenet",
        "quantised_dense",
        "recommender",
        "resnet50",
        "vae",
    }
)


@pytest.mark.parametrize(
    ("sizes", "model"),
    [
        pytest.param(
            sizes,
            model,
            marks=() if model.name in _MODELS and sizes == "fixed" else pytest.mark.complete,
        )
        for sizes, model in itertools.product(("fixed", "open"), MODELS)
        if sizes == "fixed" or model.name in _WITH_OPEN_SIZES
    ],
    ids=str,
)
def test_values_are_those_of_jax(harness: Harness, sizes: str, model: Model) -> None:
    title, folder = "writing real models for converters", "converters-real-models"
    module = "tests.models.export_for_converters"
    exports = exported(harness, title, folder, module, sampled(harness, _MODELS))
    command = [harness.converter_python("coreml"), "-m", "tests.models.consume_coreml", sizes]
    title = f"Core ML programs of {sizes} sizes"
    outcome = consumed(harness, title, f"coreml-{sizes}", command, exports, model)
    assert not outcome.failures, str(outcome)
