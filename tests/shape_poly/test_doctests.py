"""Runs the examples in the docstrings of shape_poly."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import shape_poly

FOLDER = Path(str(shape_poly.__file__)).parent
WITH_EXAMPLES = sorted(
    f"shape_poly.{path.stem}".removesuffix(".__init__")
    for path in FOLDER.glob("*.py")
    if ">>>" in path.read_text()
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
