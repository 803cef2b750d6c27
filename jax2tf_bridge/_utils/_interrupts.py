"""Sees to it that Ctrl-C ends what it was meant to end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def ended_by_interrupts() -> Iterator[Callable[[], None]]:
    """Raises what Ctrl-C raised at the end of the block, if it was swallowed within.

    Python prints and drops what is raised in a finalizer or a callback of the garbage collector,
    KeyboardInterrupt too, and extension modules make other errors of it. TensorFlow's functions and
    JAX have all of these, so that one Ctrl-C in fifty is lost while a model is saved.

    Yields:
      A function that raises at once what was swallowed; for places before what cannot be undone.

    Raises:
      BaseException: KeyboardInterrupt, or what else the program's own handler raises.
    """
    handler = signal.getsignal(signal.SIGINT)
    swallowed: BaseException | None = None

    def check() -> None:
        if swallowed is not None:
            raise swallowed.with_traceback(None)

    # The system's own handlers end the process or do nothing.
    if handler is None or isinstance(handler, int):
        yield check
        return
    raising: Callable[[int, FrameType | None], object] = handler

    def noting(number: int, frame: FrameType | None) -> None:
        nonlocal swallowed
        try:
            raising(number, frame)
        except BaseException as e:
            swallowed = e
            raise

    try:
        signal.signal(signal.SIGINT, noting)
    except ValueError:  # this is not the main thread, which alone gets signals
        yield check
        return
    try:
        yield check
        check()
    except Exception as e:
        if swallowed is None or e is swallowed:
            raise
        raise swallowed.with_traceback(None) from e  # what it was swallowed for is half done
    finally:
        signal.signal(signal.SIGINT, handler)
