"""A changed copy of a SavedModel, which appears complete or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jax2tf_bridge.errors import path_error
from jax2tf_bridge.saved_model._reading import GRAPH_FILE


@contextlib.contextmanager
def changed_copy(source: Path, path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yields a copy of a directory to change, and renames it to `path` at the end.

    If that fails nothing is left of it, and what was at `path` is still there. If the process is
    killed, a hidden folder beside `path` is left, with what was at `path` in it if that was
    in the instant between two renames.

    Args:
      source: the directory; it may be `path` itself.
      path: nothing or an empty folder may be there.
      overwrite: whether a SavedModel that is there is replaced.

    Raises:
      FileExistsError: something is at `path`, or something else than a SavedModel.
      NotADirectoryError: a file is at `path` or above it.
      OSError: it cannot be written.
    """
    check_free(path, overwrite=overwrite)
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.partial-"))
    try:
        new, old = place / "new", place / "old"
        # What is replaced needs no second copy of its weights.
        in_place = path.exists() and path.samefile(source)
        shutil.copytree(source, new, copy_function=_link if in_place else shutil.copy2)
        yield new
        _sync(new)
        check_free(path, overwrite=overwrite)
        _replace(path, new, old)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raises, before the work is done, if `changed_copy` would refuse `path`."""
    whole = path.absolute()
    above = next(folder for folder in (whole, *whole.parents) if folder.exists())
    if not above.is_dir():
        raise path_error(NotADirectoryError, errno.ENOTDIR, "is a file, and no folder", above)
    if above != whole or not any(path.iterdir()):
        return
    if not overwrite:
        raise path_error(
            FileExistsError, errno.EEXIST, "is there already; --overwrite replaces it", path
        )
    if not (path / GRAPH_FILE).exists():
        text = f"is not replaced: it has no {GRAPH_FILE}, but something else"
        raise path_error(FileExistsError, errno.EEXIST, text, path)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # the file system has no links
        shutil.copy2(source, target)
    return target


def replace_file(path: Path) -> None:
    """Unlinks a file that may have another name too, so that writing it changes no other."""
    path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    for place, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(place, name), "rb") as file:
                os.fsync(file.fileno())


def _replace(path: Path, new: Path, old: Path) -> None:
    if not path.exists() or not any(path.iterdir()):
        os.replace(new, path)
        return
    path.rename(old)
    try:
        new.rename(path)
    except BaseException:  # an interrupt between the two as well
        old.rename(path)
        raise
