"""Files of results: a report for each table, with the releases and the machine that it is of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Report:
    """A table, and what was measured for it.

    Attributes:
      title: of the table; unique.
      benchmark: the module that measured it.
      date: when, as "2026-11-23".
      versions: releases, by package.
      cores: that the machine had for it.
      header, rows: the table's texts.
      notes: lines for below the table.
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
    """Reads the reports of a file by their titles; none where there is no file.

    Raises:
      ValueError: the file is of another form.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        return {title: Report(title=title, **fields) for title, fields in content.items()}
    except (AttributeError, TypeError, ValueError) as e:
        raise ValueError(f"{path} is no file of results of `python -m benchmarks`: {e}") from e


def add_report(path: Path, report: Report) -> None:
    """Writes a report into a file, in the place of that of its title."""
    results = {**read_results(path), report.title: report}
    content = {title: asdict(each) for title, each in results.items()}
    for fields in content.values():
        del fields["title"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Change:
    """A ratio that has changed: by more than a tenth, beyond what the rounds differ by."""

    title: str
    row: str
    name: str
    before: Mapping[str, float]
    after: Mapping[str, float]

    @property
    def is_slower(self) -> bool:
        return self.after["median"] > self.before["median"]


def changes(before: Mapping[str, Report], after: Mapping[str, Report]) -> Iterator[Change]:
    """Compares the ratios that two files have both; times of two machines are not compared."""
    for title, report in after.items():
        old = _ratios(before[title]) if title in before else {}
        for (row, name), ratio in _ratios(report).items():
            known = old.get((row, name))
            if known is not None and _differ(known, ratio):
                yield Change(title, row, name, known, ratio)


_LEAST = 1.1


def _differ(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    less, more = sorted((one, other), key=lambda ratio: ratio["median"])
    return less["high"] < more["low"] and more["median"] > _LEAST * less["median"]


def _ratios(report: Report) -> dict[tuple[str, str], Mapping[str, float]]:
    found = {}
    for row in report.measured:
        # What tells rows apart: names, and sizes that were asked for.
        key = ", ".join(
            str(value)
            for name, value in row.items()
            if isinstance(value, str) or name in ("batch", "size", "k", "n", "rounds")
        )
        for name, value in row.items():
            if isinstance(value, Mapping) and value.get("is_ratio"):
                found[key, name] = value
    return found
