"""Fixtures of the other runtimes, for the tests of archives."""

from tests.consumers.conftest import harness as harness
