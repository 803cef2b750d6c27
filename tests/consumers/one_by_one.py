"""Runs a check for one program after another, so that a crash or a hang costs only its program.

A check may note the errors of what it compares, the size of a model, and the time of its calls.
They are in the program's outcome.
"""

from __future__ import annotations

import faulthandler
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.consumers.exchange import Outcome, Report

PATIENCE_SECONDS = 300

RECORD_TIMES = "JAX2TF_BRIDGE_RECORD_TIMES"
"""Variable with which the time of calls is measured, on a machine that does nothing else."""

_TIMED_CALLS, _WARM_UP_CALLS = 20, 3

_errors: dict[str, float] = {}
_measures: dict[str, dict[str, float]] = {}


def note_error(name: str, error: float) -> None:
    """Notes an error; only the largest one of each name is kept."""
    _errors[name] = max(error, _errors.get(name, 0.0))


def take_errors() -> dict[str, float]:
    """Returns the errors since the last call."""
    errors = dict(_errors)
    _errors.clear()
    return errors


def note_size(name: str, path: Path) -> None:
    """Notes the size of a file, or of all files in a folder, in bytes."""
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    _measures.setdefault(name, {})["bytes"] = size


def note_time(name: str, call: Callable[[], object]) -> None:
    """Notes the median time of a call in milliseconds, if RECORD_TIMES is set."""
    if RECORD_TIMES not in os.environ:
        return
    times = []
    for _ in range(_WARM_UP_CALLS + _TIMED_CALLS):
        start = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - start))
    note_median(name, times)


def note_median(name: str, times: list[float]) -> None:
    """Notes the median of the times of calls in milliseconds, without the first calls."""
    _measures.setdefault(name, {})["ms"] = statistics.median(times[_WARM_UP_CALLS:])


def take_measures() -> dict[str, dict[str, float]]:
    """Returns the sizes and times since the last call, by name."""
    measures = dict(_measures)
    _measures.clear()
    return measures


def one_by_one(report: Report, names: Iterable[str], check: Callable[[str], list[str]]) -> None:
    """Runs `check` for each program that the report does not have yet, and prints a line for each.

    Args:
      report: where the outcomes go. The process ends itself, with a traceback, when one program
        takes longer than PATIENCE_SECONDS; started again, it goes on behind it.
      names: of the programs.
      check: gives the failures of a program, none if all is well; what it raises is one too.
    """
    done = report.outcomes()
    for name in names:
        if name in done:
            continue
        report.start(name)
        faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
        start = time.monotonic()
        try:
            failures = check(name)
        except Exception as e:
            failures = [_text(e)]
        faulthandler.cancel_dump_traceback_later()
        seconds = round(time.monotonic() - start, 2)
        outcome = Outcome(name, tuple(failures), seconds, take_errors(), take_measures())
        report.finish(outcome)
        print(outcome, flush=True)


def _text(error: Exception) -> str:
    places = [
        f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    return f"{type(error).__name__}: {str(error)[:1500]} (at {' > '.join(places[-4:])})"
