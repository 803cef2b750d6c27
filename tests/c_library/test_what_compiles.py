"""The programs of the table and the real models as C libraries give JAX's results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts._env import ROOT
from tests.c_library.compile_programs import AGREES, compile_programs
from tests.consumers.conftest import Recorder
from tests.consumers.exchange import Report
from tests.consumers.harness import Harness
from tests.models.exports import sampled
from tests.models.model import Model
from tests.models.table import MODELS
from tests.programs import PROGRAMS, Program, by_name

REFUSED = {
    "fft": "has a Fourier transform",
    "fft_symbolic": "has a Fourier transform",
    "fp8_arguments": "of float8_e4m3fn, for which the C library has no type",
    "no_results": "has no outputs",
}
"""A part of the error of each program that is not compiled."""
_SAMPLE = ("control_flow", "sort_top_k", "prng", "complex64", "bf16", "qr", "no_results")
_MODEL = "actor_critic"
"""The model that compiles soonest."""


@pytest.mark.checkout
def test_the_page_has_these_numbers() -> None:
    page = (ROOT / "docs" / "c-library.md").read_text()
    assert f"| models | {len(MODELS)} | {len(MODELS)} |" in page
    assert f"| programs | {len(PROGRAMS)} | {len(PROGRAMS) - len(REFUSED)} |" in page


@pytest.mark.slow
@pytest.mark.consumers
@pytest.mark.usefixtures("cmake")
@pytest.mark.parametrize(
    "programs",
    [
        pytest.param([*map(by_name, _SAMPLE)], id="sample"),
        pytest.param(PROGRAMS, id="all", marks=pytest.mark.complete),
    ],
)
def test_programs(programs: Sequence[Program], tmp_path: Path) -> None:
    results = compile_programs(tmp_path, programs)
    names = {program.name for program in programs}
    failures = {name: result for name, result in results.items() if result != AGREES}
    assert failures.keys() == names & REFUSED.keys(), failures
    for name, result in failures.items():
        assert REFUSED[name] in result


@pytest.mark.slow
@pytest.mark.consumers
@pytest.mark.usefixtures("cmake")
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if model.name == _MODEL else pytest.mark.complete)
        for model in MODELS
    ],
    ids=str,
)
def test_models(harness: Harness, record: Recorder, model: Model) -> None:
    folder = harness.folder / "c-library"
    report = Report(folder / "export.jsonl")
    names = sampled(harness, {_MODEL})
    command = [sys.executable, "-m", "tests.c_library.compile_models", folder, *names]
    folder.mkdir(exist_ok=True)
    harness.complete("compiling real models to C", command, report)
    outcome = report.outcomes()[model.name]
    assert not outcome.failures, str(outcome)
    for case, error in outcome.errors.items():
        record("C library", model.name, case, error, outcome.measures.get(case))
