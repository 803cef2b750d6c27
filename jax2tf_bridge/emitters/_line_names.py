"""Names operations after the user's source lines, and reads the lines back from the names."""

from __future__ import annotations

import re

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.\-]+")
_SCOPE = re.compile(r"(?:^|/)at\.([^/]+)\.(\d+)/")


def make_line_scope(source: str) -> str:
    """Returns the absolute name scope of a source line; it does not nest in the current scope.

    >>> make_line_scope("models/net.py:12")
    'at.net.py.12/'
    """
    file, _, line = source.replace("\\", "/").rpartition(":")
    file_name = _FORBIDDEN.sub("_", file.rpartition("/")[2])
    return f"at.{file_name}.{line}/"


def find_source_line(name: str) -> str | None:
    """Returns the source line in an operation's name; None if there is none.

    >>> find_source_line("at.net.py.12/while/Add_1"), find_source_line("while/Add_1")
    ('net.py:12', None)
    """
    scopes = _SCOPE.findall(name)
    if not scopes:
        return None
    file, line = scopes[-1]
    return f"{file}:{line}"
