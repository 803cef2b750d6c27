"""Integers that users give."""

from __future__ import annotations

import operator
from typing import Any


def as_integer(value: Any) -> int | None:
    """Returns an integer of Python or NumPy as Python's; None for all else, bools too.

    >>> as_integer(3), as_integer(True), as_integer(2.0)
    (3, None, None)
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
