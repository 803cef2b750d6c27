"""Operations on the disk: syncs, atomic renames, and errors that say which disk is full."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from jax2tf_bridge._utils import format_bytes
from jax2tf_bridge.errors import make_path_error

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def local_path(path: str | os.PathLike[str]) -> Path:
    """Returns the absolute path with links resolved, so that the target of a link is written."""
    return Path(os.path.realpath(path))


def find_existing_parent(path: Path) -> Path:
    """Returns the nearest existing parent of a path.

    Raises:
      NotADirectoryError: the parent is a file.
    """
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise make_path_error(errno.ENOTDIR, "is a file, not a folder", above)
    return above


def sync_tree(folder: Path) -> None:
    """Syncs a directory and everything in it to the disk, file by file.

    Raises:
      OSError: the directory is missing, or a file could not be written.
    """
    for path, _, files in os.walk(folder, topdown=False, onerror=_raise):
        for file in files:
            _sync(os.path.join(path, file))
        sync_folder(path)


def _raise(error: OSError) -> None:
    raise error


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


@contextlib.contextmanager
def name_full_disk(
    folder: Path, needed: int | None = None, partial: Path | None = None
) -> Iterator[None]:
    """Converts errors of a full disk to errors that name the folder, unless they name other paths.

    If an error has no path, and the folder for temporary files is on another disk with less room,
    the new error names that folder.

    Args:
      folder: the folder that the block writes to.
      needed: the number of bytes to write, if known.
      partial: the directory that is removed after an error.
    """
    try:
        yield
    except Exception as e:
        code = _get_full_disk_code(e)
        if code is None:
            raise
        name = e.filename if isinstance(e, OSError) else None
        if isinstance(name, (str, os.PathLike)):
            if _is_elsewhere(os.fspath(name), folder):
                raise
        elif code == errno.ENOSPC and _has_less_room(_temporary_folder(), folder):
            folder, needed, partial = _temporary_folder(), None, None
        raise _make_full_disk_error(code, folder, partial, needed) from e


def _get_full_disk_code(error: Exception) -> int | None:
    if isinstance(error, OSError) and error.errno in _FULL:
        return error.errno
    # TensorFlow's errors have the system's text, but not its errno.
    return next((code for code in _FULL if os.strerror(code) in str(error)), None)


def _is_elsewhere(name: str, folder: Path) -> bool:
    """Returns whether a path is neither in `folder` nor one of its parents, or on another disk."""
    if "://" in name:
        return True
    path, folder = local_path(name), local_path(folder)
    is_related = path.is_relative_to(folder) or folder.is_relative_to(path)
    return not is_related or _is_on_other_disk(path, folder)


def _is_on_other_disk(path: Path, other: Path) -> bool:
    return _find_device(path) != _find_device(other)


def _find_device(path: Path) -> int:
    absolute = path.absolute()
    existing = next(p for p in (absolute, *absolute.parents) if p.exists())
    return existing.stat().st_dev


def _has_less_room(folder: Path, other: Path) -> bool:
    return _is_on_other_disk(folder, other) and _measure_room(folder) < _measure_room(other)


def _measure_room(folder: Path) -> int:
    return shutil.disk_usage(find_existing_parent(folder / "new")).free


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir())


def _make_full_disk_error(
    code: int, folder: Path, partial: Path | None, needed: int | None
) -> OSError:
    text = f"cannot be written to ({os.strerror(code)})"
    if code == errno.EFBIG:
        text += ": this process may not write files of that size (see `ulimit -f`)"
    elif code == errno.EDQUOT:
        text += ": make room within the quota"
    else:
        free = _measure_room(folder) + (0 if partial is None else _measure_size(partial))
        text += f": {format_bytes(free)} are free"
        text += (
            ", which is not enough" if needed is None else f", {format_bytes(needed)} are needed"
        )
    text += ". Existing files are unchanged"
    if code == errno.ENOSPC and folder == _temporary_folder():
        text += ". Make room, or set TMPDIR to a folder on a disk with more"
    return make_path_error(code, text, folder)


def _measure_size(folder: Path) -> int:
    size = 0
    for path, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(path, file)).st_blocks * 512
    return size


# Flags of Linux' renameat2(2), and its constant for the current folder.
_NO_REPLACE, _EXCHANGE = 1, 2
_AT_FDCWD = -100
# Errors of kernels and file systems without the flag. A plain rename follows, and reports other
# problems.
_WITHOUT_FLAG = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV}


def exchange(first: Path, second: Path) -> bool:
    """Exchanges two names atomically; returns False if the system cannot."""
    return _try_rename(first, second, _EXCHANGE)


def rename_to_new(source: Path, target: Path) -> None:
    """Renames a non-empty directory atomically, unless the new name exists.

    Without support of the file system, an empty directory of that name is replaced.

    Raises:
      FileExistsError: the new name exists.
      OSError: the directory cannot be renamed.
    """
    if _try_rename(source, target, _NO_REPLACE):
        return
    try:
        os.rename(source, target)
    except OSError as e:
        # POSIX allows the first two for a non-empty folder; the third means a file.
        taken = e.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
        if taken and os.path.lexists(target):
            raise make_path_error(errno.EEXIST, "already exists", target) from e
        raise


def _try_rename(source: Path, target: Path, flag: int) -> bool:
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
