"""Directories that appear complete or not at all, on disk or in storage behind a scheme."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.storage import _uploads, _whole_directory
from jax2tf_bridge.storage._paths import AnyPath, StoragePath, as_path
from jax2tf_bridge.storage._staging import staging_folder

_PLACE = "jax2tf-bridge-copy"
_PIECE_BYTES = 4 << 20


def whole_directory(
    path: AnyPath, *, overwrite: bool = False, has: str
) -> AbstractContextManager[Path]:
    """Yields a path on disk to write a directory at, and moves the directory to `path` at the end.

    A path on disk is renamed. A path with a scheme is uploaded, the file `has` last. If writing
    fails, `path` is unchanged.

    Args:
      path: the final path; it must not exist or must be an empty directory.
      overwrite: whether to replace a non-empty directory, on disk only.
      has: the name of a file that every directory of this kind has. Directories without it are not
        replaced, and readers ignore them.

    Raises:
      FileExistsError: `path` exists and may not be replaced.
      NotADirectoryError: `path` or a parent is a file.
      OSError: the directory cannot be written.
    """
    path = as_path(path)
    if isinstance(path, StoragePath):
        return _uploads.whole_upload(path, overwrite=overwrite, last=has)
    return _whole_directory.whole_directory(path, overwrite=overwrite, has=has)


def check_free(path: AnyPath, *, overwrite: bool, has: str | None = None) -> None:
    """Raises, before any work, if `whole_directory` would refuse `path`."""
    path = as_path(path)
    if isinstance(path, StoragePath):
        _uploads.check_free_upload(path, overwrite=overwrite)
    else:
        _whole_directory.check_free(path, overwrite=overwrite, has=has)


def check_new_folder(path: AnyPath) -> None:
    """Raises if `path` is not a new or empty folder, for functions without `overwrite`."""
    try:
        check_free(path, overwrite=False)
    except FileExistsError:  # its text names `overwrite`
        text = "is there already. Remove it, or name a new folder"
        raise make_path_error(FileExistsError, errno.EEXIST, text, path) from None


@contextlib.contextmanager
def on_disk(path: AnyPath) -> Iterator[Path]:
    """Yields a path on disk for a file or directory: its own, or that of a temporary copy.

    Raises:
      OSError: the path cannot be read, or the disk is full.
    """
    path = as_path(path)
    if not isinstance(path, StoragePath):
        yield path
        return
    with staging_folder(Path(tempfile.gettempdir()), _PLACE) as place:
        # TensorFlow would interpret brackets and backslashes as a pattern.
        is_plain = path.name not in ("", ".", "..") and not set("[]\\") & set(path.name)
        copy = place / (path.name if is_plain else "copy")
        if path.is_dir():
            copy.mkdir()
            for name, _ in path.files_below():
                _check_name(name, path)
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                _fetch(path / name, copy / name)
        else:
            _fetch(path, copy)
        yield copy


def _check_name(name: str, folder: StoragePath) -> None:
    """Raises if a file of this name would be written outside of the copy of its folder."""
    if any(part in ("", ".", "..") or os.path.basename(part) != part for part in name.split("/")):
        text = f"cannot be copied to the disk: it has the file {name!r:.200}, a name outside of it"
        raise make_path_error(OSError, errno.EINVAL, text, folder)


def _fetch(path: StoragePath, target: Path) -> None:
    with path.open("rb") as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, _PIECE_BYTES)
