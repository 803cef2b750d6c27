"""Keeps Ctrl-C from being swallowed by finalizers, callbacks and extension modules."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def ended_by_interrupts() -> Iterator[Callable[[], None]]:
    """Raises a swallowed KeyboardInterrupt again at the end of the block.

    Python prints and drops exceptions in finalizers and in callbacks of the garbage collector,
    including KeyboardInterrupt, and extension modules turn them into other errors. TensorFlow and
    JAX do all of this: without this block, one Ctrl-C in fifty is lost while a model is saved.

    Yields:
      A function that raises a swallowed exception at once; call it before irreversible steps.

    Raises:
      BaseException: KeyboardInterrupt, or the exception of the program's own handler.
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
