"""Ctrl-C, progress bars, and caches that live as long as an object."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Literal, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

K = TypeVar("K")
V = TypeVar("V")

Unit: TypeAlias = Literal["B", "export", "size", "trial"]

Advance: TypeAlias = Callable[[int], None]
"""Function that adds progress: a number of bytes or of pieces of work."""


@contextlib.contextmanager
def reraise_interrupts() -> Iterator[Callable[[], None]]:
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

    # SIG_DFL and SIG_IGN raise nothing: they end the process, or do nothing.
    if handler is None or isinstance(handler, int):
        yield check
        return
    raise_interrupt: Callable[[int, FrameType | None], object] = handler

    def note_and_raise(number: int, frame: FrameType | None) -> None:
        nonlocal swallowed
        try:
            raise_interrupt(number, frame)
        except BaseException as e:
            swallowed = e
            raise

    try:
        signal.signal(signal.SIGINT, note_and_raise)
    except ValueError:  # this is not the main thread, which alone gets signals
        yield check
        return
    try:
        yield check
        check()
    except Exception as e:
        if swallowed is None or e is swallowed:
            raise
        # This error is a consequence of the interrupt.
        raise swallowed.with_traceback(None) from e
    finally:
        signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def progress_bar(
    description: str, total: int, unit: Unit, *, show: bool | None = None
) -> Iterator[Advance]:
    """Shows a progress bar on stderr during the block.

    Args:
      description: the description of the work, as "writing weights.msgpack".
      total: the number of bytes or pieces of work.
      unit: the unit of `total`; bytes are shown as kB, MB, GB.
      show: True or False; None shows it if stderr is a terminal.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda amount: None
        return
    # Imported late: most work is too short for a bar.
    from tqdm import tqdm

    is_size = unit == "B"
    with tqdm(
        total=total, desc=description, unit=unit, unit_scale=is_size, file=sys.stderr, leave=False
    ) as bar:

        def advance(amount: int) -> None:
            bar.update(amount)

        yield advance


def once_per_object(make: Callable[[K], V]) -> Callable[[K], V]:
    """Caches a function of one object, without keeping the object alive.

    The result must not refer to the object, which would then live as long as the process.

    >>> class Model: pass
    >>> @once_per_object
    ... def notes(model): return []
    >>> model = Model()
    >>> notes(model) is notes(model), notes(model) is notes(Model())
    (True, False)
    """
    results: WeakKeyDictionary[K, V] = WeakKeyDictionary()
    lock = threading.RLock()

    def get(key: K) -> V:
        with lock:
            if key not in results:
                results[key] = make(key)
            return results[key]

    return get
