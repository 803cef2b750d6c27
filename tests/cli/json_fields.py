"""Fields of --json: those that docs/command-line.md lists, and those of a schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def list_described_fields(head: str) -> set[str]:
    """Returns the words in backquotes of the table with this head."""
    text = PAGE.read_text()
    (table,) = re.findall(rf"\| {re.escape(head)} \| is \|\n(.*?)(?:\n\n|\Z)", text, re.DOTALL)
    return set(re.findall(r"`(\w+)`", table))


def assert_fits(value: Any, schema: Any, place: str) -> None:
    """Compares the keys and types of JSON with a schema; a list has one for all its elements."""
    if isinstance(schema, dict):
        assert isinstance(value, dict), place
        assert set(value) == set(schema), place
        for key, part in schema.items():
            assert_fits(value[key], part, f"{place}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list), place
        for i, element in enumerate(value):
            assert_fits(element, schema[0], f"{place}[{i}]")
    else:
        assert isinstance(value, schema), f"{place}: {value!r}"
