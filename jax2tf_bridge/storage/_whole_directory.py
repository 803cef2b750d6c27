"""Writes a directory on disk completely or not at all, even if the process or machine dies."""

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

from jax2tf_bridge._utils import in_units, reraise_interrupts
from jax2tf_bridge.errors import Argument, Message, make_path_error
from jax2tf_bridge.storage._staging import clear_leftovers, staging_folder

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def whole_directory(
    path: Path, *, overwrite: bool = False, has: str | None = None
) -> Iterator[Path]:
    """Yields a path to write a directory at, and renames the directory to `path` at the end.

    If writing fails, nothing is left behind and `path` is unchanged. If the process is killed or
    the machine stops, the same holds, apart from a hidden folder beside `path`, which the next call
    for this path removes. Linux exchanges two directories atomically on most file systems. If the
    system cannot, and the process is killed between two renames, the next call first restores the
    old directory.

    Args:
      path: the final path; it must not exist or must be an empty directory. Missing parents are
        made.
      overwrite: whether to replace a non-empty directory.
      has: the name of a file that every directory of this kind has; others are not replaced.

    Raises:
      FileExistsError: `path` exists and may not be replaced.
      NotADirectoryError: `path` or a parent is a file.
      OSError: `path` is the current folder or a mount point, or cannot be written, or the disk is
        full.
    """
    path = local_path(path)
    if path.parent.is_dir():
        clear_leftovers(path.parent, path.name, path)
    check_free(path, overwrite=overwrite, has=has)
    with (
        staging(path.parent, path.name, target=path) as place,
        reraise_interrupts() as check_interrupts,
    ):
        partial = place / "new"  # the writer makes it, with the usual permissions
        yield partial
        sync_tree(partial)
        check_free(path, overwrite=overwrite, has=has)
        check_interrupts()
        if overwrite and path.exists():
            _replace(path, partial, place / "old")
        else:
            partial.rename(path)  # atomic; fails unless the path is free or an empty folder
        sync_folder(path.parent)


def local_path(path: str | os.PathLike[str]) -> Path:
    """Returns the absolute path with links resolved, so that the target of a link is written."""
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def staging(
    parent: Path, name: str, *, target: Path | None = None, needed: int | None = None
) -> Iterator[Path]:
    """Yields a staging folder in `parent`, whose folder `new` is to be written and renamed.

    Args:
      parent: the folder; it and its parents are made, and removed again on failure.
      name: the name of the directory.
      target: the path that `old` is restored to if it is free.
      needed: the number of bytes to write, if known.

    Raises:
      NotADirectoryError: a parent is a file.
      OSError: `parent` cannot be written to, or the disk is full.
    """
    with contextlib.ExitStack() as stack:
        with _name_full_disk(parent, needed):
            stack.enter_context(_make_folders(parent))
            place = stack.enter_context(staging_folder(parent, name, target))
        with _name_full_disk(parent, needed, place / "new"):
            yield place


