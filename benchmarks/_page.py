"""Writes README.md and its charts from a template and the results file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks._chart import DARK, LIGHT, Bar, draw_chart
from benchmarks._results import Report, read_results

_FOLDER = Path(__file__).parent
RESULTS = _FOLDER / "results.json"
_TEMPLATE = _FOLDER / "README.template.md"
_TABLE_PLACEHOLDER = re.compile(r"^\{\{(.+)\}\}$", re.MULTILINE)

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
"""For each bar of the chart: label, table, first cells of the row, column, alternative."""


def make_pages(results: Mapping[str, Report]) -> dict[Path, str]:
    """Makes the texts of the page and its charts, by path.

    Raises:
      KeyError: the results lack a table or row that the page shows.
    """
    bars = [
        Bar(label, _parse_first_number(_find_cell(results[title], row, column)), other)
        for label, title, row, column, other in _BARS
    ]
    text = _TABLE_PLACEHOLDER.sub(
        lambda place: _format_table(results[place[1]]), _TEMPLATE.read_text()
    )
    return {
        _FOLDER / "README.md": text,
        _FOLDER / "chart-light.svg": draw_chart(bars, LIGHT),
        _FOLDER / "chart-dark.svg": draw_chart(bars, DARK),
    }


def write_pages() -> list[Path]:
    """Writes the page and its charts; returns their paths."""
    texts = make_pages(read_results(RESULTS))
    for path, text in texts.items():
        path.write_text(text)
    return list(texts)


def _format_table(report: Report) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (report.header, *report.rows)]
    lines.insert(1, "|" + "---|" * len(report.header))
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    setup = f"{report.date}: {versions}; {report.cores} cores."
    return "\n".join([*lines, "", " ".join([*report.notes, setup])])


def _find_cell(report: Report, row: tuple[str, ...], column: str) -> str:
    for cells in report.rows:
        if tuple(cells[: len(row)]) == row:
            return cells[report.header.index(column)]
    raise KeyError(f"{report.title} has no row {row}")


def _parse_first_number(text: str) -> float:
    return float(text.split()[0])
