"""`jax2tf-bridge coreml`: what its errors say; tests/consumers/test_core_ml.py writes packages."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

# Private: the message about sizes comes after coremltools was imported.
from jax2tf_bridge.cli._console import format_for_command_line
from jax2tf_bridge.coreml._save import find_shapes
from jax2tf_bridge.errors import SavingError, get_message
from jax2tf_bridge.signatures import ServedArray
from shape_poly import symbolic_shape
from tests.cli.conftest import Run
from tests.plugins.blocked_imports import blocked


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (
            ["-o", "cube.mlpackage", "--sizes", "n=8..1"],
            2,
            "argument --sizes: expected open sizes with their values or ranges, as b=1 or "
            "b=1..8,n=128. Got: n=8..1 (jax2tf-bridge coreml --help says more)",
        ),
        (
            ["-o", "cube.mlpackage", "--sizes", "n=1,x.0=2", "--sizes", "n=2"],
            2,
            "--sizes: n is given twice",
        ),
        (
            ["-o", "cube"],
            1,
            "A Core ML package needs a name that ends with .mlpackage. Got: cube.",
        ),
        (
            ["-o", "cube.mlpackage"],
            1,
            "Writing a Core ML package needs coremltools, which is not installed here. Install it "
            "with: pip install 'jax2tf-bridge[coreml]'",
        ),
    ],
)
def test_a_package_is_refused(run: Run, cube: str, words: list[str], code: int, error: str) -> None:
    with blocked("coremltools"):
        ended = run("coreml", cube, *words)
    assert (ended.code, ended.error) == (code, error)
    assert not Path("cube.mlpackage").exists()


def test_a_model_has_its_own_weights(run: Run) -> None:
    Path("model").mkdir()
    ended = run("coreml", "model", "--params", "weights.msgpack", "-o", "model.mlpackage")
    assert (ended.code, ended.error) == (
        2,
        "--params: model is a SavedModel, which has its own weights. Remove the option",
    )


def test_advice_about_sizes_can_be_pasted() -> None:
    with pytest.raises(SavingError) as caught:
        find_shapes({"x": ServedArray("float32", symbolic_shape("(b, 3)"))}, {})
    message = format_for_command_line(
        get_message(caught.value), argparse.Namespace(command="coreml")
    )
    assert message == (
        "Core ML needs the size b of the input x: float32[b,3], or its range. Pass --sizes b=1, or "
        "--sizes b=1..8."
    )
