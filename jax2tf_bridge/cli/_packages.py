"""Loads JAX and TensorFlow, which takes seconds."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
from collections.abc import Iterator

from jax2tf_bridge.cli._console import PROGRAM, Console
from jax2tf_bridge.errors import MissingDependencyError


@contextlib.contextmanager
def loading(package: str, command: str, console: Console) -> Iterator[None]:
    """Imports a package, in a `with` block, for a command that needs it.

    Ctrl-C ends the process at once during the import, because extension modules swallow
    KeyboardInterrupt while they are loaded, and continue half-loaded.

    Raises:
      MissingDependencyError: it is not installed; the text says for which command.
    """
    with console.step(f"starting {package}"), _end_at_interrupt(), _without_collection():
        try:
            yield
        except MissingDependencyError as e:
            raise MissingDependencyError(e.package, e.extra, f"{PROGRAM} {command}") from e


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Disables the garbage collector during imports, which create no garbage."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _end_at_interrupt() -> Iterator[None]:
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:  # this is not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def quiet_tensorflow(*, debug: bool, is_timed: bool = False) -> None:
    """Keeps TensorFlow from writing to stderr when it starts and when it saves.

    Call this before the command line is parsed: paths in storage load TensorFlow.

    Args:
      debug: True to let it write.
      is_timed: True to compute with oneDNN, as a server does; TensorFlow prints that.
    """
    if debug:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not is_timed:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
