"""Renames directories: never over something that is there, or two for each other at once."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

from jax2tf_bridge.errors import path_error

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
            raise path_error(FileExistsError, errno.EEXIST, "is there already", target) from e
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
