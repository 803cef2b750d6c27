"""Refuses paths from which TensorFlow could not read a SavedModel."""

from __future__ import annotations

import errno
import os
from fnmatch import fnmatchcase
from pathlib import Path

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.storage import AnyPath


def check_place(path: AnyPath) -> None:
    """Raises if TensorFlow takes a part of a path for a pattern that does not match itself.

    TensorFlow finds the variables by patterns, on disk and behind schemes: "*" also matches itself,
    but "[1]" only matches "1".

    Raises:
      OSError: the path has such a part; the text names it.
    """
    whole = path if not isinstance(path, Path) else Path(os.path.realpath(path))
    for part in str(whole).split(os.sep if isinstance(path, Path) else "/"):
        if "\\" in part or not fnmatchcase(part, part):
            text = (
                f"is no place for a SavedModel: TensorFlow takes {part!r} for a pattern of names, "
                "and finds nothing there. Name a path without brackets and backslashes"
            )
            raise make_path_error(OSError, errno.EINVAL, text, path)
