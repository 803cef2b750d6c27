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

from jax2tf_bridge.errors import Argument, Message, make_path_error
from jax2tf_bridge.storage._paths import AnyPath, StoragePath, as_path, wait_until
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
def replace_file_at(
    path: str | os.PathLike[str], *, bytes_of: str, overwrite: bool = True
) -> Iterator[BinaryIO]:
    """Opens a new file for writing, which appears at `path` complete or not at all.

    If the block raises, the old file stays. On disk, the file is synced at the end, and gets the
    mode of the file that it replaces.

    Args:
      path: the file; if it is a link, its target is replaced.
      bytes_of: the name of a function that returns the bytes, for the advice in messages.
      overwrite: whether a file that exists is replaced.

    Raises:
      FileExistsError: `path` is not a regular file, or exists and may not be replaced.
      FileNotFoundError: its folder does not exist.
      OSError: the file cannot be written; the error has the path as it was given.
    """
    check_file_path(path, bytes_of=bytes_of, overwrite=overwrite)
    place = as_path(path)
    if isinstance(place, StoragePath):
        replacement = _replace_stored(place)
    else:
        replacement = _replace_on_disk(Path(os.path.realpath(place)))  # a link remains a link
    try:
        with replacement as file:
            yield file
    except OSError as e:
        e.filename = os.fspath(path)
        if e.filename2 is not None:
            del e.filename2  # the message would show None
        raise


def check_file_path(path: str | os.PathLike[str], *, bytes_of: str, overwrite: bool = True) -> None:
    """Raises, before any work, if `replace_file_at` would refuse `path`."""
    place = as_path(path)
    if isinstance(place, StoragePath):
        if place.is_dir():
            text = "is there and is a folder: name a file to write"
            raise make_path_error(FileExistsError, errno.EEXIST, text, place)
        place.check_is_below()
        _check_overwrite(place, overwrite=overwrite)
        return
    target = Path(os.path.realpath(place))
    if target.is_dir():
        raise make_path_error(
            FileExistsError, errno.EEXIST, "is a folder: name a file in it", place
        )
    if target.exists() and not target.is_file():
        # A file would replace a device or a pipe.
        text = (
            "exists and is not a regular file: choose another path, or write the bytes that "
            f"{bytes_of} returns to it"
        )
        raise make_path_error(FileExistsError, errno.EEXIST, text, place)
    if target.parent.exists() and not target.parent.is_dir():
        text = f"cannot be written: {place.parent} is a file, not a folder"
        raise make_path_error(NotADirectoryError, errno.ENOTDIR, text, place)
    if not target.parent.exists():
        text = f"cannot be written: there is no folder {place.parent}. Create it first"
        raise make_path_error(FileNotFoundError, errno.ENOENT, text, place)
    _check_overwrite(place, overwrite=overwrite)


def _check_overwrite(place: AnyPath, *, overwrite: bool) -> None:
    if not overwrite and place.exists():
        problem = Message("is there already; ", Argument("overwrite", True), " replaces it")
        raise make_path_error(FileExistsError, errno.EEXIST, problem, place)


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
