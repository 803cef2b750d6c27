"""Fixtures for the comparisons with jax2tf."""

from typing import Any

import pytest

from tests.compat.installed_jax2tf import installed_jax2tf


@pytest.fixture(scope="module")
def jax2tf() -> Any:
    return installed_jax2tf()
