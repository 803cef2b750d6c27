"""Results files: a report for each table, with the versions and the machine it was measured on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Report:
    """A table and its measurements.

    Attributes:
      title: the title of the table; unique.
      benchmark: the module that measured it.
      date: the date, such as "2026-11-23".
      versions: the installed versions by package.
      cores: the number of available cores.
      header, rows: the table's texts.
      notes: lines to print below the table.
      measured: numbers by name, a mapping for each row; spreads are mappings of their fields.
    """

    title: str
    benchmark: str
    date: str
    versions: Mapping[str, str]
    cores: int
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=list)
    measured: Sequence[Mapping[str, Any]] = field(default_factory=list)


def read_results(path: Path) -> dict[str, Report]:
    """Reads the reports of a file by title; empty if the file does not exist.

    Raises:
      ValueError: the file is not a results file.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        return {title: Report(title=title, **fields) for title, fields in content.items()}
    except (AttributeError, TypeError, ValueError) as e:
        raise ValueError(f"{path} is no file of results of `python -m benchmarks`: {e}") from e


def add_report(path: Path, report: Report) -> None:
    """Writes a report to a results file, and replaces the report of the same title."""
    results = {**read_results(path), report.title: report}
    content = {title: asdict(result) for title, result in results.items()}
    for fields in content.values():
        del fields["title"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Change:
    """A ratio that has changed by more than a tenth, with disjoint quartile ranges."""

    title: str
    row: str
    name: str
    before: Mapping[str, float]
    after: Mapping[str, float]

    @property
    def is_slower(self) -> bool:
        return self.after["median"] > self.before["median"]


def find_changes(before: Mapping[str, Report], after: Mapping[str, Report]) -> Iterator[Change]:
    """Compares the ratios that both files have. Absolute times depend on the machine."""
    for title, report in after.items():
        old = _find_ratios(before[title]) if title in before else {}
        for (row, name), ratio in _find_ratios(report).items():
            known = old.get((row, name))
            if known is not None and _has_changed(known, ratio):
                yield Change(title, row, name, known, ratio)


_MIN_CHANGE = 1.1


def _has_changed(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    low, high = sorted((before, after), key=lambda ratio: ratio["median"])
    return low["high"] < high["low"] and high["median"] > _MIN_CHANGE * low["median"]


def _find_ratios(report: Report) -> dict[tuple[str, str], Mapping[str, float]]:
    ratios = {}
    for row in report.measured:
        # Names and requested sizes identify a row.
        key = ", ".join(
            str(value)
            for name, value in row.items()
            if isinstance(value, str) or name in ("batch", "size", "k", "n", "rounds")
        )
        for name, value in row.items():
            if isinstance(value, Mapping) and value.get("is_ratio"):
                ratios[key, name] = value
    return ratios
