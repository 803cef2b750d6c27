"""Real models, programs and the shape corpus in ONNX Runtime and in OpenVINO, at several sizes.

By docs/onnx-and-openvino.md.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.conftest import Recorder
from tests.consumers.exchange import Outcome
from tests.consumers.export_for_converters import EXPORTED, MORE, Exported
from tests.consumers.harness import ONNX, OPENVINO, Harness
from tests.consumers.refused_by_converters import REFUSED
from tests.models.exports import Named, consumed, exported, sampled
from tests.models.model import Model
from tests.models.table import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

_COLUMNS = {"onnx": "tf2onnx", "openvino": "OpenVINO"}
# Models that the converters take soon: random numbers, and embeddings.
_MODELS = frozenset({"actor_critic", "recommender"})
# Programs that they take soon: a loop, bfloat16, indices, and images.
_PROGRAMS = frozenset(
    {
        "gru_scan",
        "bf16",
        "segments",
        "conv_symbolic_image",
        "mlp_symbolic",
        "infinities",
        "constants",
    }
)
_PAGE = Path(__file__).parents[2] / "docs" / "onnx-and-openvino.md"


def _pairs(functions: Iterable[Named], sample: frozenset[str]) -> list[Any]:
    """Lists each runtime with each function, as parameters of a test."""
    return [
        pytest.param(runtime, each, marks=() if each.name in sample else pytest.mark.complete)
        for runtime, each in itertools.product(_COLUMNS, functions)
    ]


def _outcome(
    harness: Harness, runtime: str, function: Named, kind: str, module: str, names: Sequence[str]
) -> Outcome:
    """Exports functions by a module and runs them, unless that was done already."""
    folder = f"converters-{kind}".replace(" ", "-")
    exports = exported(harness, f"writing {kind} for converters", folder, module, names)
    command = [harness.converter_python(runtime), "-m", "tests.models.consume_converted", runtime]
    return consumed(harness, f"{runtime} on {kind}", runtime, command, exports, function)


@pytest.mark.parametrize(("runtime", "model"), _pairs(MODELS, _MODELS), ids=str)
def test_values_of_models_are_those_of_jax(
    harness: Harness, record: Recorder, runtime: str, model: Model
) -> None:
    module, names = "tests.models.export_for_converters", sampled(harness, _MODELS)
    outcome = _outcome(harness, runtime, model, "real models", module, names)
    assert not outcome.failures, str(outcome)
    measures = outcome.measures["open"]
    record(_COLUMNS[runtime], model.name, "open", outcome.errors["open"], measures)


@pytest.mark.parametrize(("runtime", "each"), _pairs((*EXPORTED, *MORE), _PROGRAMS), ids=str)
def test_values_of_programs_are_those_of_jax(
    harness: Harness, runtime: str, each: Exported
) -> None:
    every = (*EXPORTED, *MORE)
    names = [e.name for e in every if harness.whole or e.name in _PROGRAMS]
    module = "tests.consumers.export_for_converters"
    outcome = _outcome(harness, runtime, each, "programs", module, names)
    refusal = REFUSED[runtime].get(each.name)
    if refusal is None:
        assert not outcome.failures, str(outcome)
    else:
        assert outcome.failures, f"{runtime} takes {each} now: take it off the list"
        assert refusal in str(outcome), str(outcome)


@pytest.mark.checkout
def test_the_page_has_what_is_tested() -> None:
    text = _PAGE.read_text()
    for requirement in (*ONNX[:2], OPENVINO):
        assert requirement.replace("==", " ") in text
    for part in ("--saved-model model --output model.onnx --opset 18", "INFERENCE_PRECISION_HINT"):
        assert part in text
    for model in MODELS:
        assert f"| `{model.name}` |" in text


@pytest.mark.checkout
def test_the_page_has_how_many_programs_there_are() -> None:
    text = _PAGE.read_text()
    kinds = Counter(each.name.startswith("case-") for each in EXPORTED)
    for is_case, title in ((False, "programs"), (True, "cases of the shape corpus")):
        row = [title, str(kinds[is_case])]
        for runtime in _COLUMNS:
            refused = sum(name.startswith("case-") == is_case for name in REFUSED[runtime])
            row.append(str(kinds[is_case] - refused))
        cells = r" \| ".join(map(re.escape, row))
        assert re.search(rf"\| {cells} \|", text), row
