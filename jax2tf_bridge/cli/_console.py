"""Writes errors, notes and progress to stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from jax2tf_bridge._utils import one_line

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


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text that is not empty."""
    return next(filter(None, map(str.strip, str(error).splitlines())), "")
