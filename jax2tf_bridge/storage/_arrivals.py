"""Waits for what was written, or removed, to be seen: some storage shows it a little later."""

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
    """Asks until something holds, for some seconds.

    Raises:
      OSError: it does not; `problem` goes on behind the path.
    """
    for pause in (*_PAUSES_S, None):
        if holds():
            return
        if pause is not None:
            time.sleep(pause)
    raise make_path_error(OSError, errno.EIO, problem, path)


def has_size(path: StoragePath, size: int) -> bool:
    """Returns whether a file is there with so many bytes."""
    found = path.find()
    return found is not None and not found.is_folder and found.size == size
