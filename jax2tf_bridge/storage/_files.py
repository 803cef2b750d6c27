"""Reads files, and replaces whole files, on disk and in storage behind a scheme."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from typing import BinaryIO, TypeAlias, cast

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.storage import _replaced_file
from jax2tf_bridge.storage._arrivals import has_size, wait_until
from jax2tf_bridge.storage._paths import StoragePath, as_path

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

    On disk, the file is synced at the end, and gets the mode of the file that it replaces.

    Args:
      path: the file; if it is a link, its target is replaced.
      bytes_of: the name of a function that returns the bytes, for the advice in messages.

    Raises:
      FileExistsError: `path` is not a regular file.
      OSError: the file cannot be written; the error has the path as it was given.
    """
    place = as_path(path)
    if not isinstance(place, StoragePath):
        with _replaced_file.replace_file_at(place, bytes_of=bytes_of) as handle:
            yield handle
        return
    if place.is_dir():
        text = "is there and is a folder: name a file to write"
        raise make_path_error(FileExistsError, errno.EEXIST, text, place)
    place.check_is_below()
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{secrets.token_hex(16)}.tmp")
    try:
        with place.backend.writer(str(temporary)) as file:
            yield cast(BinaryIO, file)
            size = file.tell()
        wait_until(lambda: has_size(temporary, size), temporary)
        place.backend.rename(str(temporary), str(place))
        # If both names exist, the file was not renamed.
        wait_until(lambda: not temporary.exists() and has_size(place, size), place)
    except BaseException as e:
        with contextlib.suppress(OSError):
            place.backend.remove(str(temporary))
        if isinstance(e, OSError):
            e.filename = os.fspath(path)
        raise
