"""A changed copy of a SavedModel, which appears complete or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from jax2tf_bridge.saved_model._reading import GRAPH_FILE
from jax2tf_bridge.saved_model._whole_directory import whole_directory


@contextlib.contextmanager
def changed_copy(source: Path, path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yields a copy of a directory to change, and renames it to `path` at the end.

    Args:
      source: the directory; it may be `path` itself.
      path: nothing or an empty folder may be there.
      overwrite: whether a SavedModel that is there is replaced.

    Raises:
      OSError: as `whole_directory`.
    """
    with whole_directory(path, overwrite=overwrite, has=GRAPH_FILE) as new:
        # What is replaced needs no second copy of its weights.
        in_place = path.exists() and path.samefile(source)
        shutil.copytree(source, new, copy_function=_link if in_place else shutil.copy2)
        yield new


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # the file system has no links
        shutil.copy2(source, target)
    return target


def replace_file(path: Path) -> None:
    """Unlinks a file that may have another name too, so that writing it changes no other."""
    path.unlink(missing_ok=True)
