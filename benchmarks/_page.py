"""Writes README.md, and the chart in it, of a template and the file of results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks._chart import DARK, LIGHT, Bar, chart
from benchmarks._results import Report, read_results

_FOLDER = Path(__file__).parent
RESULTS = _FOLDER / "results.json"
_TEMPLATE = _FOLDER / "README.template.md"
_PLACE = re.compile(r"^\{\{(.+)\}\}$", re.MULTILINE)

_BARS = (
    ("a call", "Steady-state latency", ("MLP", "32", "bridge, widest"), "x jax2tf", "jax2tf"),
    (
        "convert and first answer",
        "Time of convert + first call",
        ("transformer", "bridge"),
        "CPU time, x",
        "jax2tf",
    ),
    (
        "save, load and first answer; weights captured",
        "A transformer of 75 MB",
        ("bridge, captured",),
        "x jax2tf, captured",
        "jax2tf",
    ),
    (
        "500 requests of random sizes",
        "A trace of requests",
        ("bridge, buckets and warm-up",),
        "total x jax2tf",
        "jax2tf",
    ),
    (
        "write 1 GB of weights",
        "Weights of 1024 MiB",
        ("write a file", "Flax"),
        "bridge / this",
        "Flax",
    ),
)
"""Of the chart: label, table, what the row begins with, column, and whose time is 1."""


def pages(results: Mapping[str, Report]) -> dict[Path, str]:
    """Makes the texts of the page and its charts, by their paths.

    Raises:
      KeyError: the results lack a table or row that the page shows.
    """
    bars = [
        Bar(label, _first_number(_cell(results[title], row, column)), other)
        for label, title, row, column, other in _BARS
    ]
    text = _PLACE.sub(lambda place: _table(results[place[1]]), _TEMPLATE.read_text())
    return {
        _FOLDER / "README.md": text,
        _FOLDER / "chart-light.svg": chart(bars, LIGHT),
        _FOLDER / "chart-dark.svg": chart(bars, DARK),
    }


def write() -> list[Path]:
    """Writes them; returns their paths."""
    made = pages(read_results(RESULTS))
    for path, text in made.items():
        path.write_text(text)
    return list(made)


def _table(report: Report) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (report.header, *report.rows)]
    lines.insert(1, "|" + "---|" * len(report.header))
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    place = f"{report.date}: {versions}; {report.cores} cores."
    return "\n".join([*lines, "", " ".join([*report.notes, place])])


def _cell(report: Report, row: tuple[str, ...], column: str) -> str:
    for cells in report.rows:
        if tuple(cells[: len(row)]) == row:
            return cells[report.header.index(column)]
    raise KeyError(f"{report.title} has no row {row}")


def _first_number(text: str) -> float:
    return float(text.split()[0])
