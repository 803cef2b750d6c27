"""The real models in ONNX Runtime, with weights within and open sizes, against JAX."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fresh_process import run_python
from tests.models.model import Model
from tests.models.table import QUICK
from tests.to_onnx.differences import find_differences


@pytest.mark.parametrize("model", QUICK, ids=str)
def test_values_of_a_quick_model_are_those_of_jax(model: Model, tmp_path: Path) -> None:
    assert list(find_differences(model, model.build(), tmp_path / "m.onnx")) == []


@pytest.mark.slow
def test_values_of_all_models_are_those_of_jax(tmp_path: Path) -> None:
    code = """
        import runpy, sys
        runpy.run_module("tests.to_onnx.models_in_onnx", run_name="__main__")
    """
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    assert run_python(code, str(tmp_path), env=env) == "done"
