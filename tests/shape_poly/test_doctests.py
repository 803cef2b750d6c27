"""Runs the examples in the docstrings of shape_poly."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import shape_poly


@pytest.mark.parametrize(
    "name",
    ["shape_poly", *(m.name for m in pkgutil.iter_modules(shape_poly.__path__, "shape_poly."))],
)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
