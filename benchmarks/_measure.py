"""Shared code of the benchmarks: interleaved timing, tables, JSON, and installed versions."""

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
    """The median and the quartiles of some measurements.

    `is_ratio` is True if they are times relative to an alternative's, where less is better.
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


def measure_interleaved(
    calls: Mapping[str, Callable[[], Any]], *, rounds: int, seconds_a_turn: float = 0.02
) -> dict[str, list[float]]:
    """Measures the seconds per call of several calls, which take turns: one figure per round.

    Each round has its own order, so that other load on the machine affects all calls alike.
    Figures of the same round can be compared in pairs.
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
            if count == 1:  # a slow call leaves garbage, which must not slow down the next call
                gc.collect()
            start = time.perf_counter()
            for _ in range(count):
                call()
            times[name].append((time.perf_counter() - start) / count)
    return times


def compute_ratios(times: Mapping[str, Sequence[float]], name: str, baseline: str) -> Spread:
    """Returns the times relative to the baseline, paired by round."""
    values = [a / b for a, b in zip(times[name], times[baseline], strict=True)]
    return Spread.of(values, is_ratio=True)


def seconds_text(seconds: float) -> str:
    """Formats a time in s, ms or µs."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table, aligned for the terminal."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) + " |"
        for row in lines
    )


def list_versions() -> dict[str, str]:
    """Returns the installed versions of Python, JAX, TensorFlow and NumPy."""
    installed = {"python": platform.python_version()}
    for name in ("jax", "tensorflow-cpu", "tensorflow", "numpy"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def make_parser(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """Makes a parser with the options of every benchmark."""
    new_parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    new_parser.add_argument(
        "--rounds", type=int, default=rounds, help="how often each is measured (%(default)s)"
    )
    new_parser.add_argument(
        "--json", type=Path, metavar="FILE", help="add what was measured to this file"
    )
    return new_parser


def report(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    measured: Sequence[Mapping[str, Any]],
    *,
    json_path: Path | None,
    notes: Sequence[str] = (),
) -> None:
    """Prints the table, and adds it and the measurements to a results file if there is a path."""
    installed = list_versions()
    print(
        f"\n{title}: "
        + ", ".join(f"{k} {v}" for k, v in installed.items())
        + f"; {count_cores()} cores\n"
    )
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
                versions=installed,
                cores=count_cores(),
                header=list(header),
                rows=[list(row) for row in rows],
                notes=list(notes),
                measured=measurements,
            ),
        )


def count_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def print_progress(text: str) -> None:
    """Prints on stderr what is being measured."""
    print(f"... {text}", file=sys.stderr, flush=True)
