"""Writes a directory on disk complete or not at all, also if process or machine dies."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from jax2tf_bridge._utils import ended_by_interrupts, in_units
from jax2tf_bridge.errors import Argument, Message, make_path_error
from jax2tf_bridge.storage._staging import clear_leftovers, staging_folder

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def whole_directory(
    path: Path, *, overwrite: bool = False, has: str | None = None
) -> Iterator[Path]:
    """Yields a path to write a directory at, and renames that to `path` at the end.

    If writing fails nothing is left of it, and what was at `path` is still there. If the process
    is killed or the machine stops, the same holds, but for a hidden folder beside `path`, which
    the next call for this path removes. Where the system cannot exchange two directories at once
    (it can on Linux, with most file systems), and a process is killed in the instant between two
    renames, that call first puts back what was there.

    Args:
      path: nothing or an empty directory may be there; the folders above it are made.
      overwrite: whether a directory that holds something is replaced.
      has: the file without which a directory is not one of this kind, and not replaced.

    Raises:
      FileExistsError: something is at `path`, or something else than what may be replaced.
      NotADirectoryError: a file is at `path` or above it.
      OSError: `path` is the current folder or a mount point, or cannot be written, or
        the disk is full.
    """
    path = local_path(path)
    if path.parent.is_dir():
        clear_leftovers(path.parent, path.name, path)
    check_free(path, overwrite=overwrite, has=has)
    with (
        staging(path.parent, path.name, target=path) as place,
        ended_by_interrupts() as check_interrupts,
    ):
        partial = place / "new"  # made by the writer, with the usual permissions
        yield partial
        sync_tree(partial)
        check_free(path, overwrite=overwrite, has=has)
        check_interrupts()
        if overwrite and path.exists():
            _replace(path, partial, place / "old")
        else:
            partial.rename(path)  # at once, and only where there is nothing or an empty folder
        sync_folder(path.parent)


def local_path(path: str | os.PathLike[str]) -> Path:
    """Returns the absolute path, following links: what a link names is written, not the link."""
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def staging(
    parent: Path, name: str, *, target: Path | None = None, needed: int | None = None
) -> Iterator[Path]:
    """Yields a staging folder in `parent`, whose `new` is written and renamed.

    Args:
      parent: it and the folders above it are made, and removed again if this fails.
      name: what is written there.
      target: where `old` in it is put back to if nothing is there.
      needed: how many bytes are written, if that is known.

    Raises:
      NotADirectoryError: a file is above.
      OSError: `parent` cannot be written to, or the disk is full.
    """
    with _made_folders(parent), staging_folder(parent, name, target) as place:
        try:
            yield place
        except Exception as e:
            if not _is_full_disk(e):
                raise
            raise _full_disk(e, parent, place / "new", needed) from e


def sync_tree(folder: Path) -> None:
    """Has the system write a directory and all that is in it to the disk, file by file.

    Raises:
      OSError: there is none, or it could not be written.
    """
    for path, _, files in os.walk(folder, topdown=False, onerror=_raise):
        for file in files:
            _sync(os.path.join(path, file))
        sync_folder(path)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Has the system write the names in a folder to the disk, where it offers that."""
    if os.name != "posix":
        return
    try:
        _sync(folder)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise


def _sync(path: str | os.PathLike[str]) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _raise(error: OSError) -> None:
    raise error


@contextlib.contextmanager
def _made_folders(folder: Path) -> Iterator[None]:
    above = _existing_parent(folder / "new")
    missing = [p for p in (folder, *folder.parents) if p != above and above in p.parents]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
        for made in missing:
            sync_folder(made.parent)
    except BaseException:
        for made in missing:
            with contextlib.suppress(OSError):  # others use it
                made.rmdir()
        raise


def _existing_parent(path: Path) -> Path:
    """Returns the lowest folder above a path that is there.

    Raises:
      NotADirectoryError: it is a file.
    """
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise make_path_error(NotADirectoryError, errno.ENOTDIR, "is a file, and no folder", above)
    return above


