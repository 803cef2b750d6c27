"""jax2tf of the installed JAX, without its warning."""

import warnings
from typing import Any

import pytest


def installed_jax2tf() -> Any:
    """Imports jax.experimental.jax2tf; skips where this JAX has it no more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            "jax.experimental.jax2tf", reason="this JAX has no jax2tf any more"
        )
