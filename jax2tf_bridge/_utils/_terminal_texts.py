"""Writes texts of files and programs for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Escapes what a terminal would act upon, in a text from a file.

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
