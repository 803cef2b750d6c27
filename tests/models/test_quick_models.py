"""Quickest of the real models, saved and served here; tests/consumers has the rest."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.comparing import compare
from tests.models.expected import export_model
from tests.models.model import Model
from tests.models.served import served_differences
from tests.models.table import MODELS, QUICK


@pytest.mark.costly
@pytest.mark.parametrize("model", QUICK, ids=str)
def test_values_and_gradients_are_those_of_jax(model: Model, tmp_path: Path) -> None:
    export_model(model, tmp_path / "exported")
    assert served_differences(tmp_path / "exported") == []


def test_the_table_has_models_of_every_library_and_no_name_twice() -> None:
    assert {m.library for m in MODELS} == {"linen", "nnx", "Keras", "JAX"}
    assert len({m.name for m in MODELS}) == len(MODELS) >= 12
    assert all("b" in str(m.polymorphic_shapes) or "n" in str(m.polymorphic_shapes) for m in MODELS)


def test_calls_differ_in_size_from_the_example() -> None:
    for model in QUICK:
        built = model.build()
        shapes = [[np.shape(a) for a in args[:1]] for args in (built.example, *built.calls)]
        assert all(shapes[0] != other for other in shapes[1:])


@pytest.mark.parametrize(
    ("got", "expected", "floor", "line"),
    [
        (
            np.array([1, 2.2], np.float32),
            np.array([1, 2], np.float32),
            0,
            "x: differs by 0.2 of 2 (at most 0.01)",
        ),
        (
            np.array([0, 1e-3], np.float32),
            np.array([0, 0], np.float32),
            0,
            "x: differs by 0.001 of 0",
        ),
        (
            np.array([np.nan], np.float32),
            np.array([1], np.float32),
            0,
            "x: 1 infinite elements or NaN differ, as 1.0 and nan",
        ),
        (np.array([1, 2], np.int32), np.array([1, 3], np.int32), 0, "x: 1 of 2 differ"),
        (
            np.array([1], np.float32),
            np.array([[1]], np.float32),
            0,
            "x: expected float32[1, 1], got float32[1]",
        ),
        (
            np.array([1], np.float64),
            np.array([1], np.float32),
            0,
            "x: expected float32[1], got float64[1]",
        ),
        (np.array([1, 2.01], np.float32), np.array([1, 2], np.float32), 0, ""),
        (np.array([0, 1e-3], np.float32), np.array([0, 0], np.float32), 1, ""),
        (np.array([1, 2], np.int32), np.array([1, 2], np.int32), 0, ""),
    ],
)
def test_what_differs_is_named(got: Any, expected: Any, floor: float, line: str) -> None:
    found = list(compare("", ["x"], [got], [expected], 0.01, floor=floor))
    assert [text[: len(line)] for text in found] == ([line] if line else [])
