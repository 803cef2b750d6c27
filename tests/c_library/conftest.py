"""Shares the fixtures of the other runtimes."""

from tests.consumers.conftest import harness as harness
from tests.consumers.conftest import pytest_runtest_call as pytest_runtest_call
