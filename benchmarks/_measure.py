"""What the benchmarks share: interleaved timing, tables, JSON, and what they ran on."""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks._results import Report, add_report


@dataclass(frozen=True)
class Spread:
    """The middle of some measurements and where the middle half of them lies.

    `is_ratio` is true of times as multiples of an alternative's, of which less is better.
    """

    median: float
    low: float
    high: float
    is_ratio: bool = False

    @staticmethod
    def of(values: Sequence[float], *, is_ratio: bool = False) -> Spread:
        if len(values) < 2:
            return Spread(values[0], values[0], values[0], is_ratio)
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(statistics.median(values), low, high, is_ratio)

    def ratio_text(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def interleaved(
    calls: Mapping[str, Callable[[], Any]], *, rounds: int, seconds_a_turn: float = 0.02
) -> dict[str, list[float]]:
    """Seconds a call, one figure a round, for each of the calls, which take turns.

    Each round goes through all of them in an order of its own, so that what else the machine does
    meets all alike; figures of one round belong together.
    """
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        once = time.perf_counter() - start
        repeats[name] = max(1, int(seconds_a_turn / max(once, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for round_number in range(rounds):
        random.Random(round_number).shuffle(order)
        for name in order:
            call, count = calls[name], repeats[name]
            if count == 1:  # it leaves garbage that the next one is not to be charged for
                gc.collect()
            start = time.perf_counter()
            for _ in range(count):
                call()
            times[name].append((time.perf_counter() - start) / count)
    return times


def ratios(times: Mapping[str, Sequence[float]], name: str, baseline: str) -> Spread:
    """How many times as long as the baseline, paired by round."""
    found = [a / b for a, b in zip(times[name], times[baseline], strict=True)]
    return Spread.of(found, is_ratio=True)


def seconds_text(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, aligned for the terminal too."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) + " |"
        for row in lines
    )


def versions() -> dict[str, str]:
    """The releases that were measured."""
    found = {"python": platform.python_version()}
    for name in ("jax", "tensorflow-cpu", "tensorflow", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def parser(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    made.add_argument(
        "--rounds", type=int, default=rounds, help="how often each is measured (%(default)s)"
    )
    made.add_argument(
        "--json", type=Path, metavar="FILE", help="add what was measured to this file"
    )
    return made


def report(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    measured: Sequence[Mapping[str, Any]],
    *,
    json_path: Path | None,
    notes: Sequence[str] = (),
) -> None:
    """Prints the table, and adds it and the measurements to a file of results where asked to."""
    found = versions()
    print(f"\n{title}: " + ", ".join(f"{k} {v}" for k, v in found.items()) + f"; {cores()} cores\n")
    print(table(header, rows))
    for note in notes:
        print(f"\n{note}")
    if json_path:
        measurements = [
            {k: asdict(v) if isinstance(v, Spread) else v for k, v in row.items()}
            for row in measured
        ]
        add_report(
            json_path,
            Report(
                title=title,
                benchmark=Path(sys.argv[0]).stem,
                date=time.strftime("%Y-%m-%d"),
                versions=found,
                cores=cores(),
                header=list(header),
                rows=[list(row) for row in rows],
                notes=list(notes),
                measured=measurements,
            ),
        )


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def progress(text: str) -> None:
    """Says on stderr what is being measured."""
    print(f"... {text}", file=sys.stderr, flush=True)
