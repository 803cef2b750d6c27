"""Writes files on disk completely or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replace_file_at(path: str | os.PathLike[str], *, bytes_of: str) -> Iterator[BinaryIO]:
    """Opens a new file for writing, syncs it, and moves it to `path` at the end of the block.

    The file gets the mode of the file that it replaces. If the block raises, the old file stays.

    Args:
      path: the file; if it is a link, its target is replaced.
      bytes_of: the name of a function that returns the bytes, for the advice in messages.

    Raises:
      FileExistsError: `path` is not a regular file.
      OSError: the file cannot be written; the error has the path as it was given.
    """
    # A link remains a link.
    target = Path(os.path.realpath(os.fspath(path)))
    if target.exists() and not target.is_file():
        # A file would replace a device or a pipe.
        raise FileExistsError(
            f"{target} is there and is no regular file: write elsewhere, or write the bytes of "
            f"{bytes_of} to it."
        )
    # The temporary name leaves out the file's name, which may have the maximum length.
    temporary = target.with_name(f".{secrets.token_hex(16)}.tmp")
    try:
        with open(temporary, "xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        if target.exists():
            os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except BaseException as e:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(e, OSError):
            e.filename, e.filename2 = os.fspath(path), None
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Makes a new name in a directory durable, where the system supports that."""
    if os.name != "posix":
        return
    # The file is complete and in its place. If the folder cannot be opened or synced, the system
    # writes the name later.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
