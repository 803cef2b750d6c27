"""Waits until storage shows a change; some storage shows it with a delay."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.storage._paths import StoragePath

_PAUSES_S = (0.01, 0.1, 0.5, 2.0)


def wait_until(
    holds: Callable[[], bool],
    path: StoragePath,
    problem: str = "was written, and is not there as it was written",
) -> None:
    """Polls until a condition holds, for some seconds.

    Raises:
      OSError: it still does not hold; the text is the path, then `problem`.
    """
    for pause in (*_PAUSES_S, None):
        if holds():
            return
        if pause is not None:
            time.sleep(pause)
    raise make_path_error(OSError, errno.EIO, problem, path)


def has_size(path: StoragePath, size: int) -> bool:
    """Returns whether the file exists and has this size in bytes."""
    status = path.find()
    return status is not None and not status.is_folder and status.size == size
