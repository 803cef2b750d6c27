"""Checks integers from users."""

from __future__ import annotations

import operator
from typing import Any


def as_integer(value: Any) -> int | None:
    """Returns a Python or NumPy integer as a Python int; None for other values and bools.

    >>> as_integer(3), as_integer(True), as_integer(2.0)
    (3, None, None)
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
