"""Runs tests that ask for a `way` in eager mode, and compiled by JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import pytest

Way: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(params=[lambda f: f, jax.jit], ids=["eager", "jit"])
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found
