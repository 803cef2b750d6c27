"""Fixtures for the other runtimes, and the loud line about what this machine could not run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator

import pytest

from tests.consumers.harness import Harness, NotAvailableError
from tests.consumers.summary import pytest_terminal_summary as pytest_terminal_summary


def _skip_if_not_available() -> Generator[None, object, object]:
    """Skips a test for which this machine lacks something; the summary says so loudly."""
    try:
        return (yield)
    except NotAvailableError as e:
        pytest.skip(str(e))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Skips a test whose fixtures need what is not there."""
    return (yield from _skip_if_not_available())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skips a test that needs what is not there."""
    return (yield from _skip_if_not_available())


Recorder = Callable[..., None]


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Recorder:
    """Returns `tests.models.consumers.record`, which does nothing without --record-errors."""
    from tests.models import consumers

    if request.config.getoption("--record-errors"):
        return consumers.record
    return lambda consumer, model, way, error, measures=None: None


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Harness:
    """Returns the runs, which the workers of one pytest share."""
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent
    folder = base / "consumers"
    folder.mkdir(exist_ok=True)
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"-- {text}", file=sys.stderr, flush=True)

    # One process serves many tests: it runs a sample, unless a test of the rest is among them.
    names = ("consumers", "complete")
    whole = any(all(map(item.get_closest_marker, names)) for item in request.session.items)
    return Harness(folder, say, whole=whole)
