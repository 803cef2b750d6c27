"""A finding: a sentence about what will go wrong, and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "note"]
"""It fails; it may fail or is slow; what is good to know."""

SEVERITIES: Sequence[Severity] = ("error", "warning", "note")
"""The worst first."""


@dataclass(frozen=True)
class Finding:
    """What will go wrong.

    Attributes:
      severity: how bad it is.
      text: a sentence or two.
      remedy: what helps, another sentence; "" if nothing does or need be done.
      modules: the numbers of the modules that it is about.
    """

    severity: Severity
    text: str
    remedy: str = ""
    modules: tuple[int, ...] = ()


def in_units(size: int) -> str:
    """So many bytes, for people.

    >>> in_units(999), in_units(12_345_678)
    ('999 bytes', '12.3 MB')
    """
    if size < 1000:
        return f"{size} bytes"
    power = 3 if size >= 10**9 else 2 if size >= 10**6 else 1
    return f"{size / 1000**power:.1f} {'kMG'[power - 1]}B"


def shortened(text: str, most: int = 500) -> str:
    """A text of a file, which may be of any length, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}..."
