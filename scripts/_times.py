"""Measures where the time of a script goes: by step, folder of tests, and test; and its budget."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LARGEST_SHARE = 0.02
"""Part of the fast suite's CPU time that one test may take, child processes included.

A share, since the same test takes twice the CPU seconds on another machine, or on a busy one.
"""


@dataclass(frozen=True)
class Budget:
    """Wall seconds that a script may take on a machine with two cores.

    With the environments made beforehand, but for the demo, which makes its own from packages
    that are in the cache. CONTRIBUTING.md has the same figures for its readers.
    """

    script: str
    wall: float

    def verdict(self, wall: float) -> str:
        """Compares what a run took with the budget, for its summary."""
        text = f"budget of scripts/{self.script} on two cores: {_minutes(self.wall)}; "
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        took = f"took {_minutes(wall)}" + (f" on {cores} cores" if cores not in (0, 2) else "")
        return text + took + (", OVER BUDGET" if wall > self.wall else "")


BUDGETS = {
    budget.script: budget
    for budget in (
        Budget("test", 5 * 60),
        Budget("wheel", 7 * 60),
        Budget("slow", 30 * 60),
        Budget("demo", 45),
    )
}


@dataclass(frozen=True)
class TestTime:
    """CPU and wall seconds of one test, as the plugin tests/plugins/cpu_times.py wrote them."""

    test: str
    cpu: float
    wall: float

    @property
    def folder(self) -> str:
        """Folder below tests/, or the module where it lies beside the folders."""
        return "/".join(self.test.split("::")[0].split("/")[:2])


class Clock:
    """Measures wall seconds and the CPU seconds of child processes, from when it is made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), _children()

    def wall(self) -> float:
        """Returns the seconds since."""
        return time.monotonic() - self._wall

    def cpu(self) -> float:
        """Returns the CPU seconds since, of the children that have ended."""
        return _children() - self._cpu


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_test_times(path: Path) -> list[TestTime]:
    """Reads what pytest wrote; nothing if it ended before it could."""
    return [TestTime(**row) for row in json.loads(path.read_text())] if path.exists() else []


def over_limit(times: Sequence[TestTime], again: Sequence[TestTime] = ()) -> dict[str, str]:
    """Finds the tests of the whole fast suite that took more of its CPU time than one may.

    Args:
      times: the times of all tests.
      again: the times of tests that ran once more, which count instead of the first.

    Returns:
      A text for each such test, by its name.
    """
    whole = _sum(times, lambda t: t.cpu)
    latest = {time.test: time for time in (*times, *again)}
    return {
        time.test: f"{time.test} took {time.cpu:.1f} CPU seconds, more than {LARGEST_SHARE:.0%} of "
        f"the {whole:.0f} that all tests took"
        for time in latest.values()
        if time.cpu > LARGEST_SHARE * whole
    }


def table(times: Sequence[TestTime]) -> Iterator[str]:
    """Lays out the times by folder, dearest first, and the ten tests that took most."""
    folders: dict[str, list[TestTime]] = {}
    for row in times:
        folders.setdefault(row.folder, []).append(row)
    yield "  CPU s   wall s  tests"
    for folder, rows in sorted(folders.items(), key=lambda item: -_sum(item[1], lambda t: t.cpu)):
        cpu, wall = _sum(rows, lambda t: t.cpu), _sum(rows, lambda t: t.wall)
        yield f"{cpu:7.1f}  {wall:7.1f}  {len(rows):5}  {folder}"
    yield "the slowest ten:"
    for row in sorted(times, key=lambda t: -t.cpu)[:10]:
        yield f"{row.cpu:7.1f}  {row.wall:7.1f}         {row.test}"


def _sum(rows: Iterable[TestTime], value: Callable[[TestTime], float]) -> float:
    return sum(map(value, rows))


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
