"""Fixtures for the other runtimes, and the loud line about what this machine could not run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.consumers.harness import Harness


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Harness:
    """The runs, shared by the workers of one pytest."""
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent
    folder = base / "consumers"
    folder.mkdir(exist_ok=True)
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"-- {text}", file=sys.stderr, flush=True)

    return Harness(folder, say)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says once for each reason what was left out here, since a skip is easily overlooked."""
    folder = str(Path(__file__).parent)
    reasons = {
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and str(report.longrepr[0]).startswith(folder)
    }
    for reason in sorted(reasons):
        terminalreporter.write_sep("!", "not tested on this machine", red=True, bold=True)
        terminalreporter.write_line(f"WARNING: {reason}", red=True)
