"""Prints loudly, at the end of a run, what this machine could not test.

A hook for conftest.py: of the outermost one, since the controller of pytest-xdist reads no other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_FOLDERS = tuple(
    str(Path(__file__).parents[1] / name)
    for name in ("archives", "consumers", "scoring", "serving")
)
_SAID = pytest.StashKey[bool]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says each reason for which tests of the other runtimes were skipped, once."""
    if terminalreporter.config.stash.get(_SAID, False):
        return
    terminalreporter.config.stash[_SAID] = True
    reasons = {
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and str(report.longrepr[0]).startswith(_FOLDERS)
    }
    for reason in sorted(reasons):
        terminalreporter.write_sep("!", "not tested on this machine", red=True, bold=True)
        terminalreporter.write_line(f"WARNING: {reason}", red=True)
