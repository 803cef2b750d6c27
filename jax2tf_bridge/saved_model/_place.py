"""Refuses paths at which TensorFlow could not read a SavedModel."""

from __future__ import annotations

import errno
import os
from fnmatch import fnmatchcase
from pathlib import Path

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.storage import AnyPath


def check_place(path: AnyPath) -> None:
    """Raises if TensorFlow takes a part of a path for a pattern, which others than it match.

    It looks for the variables by patterns, on disk and behind schemes: "*" stands for itself as
    well, and "[1]" for "1" alone.

    Raises:
      OSError: it does; the text names the part.
    """
    whole = path if not isinstance(path, Path) else Path(os.path.realpath(path))
    for part in str(whole).split(os.sep if isinstance(path, Path) else "/"):
        if "\\" in part or not fnmatchcase(part, part):
            text = (
                f"is no place for a SavedModel: TensorFlow takes {part!r} for a pattern of names, "
                "and finds nothing there. Name a path without brackets and backslashes"
            )
            raise make_path_error(OSError, errno.EINVAL, text, path)
