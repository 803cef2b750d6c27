"""XLA compiles what was exported for an H100 and a TPU v5e, on a machine that has neither."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.consumers.exchange import Outcome, Report
from tests.consumers.harness import Harness, newest_exporter, sampled_programs
from tests.from_jax.test_linalg_symbolic import CASES
from tests.models.consumers import record
from tests.models.exports import SAMPLE, exported_part, part_of
from tests.models.model import Model
from tests.models.table import MODELS
from tests.programs import PROGRAMS, Program
from tests.sampling import sampled

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

_MATRICES = ("solve", "svd", "pivoted qr", "eig")


def _outcome(harness: Harness, folder: Path, name: str) -> Outcome:
    """Compiles everything in a folder that was exported, unless that was done already."""
    exports = Report(folder / "export.jsonl").outcomes()
    if exports[name].failures:
        return exports[name]
    good = [name for name, outcome in exports.items() if not outcome.failures]
    newest = Report(harness.exported(newest_exporter()) / "export.jsonl").versions()["jax"]
    report = Report(folder / "devices.jsonl")
    module = "tests.consumers.compile_for_devices"
    command = [harness.device_python(newest), "-m", module, folder, report.path, *good]
    harness.complete(f"compiling {folder.name} for H100 and v5e", command, report)
    return report.outcomes()[name]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(p, marks=() if p.name in sampled_programs() else pytest.mark.complete)
        for p in PROGRAMS
    ],
    ids=str,
)
def test_program_and_its_gradient_compile(harness: Harness, program: Program) -> None:
    outcome = _outcome(harness, harness.exported(newest_exporter()), program.name)
    assert not outcome.failures, str(outcome)


@pytest.mark.parametrize("name", sampled(list(CASES), every=len(CASES), keep=_MATRICES))
def test_linear_algebra_with_open_sizes_compiles(harness: Harness, name: str) -> None:
    folder = harness.folder / "open-matrices"
    folder.mkdir(exist_ok=True)
    names = CASES if harness.whole else dict.fromkeys((next(iter(CASES)), *_MATRICES))
    module = "tests.consumers.export_open_matrices"
    command = [sys.executable, "-m", module, folder, *names]
    report = Report(folder / "export.jsonl")
    harness.complete("exporting open matrices", command, report, quickly=True)
    outcome = _outcome(harness, folder, name)
    assert not outcome.failures, str(outcome)


@pytest.mark.parametrize(
    "model",
    [pytest.param(m, marks=() if m.name in SAMPLE else pytest.mark.complete) for m in MODELS],
    ids=str,
)
def test_loaded_model_and_its_gradient_compile(
    harness: Harness, model: Model, request: pytest.FixtureRequest
) -> None:
    folder, _ = exported_part(harness, part_of(harness, model))
    outcome = _outcome(harness, folder, model.name)
    if request.config.getoption("--record-errors"):
        result = "; ".join(outcome.failures) or True
        record("compiled for H100, v5e", model.name, "loaded", result)
    assert not outcome.failures, str(outcome)