def sync_tree(folder: Path) -> None:
    """Syncs a directory and everything in it to the disk, file by file.

    Raises:
      OSError: the directory is missing, or a file could not be written.
    """
    for path, _, files in os.walk(folder, topdown=False, onerror=_raise):
        for file in files:
            _sync(os.path.join(path, file))
        sync_folder(path)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Syncs the names in a folder to the disk, if the system supports that."""
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
def _make_folders(folder: Path) -> Iterator[None]:
    above = _find_existing_parent(folder / "new")
    missing = [p for p in (folder, *folder.parents) if p != above and above in p.parents]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
        for created in missing:
            sync_folder(created.parent)
    except BaseException:
        for created in missing:
            with contextlib.suppress(OSError):  # other processes use it
                created.rmdir()
        raise


def _find_existing_parent(path: Path) -> Path:
    """Returns the nearest existing parent of a path.

    Raises:
      NotADirectoryError: the parent is a file.
    """
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise make_path_error(NotADirectoryError, errno.ENOTDIR, "is a file, not a folder", above)
    return above


@contextlib.contextmanager
def _name_full_disk(
    folder: Path, needed: int | None, partial: Path | None = None
) -> Iterator[None]:
    """Makes errors of a full disk name `folder`, unless they name a path elsewhere.

    Args:
      folder: the folder that the block writes to.
      needed: the number of bytes to write, if known.
      partial: the directory that is removed after an error.
    """
    try:
        yield
    except Exception as e:
        code = _get_full_disk_code(e)
        if code is None or _names_path_elsewhere(e, folder):
            raise
        raise _make_full_disk_error(code, folder, partial, needed) from e


def _get_full_disk_code(error: Exception) -> int | None:
    if isinstance(error, OSError) and error.errno in _FULL:
        return error.errno
    # TensorFlow's errors have the system's text, but not its errno.
    return next((code for code in _FULL if os.strerror(code) in str(error)), None)


def _names_path_elsewhere(error: Exception, folder: Path) -> bool:
    """Returns whether an error names a path that is neither in `folder` nor one of its parents."""
    name = error.filename if isinstance(error, OSError) else None
    if not isinstance(name, (str, os.PathLike)):
        return False
    if "://" in os.fspath(name):
        return True
    path, folder = local_path(name), local_path(folder)
    return not (path.is_relative_to(folder) or folder.is_relative_to(path))


def _make_full_disk_error(
    code: int, folder: Path, partial: Path | None, needed: int | None
) -> OSError:
    text = f"cannot be written to ({os.strerror(code)})"
    if code == errno.EFBIG:
        text += ": this process may not write files of that size (see `ulimit -f`)"
    elif code == errno.EDQUOT:
        text += ": make room within the quota"
    else:
        free = shutil.disk_usage(_find_existing_parent(folder / "new")).free
        free += 0 if partial is None else _measure_size(partial)
        text += f": {in_units(free)} are free"
        text += ", which is not enough" if needed is None else f", {in_units(needed)} are needed"
    return make_path_error(OSError, code, f"{text}. Existing files are unchanged", folder)


def _measure_size(folder: Path) -> int:
    size = 0
    for path, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(path, file)).st_blocks * 512
    return size


def check_free(path: Path, *, overwrite: bool, has: str | None = None) -> None:
    """Raises, before any work, if `whole_directory` would refuse `path`."""
    if not path.exists():
        _find_existing_parent(path)
        return
    if not path.is_dir():
        raise make_path_error(
            NotADirectoryError, errno.ENOTDIR, "is there already, and is not a folder", path
        )
    if path.samefile(Path.cwd()) or path.is_mount():
        raise make_path_error(
            OSError, errno.EBUSY, "cannot be replaced: name a folder within it", path
        )
    if not any(path.iterdir()):
        return
    if not overwrite:
        problem = Message("is there already; ", Argument("overwrite", True), " replaces it")
        raise make_path_error(FileExistsError, errno.EEXIST, problem, path)
    if has is not None and not (path / has).exists():
        text = f"is not replaced: it has other contents, and no {has}"
        raise make_path_error(FileExistsError, errno.EEXIST, text, path)


def _replace(path: Path, new: Path, old: Path) -> None:
    if _rename(path, new, _EXCHANGE):
        return
    try:
        path.rename(old)
        new.rename(path)
    except BaseException:  # also an interrupt between the two renames
        if old.exists() and not path.exists():
            old.rename(path)
        raise


# Flags of Linux' renameat2(2), and its constant for the current folder.
_NO_REPLACE, _EXCHANGE = 1, 2
_AT_FDCWD = -100
# Errors of kernels and file systems without the flag. A plain rename follows, and reports other
# problems.
_WITHOUT_FLAG = {
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EXDEV,
}


def rename_to_new(source: Path, target: Path) -> None:
    """Renames a non-empty directory atomically, unless the new name exists.

    Without support of the file system, an empty directory of that name is replaced.

    Raises:
      FileExistsError: the new name exists.
      OSError: the directory cannot be renamed.
    """
    if _rename(source, target, _NO_REPLACE):
        return
    try:
        os.rename(source, target)
    except OSError as e:
        # POSIX allows the first two for a non-empty folder; the third means a file.
        taken = e.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
        if taken and os.path.lexists(target):
            raise make_path_error(FileExistsError, errno.EEXIST, "is there already", target) from e
        raise


def _rename(source: Path, target: Path, flag: int) -> bool:
    """Renames or exchanges two names atomically; returns False if the system cannot."""
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
    """Returns the function of the C library (glibc 2.28 and newer); None without it."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p) * 2 + (ctypes.c_uint,)
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]
