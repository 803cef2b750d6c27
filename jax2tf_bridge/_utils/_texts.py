"""Numbers, and texts for messages: types, lists of names, suggestions, safe terminal output."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def join_names(names: Sequence[str], most: int = 4) -> str:
    """Lists the names, or the first of them.

    >>> join_names(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def array_type_text(dtype: object, shape: Iterable[object] | None) -> str:
    """Formats a dtype and a shape, in which None means unknown.

    >>> array_type_text("float32", (None, 28)), array_type_text("bool", ())
    ('float32[?,28]', 'bool[]')
    >>> array_type_text("int32", None)
    'int32[...]'
    """
    if shape is None:
        return f"{dtype}[...]"
    return f"{dtype}[{','.join('?' if size is None else str(size) for size in shape)}]"


def as_integer(value: Any) -> int | None:
    """Returns a Python or NumPy integer as a Python int; None for other values and bools.

    >>> as_integer(3), as_integer(True), as_integer(2.0)
    (3, None, None)
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def number_text(number: Any) -> str:
    """Formats a Python or NumPy number like Python; booleans as 0 and 1.

    >>> number_text(np.float32(0.5)), number_text(True), number_text(-np.inf)
    ('0.5', '1', '-inf')
    >>> number_text(np.longdouble(0.5)), number_text(np.clongdouble(0.5j))
    ('0.5', '0.5j')
    """
    plain = np.asarray(number).item()
    if isinstance(plain, np.generic):  # extended precision, for which Python has no type
        plain = complex(plain) if isinstance(plain, np.complexfloating) else float(plain)
    return repr(int(plain) if isinstance(plain, bool) else plain)


def read_number(text: str) -> complex:
    """Reads a number that `number_text` wrote.

    Raises:
      ValueError: the text is no number.

    >>> read_number("-1"), read_number("-inf"), read_number("(1+2j)")
    (-1, -inf, (1+2j))
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return complex(text)


def format_bytes(size: int) -> str:
    """Formats a number of bytes with a unit.

    >>> format_bytes(999), format_bytes(12_345_678)
    ('999 bytes', '12.3 MB')
    """
    if size < 1000:
        return f"{size} bytes"
    power = 3 if size >= 10**9 else 2 if size >= 10**6 else 1
    return f"{size / 1000**power:.1f} {'kMG'[power - 1]}B"


def did_you_mean(word: str, known: Iterable[str], *, quoted: bool = False) -> str:
    """Suggests the nearest known words as the end of a message; "" if none is near.

    Args:
      word: the unknown word.
      known: the words it could be.
      quoted: whether to write suggestions as strings of Python.

    >>> did_you_mean("exprot", ["export", "save"])
    ': did you mean export?'
    """
    near = difflib.get_close_matches(word, list(dict.fromkeys(known)), n=2, cutoff=0.65)
    ratios = [difflib.SequenceMatcher(None, word, match).ratio() for match in near]
    if len(near) == 2 and ratios[0] - ratios[1] > 0.05:
        near.pop()  # the best match is far nearer
    return f": did you mean {' or '.join(map(repr, near) if quoted else near)}?" if near else ""


_MAX_NAMES = 20
"""Maximum number of known names in a message."""


def unknown_name_text(kind: str, name: object, known: Iterable[str]) -> str:
    """Says that a name is unknown, and lists the nearest names and the known ones.

    >>> unknown_name_text("signature", "sreve", ["serve", "embed"])
    "no signature 'sreve': did you mean 'serve'? There are: serve, embed."
    >>> unknown_name_text("signature", "x", [])
    "no signature 'x'. There is none."
    """
    names = list(known)
    there = f"There are: {join_names(names, _MAX_NAMES)}." if names else "There is none."
    return f"no {kind} {name!r}{did_you_mean(str(name), names, quoted=True) or '.'} {there}"


def printable(text: str) -> str:
    r"""Escapes control characters in a text from a file.

    >>> printable("a name\x1b[31m")
    'a name\\x1b[31m'
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    r"""Joins the lines of a text.

    >>> one_line("Two things differ:\n  - x: a\n  - y: b\n")
    'Two things differ: x: a; y: b'
    >>> one_line("Any helps:\n  - this\n  - that\nTried with x.")
    'Any helps: this; that. Tried with x.'
    """
    joined, after_item = "", False
    for line in filter(None, map(str.strip, text.splitlines())):
        is_item = line.startswith("- ")
        line = line.removeprefix("- ")
        if not joined:
            joined = line
        elif is_item and not joined.endswith((":", ".")):
            joined += f"; {line}"
        elif after_item and not is_item and not joined.endswith((".", "?", "!", ":", ";")):
            joined += f". {line}"
        else:
            joined += f" {line}"
        after_item = is_item
    return printable(joined)
