"""Runs tests that ask for a `way` in eager mode, and compiled by JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

Way: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(params=["eager", "jit"])
def way(request: pytest.FixtureRequest) -> Way:
    if request.param == "eager":
        return lambda f: f
    # All conftest.py are loaded where tests run without JAX, too.
    import jax

    return jax.jit
