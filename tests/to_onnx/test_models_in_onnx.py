"""The real models in ONNX Runtime, with weights within and open sizes, against JAX."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumers.conftest import Recorder
from tests.consumers.exchange import Report
from tests.fresh_process import run_python
from tests.models.model import Model
from tests.models.table import MODELS, QUICK
from tests.to_onnx.differences import find_differences


@pytest.mark.parametrize("model", QUICK, ids=str)
def test_values_of_a_quick_model_are_those_of_jax(model: Model, tmp_path: Path) -> None:
    assert list(find_differences(model, model.build(), tmp_path / "m.onnx")) == []


@pytest.mark.slow
def test_values_of_all_models_are_those_of_jax(tmp_path: Path, record: Recorder) -> None:
    code = """
        import runpy, sys
        runpy.run_module("tests.to_onnx.models_in_onnx", run_name="__main__")
    """
    run_python(code, str(tmp_path), env={"PYTHONPATH": str(Path(__file__).parents[2])})
    outcomes = Report(tmp_path / "report.jsonl").outcomes()
    assert [*outcomes] == [model.name for model in MODELS]
    assert [str(outcome) for outcome in outcomes.values() if outcome.failures] == []
    for name, outcome in outcomes.items():
        record("ONNX Runtime", name, "open", outcome.errors["open"], outcome.measures["open"])
