"""Shares the fixtures of the other runtimes, and finds CMake."""

import shutil

import pytest

from tests.consumers.conftest import harness as harness
from tests.consumers.conftest import pytest_runtest_call as pytest_runtest_call
from tests.consumers.conftest import pytest_runtest_setup as pytest_runtest_setup
from tests.consumers.conftest import record as record
from tests.consumers.harness import NotAvailableError


@pytest.fixture(scope="session")
def cmake() -> None:
    """Skips tests where CMake is not installed; the summary says so loudly."""
    if shutil.which("cmake") is None:
        raise NotAvailableError("no cmake on the PATH: C libraries were NOT built by CMake")