def _is_full_disk(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    # TensorFlow's errors have the system's text and not its number.
    return any(_said(code, error) for code in _FULL)


def _full_disk(error: Exception, parent: Path, partial: Path, needed: int | None) -> OSError:
    code = next(c for c in _FULL if c == getattr(error, "errno", None) or _said(c, error))
    text = f"cannot be written to ({os.strerror(code)})"
    if code == errno.EFBIG:
        text += ": this process may not write files of that size (see `ulimit -f`)"
    elif code == errno.EDQUOT:
        text += ": make room within the quota"
    else:
        free = shutil.disk_usage(parent).free + _size(partial)
        text += f": {in_units(free)} are free"
        text += ", which is not enough" if needed is None else f", {in_units(needed)} are needed"
    return make_path_error(OSError, code, f"{text}. What was there is unchanged", parent)


def _said(code: int, error: Exception) -> bool:
    return os.strerror(code) in str(error)


def _size(folder: Path) -> int:
    size = 0
    for path, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(path, file)).st_blocks * 512
    return size


def check_free(path: Path, *, overwrite: bool, has: str | None = None) -> None:
    """Raises, before the work is done, if `whole_directory` would refuse what is at `path`."""
    if not path.exists():
        _existing_parent(path)
        return
    if not path.is_dir():
        raise make_path_error(
            NotADirectoryError, errno.ENOTDIR, "is there already, and is no folder", path
        )
    if path.samefile(Path.cwd()) or path.is_mount():
        raise make_path_error(
            OSError, errno.EBUSY, "cannot be replaced: name a folder within it", path
        )
    if not any(path.iterdir()):
        return
    if not overwrite:
        there = Message("is there already; ", Argument("overwrite", True), " replaces it")
        raise make_path_error(FileExistsError, errno.EEXIST, there, path)
    if has is not None and not (path / has).exists():
        text = f"is not replaced: it has no {has}, but something else"
        raise make_path_error(FileExistsError, errno.EEXIST, text, path)


def _replace(path: Path, new: Path, old: Path) -> None:
    if exchange(path, new):
        return
    try:
        path.rename(old)
        new.rename(path)
    except BaseException:  # an interrupt between the two as well
        if old.exists() and not path.exists():
            old.rename(path)
        raise


# Linux' renameat2(2): flags, and "relative to the current folder".
_NO_REPLACE, _EXCHANGE = 1, 2
_AT_FDCWD = -100
# Errors of kernels and file systems without the flag. The plain rename that is then tried says
# what else is wrong.
_WITHOUT_FLAG = {
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EXDEV,
}


def rename_to_new(source: Path, target: Path) -> None:
    """Renames a directory that is not empty, at once, unless something has the new name.

    Where the file system has no such renaming, an empty directory of that name is replaced.

    Raises:
      FileExistsError: something has that name.
      OSError: it cannot be renamed.
    """
    if _renamed(source, target, _NO_REPLACE):
        return
    try:
        os.rename(source, target)
    except OSError as e:
        # POSIX names both of the first two for a folder that is not empty; the third is a file.
        taken = e.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
        if taken and os.path.lexists(target):
            raise make_path_error(FileExistsError, errno.EEXIST, "is there already", target) from e
        raise


def exchange(one: Path, other: Path) -> bool:
    """Gives each of two the other's name at once; False if the system cannot.

    Raises:
      OSError: one is missing, or they cannot be renamed.
    """
    return _renamed(one, other, _EXCHANGE)


def _renamed(source: Path, target: Path, flag: int) -> bool:
    function = _renameat2()
    if function is None:
        return False
    names = os.fsencode(source), os.fsencode(target)
    if function(_AT_FDCWD, names[0], _AT_FDCWD, names[1], flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in _WITHOUT_FLAG:
        return False
    raise OSError(code, os.strerror(code), str(source), None, str(target))


@functools.cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """Finds the C library's function, which glibc has since 2.28; None elsewhere."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p) * 2 + (ctypes.c_uint,)
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]
