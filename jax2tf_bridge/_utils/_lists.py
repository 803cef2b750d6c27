"""Lists names in messages."""

from __future__ import annotations

from collections.abc import Sequence


def some(names: Sequence[str], most: int = 4) -> str:
    """Lists the names, or the first of them.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
