"""Programs and the shape corpus in ONNX Runtime and in OpenVINO, at several sizes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.consumers.export_for_converters import EXPORTED, Exported
from tests.consumers.harness import Harness
from tests.consumers.refused_by_converters import REFUSED
from tests.models.exports import consumed, exported

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

# Of those that are exported soon: a loop, random numbers, bfloat16, indices, and images.
_SAMPLE = frozenset({"gru_scan", "prng", "bf16", "segments", "conv_symbolic_image", "mlp_symbolic"})
_RUNTIMES = ("onnx", "openvino")
_PAGE = Path(__file__).parents[2] / "docs" / "onnx-and-openvino.md"


@pytest.mark.parametrize(
    ("runtime", "each"),
    [
        pytest.param(runtime, each, marks=() if each.name in _SAMPLE else pytest.mark.complete)
        for runtime in _RUNTIMES
        for each in EXPORTED
    ],
    ids=str,
)
def test_values_are_those_of_jax(harness: Harness, runtime: str, each: Exported) -> None:
    title = "writing programs for converters"
    module = "tests.consumers.export_for_converters"
    names = [e.name for e in EXPORTED if harness.whole or e.name in _SAMPLE]
    exports = exported(harness, title, "converted-programs", module, names)
    command = [harness.converter_python(runtime), "-m", "tests.models.consume_converted", runtime]
    outcome = consumed(harness, f"{runtime} on programs", runtime, command, exports, each)
    said = REFUSED[runtime].get(each.name)
    if said is None:
        assert not outcome.failures, str(outcome)
    else:
        assert outcome.failures, f"{runtime} takes {each} now: take it off the list"
        assert said in str(outcome), str(outcome)


@pytest.mark.checkout
def test_the_page_has_how_many_there_are() -> None:
    text = _PAGE.read_text()
    kinds = Counter(each.name.startswith("case-") for each in EXPORTED)
    for is_case, title in ((False, "programs"), (True, "cases of the shape corpus")):
        row = [title, str(kinds[is_case])]
        for runtime in _RUNTIMES:
            refused = sum(name.startswith("case-") == is_case for name in REFUSED[runtime])
            row.append(str(kinds[is_case] - refused))
        cells = r" \| ".join(map(re.escape, row))
        assert re.search(rf"\| {cells} \|", text), row
