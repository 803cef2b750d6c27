"""Cases as TensorFlow's own operations; tests/consumers runs all, on every TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.consumers.exchange import read_arrays, write_arrays
from tests.consumers.own_operations import without_xla
from tests.primitives.case import Case
from tests.primitives.consume_operations import case_differences
from tests.primitives.differing import reasons
from tests.primitives.export_operations import export_cases
from tests.primitives.table import CASES, SUBJECTS
from tests.sampling import sampled


def _differences(cases: Sequence[Case], folder: Path) -> dict[str, list[str]]:
    export_cases(cases, without_xla(), folder)
    found = {case.name: case_differences(folder / str(CASES.index(case))) for case in cases}
    return {name: texts for name, texts in found.items() if texts}


@pytest.mark.costly
@pytest.mark.parametrize("part", sampled([0, 1], every=2, others=pytest.mark.slow))
def test_a_sample_of_every_subject(part: int, tmp_path: Path) -> None:
    """So that the fast tests notice when an operation has lost its form.

    They try every other subject so, and those between with XLA (test_matrix.py).
    """
    firsts = [
        next(c for c in cases if not c.x64 and c.exists and c.name not in reasons())
        for cases in SUBJECTS.values()
    ]
    assert _differences(firsts[part::2], tmp_path) == {}


def test_what_differs_is_found(tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == "jax.lax.neg[float32]")
    assert _differences([case], tmp_path) == {}
    folder = tmp_path / str(CASES.index(case))
    arrays = read_arrays(folder / "batch-2.npz")
    arrays["results"][0][1] += 1
    write_arrays(folder / "batch-2.npz", arrays)
    (text,) = case_differences(folder)
    assert text.startswith("batch: batch of 2: result 0 differs at (1, 0")
    (folder / "static.failure").write_text("ExportError: it cannot be said")
    assert case_differences(folder)[0] == "static: at export, ExportError: it cannot be said"
    (folder / "batch.pickle").unlink()
    assert "FileNotFoundError" in case_differences(folder)[1]


def test_what_differs_is_listed_with_a_reason_by_the_names_of_cases() -> None:
    names = {case.name for case in CASES}
    assert set(reasons()) <= names
    assert all(reasons().values())


def test_nearly_all_functions_agree() -> None:
    """The table of reasons is for what TensorFlow cannot say, not for what is not done."""
    functions = {case.target for case in CASES}
    differing = {case.target for case in CASES if case.name in reasons()}
    assert len(differing) <= 0.05 * len(functions), sorted(differing)
