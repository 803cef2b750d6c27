"""Writes errors, notes and progress to stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

PROGRAM = "jax2tf-bridge"


class Console:
    """Writer to stderr; commands write their results to stdout themselves."""

    def __init__(self, *, verbose: bool = False) -> None:
        """`verbose` keeps a line for each step, also where stderr is no terminal."""
        self.verbose = verbose

    def error(self, text: str) -> None:
        """Prints why the command fails, in one line."""
        print(f"{PROGRAM}: error: {one_line(text)}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Prints what a user should know of a command that works, in one line."""
        print(f"{PROGRAM}: note: {one_line(text)}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Shows what is being done while it is; with `verbose`, how long it took afterwards."""
        on_terminal = sys.stderr.isatty()
        begun = time.monotonic()
        if on_terminal:
            print(f"{text} ...", end="", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            if on_terminal:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            if self.verbose:
                seconds = time.monotonic() - begun
                print(f"{PROGRAM}: {text}: {seconds:.1f} s", file=sys.stderr, flush=True)


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


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text that is not empty."""
    return next(filter(None, map(str.strip, str(error).splitlines())), "")
