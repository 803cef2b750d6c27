"""Prints loudly, at the end of a run, what it could not test, and failures that do not end CI.

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
    """Prints why tests of the other runtimes were skipped, and expected failures in them, once."""
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
    for report in terminalreporter.stats.get("xfailed", []):
        if str(Path(__file__).parents[2] / report.nodeid).startswith(_FOLDERS):
            terminalreporter.write_sep("!", "failed, which does not end CI", red=True, bold=True)
            terminalreporter.write_line(f"WARNING: {report.wasxfail}", red=True)
