"""Makes a changed copy of a SavedModel, which appears complete or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from jax2tf_bridge.saved_model._place import check_place
from jax2tf_bridge.saved_model._reading import GRAPH_FILE
from jax2tf_bridge.storage import AnyPath, on_disk, whole_directory


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
