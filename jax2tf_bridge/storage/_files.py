"""Reads files, and replaces whole files, on disk and in storage behind a scheme."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.storage._paths import StoragePath, as_path, wait_until
from jax2tf_bridge.storage._whole_directory import sync_folder

OpenedFile: TypeAlias = io.FileIO | io.BufferedReader
"""Open file with random access."""


@contextlib.contextmanager
def open_file(path: str | os.PathLike[str]) -> Iterator[tuple[OpenedFile, int | None]]:
    """Opens a file and yields it with its size; yields None if it is not a regular file.

    Raises:
      OSError: the file cannot be read.
    """
    place = as_path(path)
    if isinstance(place, StoragePath):
        status = place.stat()
        if stat.S_ISDIR(status.st_mode):
            raise make_path_error(
                IsADirectoryError, errno.EISDIR, "is a folder: name a file", place
            )
        with place.open("rb") as stored:
            yield stored, status.st_size
        return
    with io.FileIO(os.fspath(place)) as handle:
        file_status = os.fstat(handle.fileno())
        yield handle, file_status.st_size if stat.S_ISREG(file_status.st_mode) else None


@contextlib.contextmanager
def replace_file_at(path: str | os.PathLike[str], *, bytes_of: str) -> Iterator[BinaryIO]:
    """Opens a new file for writing, which appears at `path` complete or not at all.

    If the block raises, the old file stays. On disk, the file is synced at the end, and gets the
    mode of the file that it replaces.

    Args:
      path: the file; if it is a link, its target is replaced.
      bytes_of: the name of a function that returns the bytes, for the advice in messages.

    Raises:
      FileExistsError: `path` is not a regular file.
      OSError: the file cannot be written; the error has the path as it was given.
    """
    place = as_path(path)
    if isinstance(place, StoragePath):
        replacement = _replace_stored(place)
    else:
        # A link remains a link.
        target = Path(os.path.realpath(place))
        if target.is_dir():
            raise FileExistsError(f"{target} is a folder: name a file in it.")
        if target.exists() and not target.is_file():
            # A file would replace a device or a pipe.
            raise FileExistsError(
                f"{target} exists and is not a regular file: choose another path, or write the "
                f"bytes that {bytes_of} returns to it."
            )
        replacement = _replace_on_disk(target)
    try:
        with replacement as file:
            yield file
    except OSError as e:
        e.filename, e.filename2 = os.fspath(path), None
        raise


@contextlib.contextmanager
def _replace_on_disk(target: Path) -> Iterator[BinaryIO]:
    # The temporary name leaves out the file's name, which may have the maximum length.
    temporary = target.with_name(f".{secrets.token_hex(16)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    # The file is complete and in its place. If the folder cannot be opened or synced, the system
    # writes the name later.
    with contextlib.suppress(OSError):
        sync_folder(target.parent)


@contextlib.contextmanager
def _replace_stored(target: StoragePath) -> Iterator[BinaryIO]:
    if target.is_dir():
        text = "is there and is a folder: name a file to write"
        raise make_path_error(FileExistsError, errno.EEXIST, text, target)
    target.check_is_below()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{secrets.token_hex(16)}.tmp")
    try:
        with temporary.open("wb") as file:
            yield cast(BinaryIO, file)
            size = file.tell()
        wait_until(lambda: temporary.has_size(size), temporary)
        target.backend.rename(str(temporary), str(target))
        # If both names exist, the file was not renamed.
        wait_until(lambda: not temporary.exists() and target.has_size(size), target)
    except BaseException:
        with contextlib.suppress(OSError):
            target.backend.remove(str(temporary))
        raise
