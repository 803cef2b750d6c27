"""Numbers as text, for JSON, which has no infinity and not all integers."""

from __future__ import annotations

from typing import Any

import numpy as np


def number_text(number: Any) -> str:
    """Writes a number of Python or NumPy as Python does; booleans as 0 and 1.

    >>> number_text(np.float32(0.5)), number_text(True), number_text(-np.inf)
    ('0.5', '1', '-inf')
    >>> number_text(np.longdouble(0.5)), number_text(np.clongdouble(0.5j))
    ('0.5', '0.5j')
    """
    plain = np.asarray(number).item()
    if isinstance(plain, np.generic):  # extended precision, for which Python has no type
        plain = complex(plain) if isinstance(plain, np.complexfloating) else float(plain)
    return repr(int(plain) if isinstance(plain, bool) else plain)


def number_of(text: str) -> complex:
    """Reads a number that `number_text` wrote.

    Raises:
      ValueError: the text is no number.

    >>> number_of("-1"), number_of("-inf"), number_of("(1+2j)")
    (-1, -inf, (1+2j))
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return complex(text)


def in_units(size: int) -> str:
    """Writes a number of bytes for people.

    >>> in_units(999), in_units(12_345_678)
    ('999 bytes', '12.3 MB')
    """
    if size < 1000:
        return f"{size} bytes"
    power = 3 if size >= 10**9 else 2 if size >= 10**6 else 1
    return f"{size / 1000**power:.1f} {'kMG'[power - 1]}B"
