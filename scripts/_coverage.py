"""Sums what coverage.py measured by package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path


def coverage_table(path: Path) -> Iterator[str]:
    """Lays out a report of coverage.py, as JSON: the least covered package first.

    Processes that tests start are not measured.
    """
    packages: dict[str, tuple[int, int]] = {}
    for name, file in json.loads(path.read_text())["files"].items():
        parts = Path(name).parts
        package = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
        summary = file["summary"]
        covered, lines = packages.get(package, (0, 0))
        packages[package] = (
            covered + summary["covered_lines"],
            lines + summary["num_statements"],
        )
    shares = {name: covered / max(lines, 1) for name, (covered, lines) in packages.items()}
    for name in sorted(packages, key=lambda name: shares[name]):
        yield f"{shares[name]:6.1%} of {packages[name][1]:6,} lines  {name}"
    covered, lines = (sum(pair[i] for pair in packages.values()) for i in (0, 1))
    yield f"{covered / max(lines, 1):6.1%} of {lines:6,} lines  in all"
