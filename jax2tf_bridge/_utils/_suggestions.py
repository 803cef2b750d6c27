"""Suggestions for unknown words in messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str], *, quoted: bool = False) -> str:
    """Suggests the nearest known words as the end of a message; "" if none is near.

    Args:
      given: the unknown word.
      known: the words it could be.
      quoted: whether to write suggestions as strings of Python.

    >>> did_you_mean("exprot", ["export", "save"])
    ': did you mean export?'
    """
    near = difflib.get_close_matches(given, list(dict.fromkeys(known)), n=2, cutoff=0.65)
    likeness = [difflib.SequenceMatcher(None, given, word).ratio() for word in near]
    if len(near) == 2 and likeness[0] - likeness[1] > 0.05:
        near.pop()  # the other one is far nearer
    return f": did you mean {' or '.join(map(repr, near) if quoted else near)}?" if near else ""
