"""Runs a check for one program after another, so that a crash or a hang costs only its program.

A check may note the errors of what it compares; the largest ones are in the program's outcome.
"""

from __future__ import annotations

import faulthandler
import time
import traceback
from collections.abc import Callable, Iterable

from tests.consumers.exchange import Outcome, Report

PATIENCE_SECONDS = 300

_errors: dict[str, float] = {}


def note_error(name: str, error: float) -> None:
    """Notes an error; only the largest one of each name is kept."""
    _errors[name] = max(error, _errors.get(name, 0.0))


def take_errors() -> dict[str, float]:
    """Returns the errors since the last call."""
    errors = dict(_errors)
    _errors.clear()
    return errors


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
        outcome = Outcome(name, tuple(failures), seconds, take_errors())
        report.finish(outcome)
        print(outcome, flush=True)


def _text(error: Exception) -> str:
    places = [
        f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    return f"{type(error).__name__}: {str(error)[:1500]} (at {' > '.join(places[-4:])})"
