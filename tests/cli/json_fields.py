"""Fields that docs/command-line.md lists for --json."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def list_described_fields(head: str) -> set[str]:
    """Returns the words in backquotes of the table with this head."""
    text = PAGE.read_text()
    (table,) = re.findall(rf"\| {re.escape(head)} \| is \|\n(.*?)(?:\n\n|\Z)", text, re.DOTALL)
    return set(re.findall(r"`(\w+)`", table))
