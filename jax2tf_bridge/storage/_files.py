"""Reads and writes files and directories, on disk and in storage behind a scheme.

Files and directories appear complete or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from jax2tf_bridge._utils import reraise_interrupts
from jax2tf_bridge.errors import Argument, Message, make_path_error
from jax2tf_bridge.storage import _uploads
from jax2tf_bridge.storage._disk import (
    exchange,
    find_existing_parent,
    local_path,
    name_full_disk,
    sync_folder,
    sync_tree,
)
from jax2tf_bridge.storage._paths import AnyPath, StoragePath, as_path, copy_file, wait_until
from jax2tf_bridge.storage._staging import clear_leftovers, stage_directory, staging_folder

_STAGING_NAME = "jax2tf-bridge-copy"
_EXISTS = Message("already exists; ", Argument("overwrite", True), " replaces it")

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
            raise make_path_error(errno.EISDIR, "is a folder: name a file", place)
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
        replacement = _replace_on_disk(local_path(place))  # a link remains a link
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
    if place.is_dir():
        raise make_path_error(errno.EEXIST, "is a folder: name a file in it", place)
    if isinstance(place, StoragePath):
        place.check_is_below()
    else:
        _check_file_on_disk(place, bytes_of)
    if not overwrite and place.exists():
        raise make_path_error(errno.EEXIST, _EXISTS, place)


def _check_file_on_disk(path: Path, bytes_of: str) -> None:
    target = local_path(path)
    if target.exists() and not target.is_file():
        # A file would replace a device or a pipe.
        text = (
            "exists and is not a regular file: choose another path, or write the bytes that "
            f"{bytes_of} returns to it"
        )
        raise make_path_error(errno.EEXIST, text, path)
    if not target.parent.exists():
        text = f"cannot be written: there is no folder {path.parent}. Create it first"
        raise make_path_error(errno.ENOENT, text, path)
    if not target.parent.is_dir():
        text = f"cannot be written: {path.parent} is a file, not a folder"
        raise make_path_error(errno.ENOTDIR, text, path)


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


def whole_directory(
    path: AnyPath, *, overwrite: bool = False, has: str
) -> AbstractContextManager[Path]:
    """Yields a path on disk to write a directory at, and moves the directory to `path` at the end.

    On disk, the directory is renamed. Behind a scheme, it is uploaded, the file `has` last. If
    writing fails, `path` is unchanged.

    Args:
      path: the final path; it must not exist or must be an empty directory. Missing parents are
        made.
      overwrite: whether to replace a non-empty directory, on disk only.
      has: the name of a file that every directory of this kind has. Directories without it are not
        replaced, and readers ignore them.

    Raises:
      FileExistsError: `path` exists and may not be replaced.
      NotADirectoryError: `path` or a parent is a file.
      OSError: `path` is the current folder, a mount point or a bucket, or cannot be written, or the
        disk is full.
    """
    path = as_path(path)
    if isinstance(path, StoragePath):
        return _uploads.whole_upload(path, overwrite=overwrite, last=has)
    return whole_directory_on_disk(path, overwrite=overwrite, has=has)


def check_free(path: AnyPath, *, overwrite: bool, has: str | None = None) -> None:
    """Raises, before any work, if `whole_directory` would refuse `path`."""
    path = as_path(path)
    if isinstance(path, StoragePath):
        _uploads.check_free_upload(path, overwrite=overwrite)
    else:
        _check_free_on_disk(path, overwrite=overwrite, has=has)


@contextlib.contextmanager
def whole_directory_on_disk(
    path: Path, *, overwrite: bool = False, has: str | None = None
) -> Iterator[Path]:
    """Does what `whole_directory` does for a path on disk.

    If writing fails, nothing is left behind. If the process is killed or the machine stops, only a
    hidden folder beside `path` is left, which the next call for this path removes. Linux exchanges
    two directories atomically on most file systems. If the system cannot, and the process is killed
    between two renames, the next call first restores the old directory.
    """
    path = local_path(path)
    if path.parent.is_dir():
        clear_leftovers(path.parent, path.name, path)
    _check_free_on_disk(path, overwrite=overwrite, has=has)
    with (
        stage_directory(path.parent, path.name, target=path) as place,
        reraise_interrupts() as check_interrupts,
    ):
        partial = place / "new"  # the writer makes it, with the usual permissions
        yield partial
        sync_tree(partial)
        _check_free_on_disk(path, overwrite=overwrite, has=has)
        check_interrupts()
        if overwrite and path.exists():
            _replace(path, partial, place / "old")
        else:
            partial.rename(path)  # atomic; fails unless the path is free or an empty folder
        sync_folder(path.parent)


def _check_free_on_disk(path: Path, *, overwrite: bool, has: str | None = None) -> None:
    if not path.exists():
        find_existing_parent(path)
        return
    if not path.is_dir():
        raise make_path_error(errno.ENOTDIR, "already exists, and is not a folder", path)
    if path.samefile(Path.cwd()) or path.is_mount():
        raise make_path_error(errno.EBUSY, "cannot be replaced: name a folder within it", path)
    if not any(path.iterdir()):
        return
    if not overwrite:
        raise make_path_error(errno.EEXIST, _EXISTS, path)
    if has is not None and not (path / has).exists():
        text = f"is not replaced: it has other contents, and no {has}"
        raise make_path_error(errno.EEXIST, text, path)


def _replace(path: Path, new: Path, old: Path) -> None:
    if exchange(path, new):
        return
    try:
        path.rename(old)
        new.rename(path)
    except BaseException:  # also an interrupt between the two renames
        if old.exists() and not path.exists():
            old.rename(path)
        raise


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
    with staging_folder(Path(tempfile.gettempdir()), _STAGING_NAME) as place:
        # TensorFlow would interpret brackets and backslashes as a pattern.
        is_plain = path.name not in ("", ".", "..") and not set("[]\\") & set(path.name)
        copy = place / (path.name if is_plain else "copy")
        with name_full_disk(place.parent, partial=place):
            _copy_to_disk(path, copy)
        yield copy


def _copy_to_disk(path: StoragePath, copy: Path) -> None:
    if not path.is_dir():
        copy_file(path, copy)
        return
    copy.mkdir()
    for name, _ in path.files_below():
        _check_name(name, path)
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        copy_file(path / name, copy / name)


def _check_name(name: str, folder: StoragePath) -> None:
    """Raises if a file of this name would be written outside of the copy of its folder."""
    if any(part in ("", ".", "..") or os.path.basename(part) != part for part in name.split("/")):
        text = f"cannot be copied to the disk: it has the file {name!r:.200}, a name outside of it"
        raise make_path_error(errno.EINVAL, text, folder)
