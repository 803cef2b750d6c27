"""Measures the CPU time of each test, child processes included, and writes it to a file.

CPU time hardly depends on what else the machine does, so a limit on it can fail a run; scripts/
has the limit and prints the table. What tests share is charged to one of them: a fixture to the
test that makes it, a process to the one at whose end it is waited for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

OPTION = "--cpu-times"
_CPU, _WALL = "cpu_seconds", "wall_seconds"
_STARTED = pytest.StashKey[tuple[float, float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION,
        metavar="FILE",
        help="write the CPU and wall seconds of each test to this file, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(OPTION)
    if path and not hasattr(config, "workerinput"):  # which xdist gives its workers
        config.pluginmanager.register(_Writer(Path(path)))


class _Writer:
    """Collects what the reports say, from the workers too."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.rows: list[dict[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = dict(report.user_properties)
        if _CPU in found:
            self.rows.append({"test": report.nodeid, "cpu": found[_CPU], "wall": found[_WALL]})

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.rows))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_STARTED] = (_cpu_seconds(), time.perf_counter())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        cpu, wall = item.stash[_STARTED]
        report.user_properties.append((_CPU, round(_cpu_seconds() - cpu, 3)))
        report.user_properties.append((_WALL, round(time.perf_counter() - wall, 3)))
    return report


def _cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of the children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
