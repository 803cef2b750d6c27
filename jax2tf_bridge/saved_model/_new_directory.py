"""Checks the path of a new SavedModel, and makes changed copies of existing ones."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.saved_model._reading import GRAPH_FILE
from jax2tf_bridge.storage import AnyPath, on_disk, whole_directory


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


@contextlib.contextmanager
def edit_copy(source: AnyPath, path: AnyPath, *, overwrite: bool) -> Iterator[Path]:
    """Yields a copy of a directory to change, and renames it to `path` at the end.

    Args:
      source: the directory; it may equal `path`.
      path: the final path; it must not exist or must be an empty folder.
      overwrite: whether to replace a SavedModel at `path`.

    Raises:
      OSError: as in `whole_directory`; or TensorFlow could not read a SavedModel at `path`.
    """
    check_place(path)
    with (
        whole_directory(path, overwrite=overwrite, has=GRAPH_FILE) as new,
        on_disk(source) as here,
    ):
        # A model that is replaced, or is already a copy, shares its weights' files by hard links.
        linked = here != source or (path.exists() and os.path.samefile(path, source))
        shutil.copytree(here, new, copy_function=_link if linked else shutil.copy2)
        yield new


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copy2(source, target)
    return target


def replace_file(path: Path) -> None:
    """Unlinks a file that may be a hard link, so that writing it does not change the other name."""
    path.unlink(missing_ok=True)
