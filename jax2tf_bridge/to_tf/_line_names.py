"""Names operations after the user's lines, and reads the lines from the names."""

from __future__ import annotations

import re

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.\-]+")
_SCOPE = re.compile(r"(?:^|/)at\.([^/]+)\.(\d+)/")


def line_scope(source: str) -> str:
    """Returns the scope of names for a line, which begins anew wherever it is opened.

    >>> line_scope("models/net.py:12")
    'at.net.py.12/'
    """
    file, _, line = source.replace("\\", "/").rpartition(":")
    plain = _FORBIDDEN.sub("_", file.rpartition("/")[2])
    return f"at.{plain}.{line}/"


def line_of(name: str) -> str | None:
    """Reads the line from an operation's name; None if it has none.

    >>> line_of("at.net.py.12/while/Add_1"), line_of("while/Add_1")
    ('net.py:12', None)
    """
    found = _SCOPE.findall(name)
    if not found:
        return None
    file, line = found[-1]
    return f"{file}:{line}"
