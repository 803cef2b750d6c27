"""Operations that a storage behind a scheme offers.

A backend is small, so that every storage has what it needs: no operation is about more than one
file, but for listing a folder. None of them is assumed to be atomic but renaming a file, which
object stores carry out as a copy that appears whole.
"""

from __future__ import annotations

import errno
import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.errors import make_path_error

# Bytes to read or write in one call.
_MAX_PIECE_BYTES = 16 << 20
_BUFFER = 1 << 20


@dataclass(frozen=True)
class FileStatus:
    """File or folder that is there.

    Attributes:
      size: in bytes; 0 of a folder.
      is_folder: whether it is one.
      state: changes when the file is written again, as far as the storage tells.
    """

    size: int
    is_folder: bool
    state: str = ""


class Backend(ABC):
    """File systems of one kind; all paths have their scheme.

    Every method raises an OSError with the path if the storage fails.
    """

    @abstractmethod
    def find(self, path: str) -> FileStatus | None:
        """Returns the status of a path; None if nothing is there."""

    @abstractmethod
    def names(self, path: str) -> list[str]:
        """Lists the names in a folder; none if there is no such folder."""

    @abstractmethod
    def reader(self, path: str) -> io.BufferedReader:
        """Opens a file for reading, from any position."""

    @abstractmethod
    def writer(self, path: str) -> FileWriter:
        """Opens a new file for writing; the folder above is there."""

    @abstractmethod
    def make_folder(self, path: str) -> None:
        """Makes a folder and those above it, where there are folders."""

    @abstractmethod
    def rename(self, path: str, target: str) -> None:
        """Renames a file; a file of that name is replaced."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Removes a file, if it is there."""

    @abstractmethod
    def remove_folder(self, path: str) -> None:
        """Removes a folder and what is left in it, if it is there."""


class FileWriter(io.RawIOBase):
    """Hands pieces to an open file of a backend, and closes it."""

    def __init__(self, file: Any, failed: Failed) -> None:
        """Writes to `file`; `failed` makes errors of the backend's."""
        self._file, self._failed, self._size = file, failed, 0

    def tell(self) -> int:
        return self._size

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with self._failed:
            for at in range(0, len(view), _MAX_PIECE_BYTES):
                self._file.write(bytes(view[at : at + _MAX_PIECE_BYTES]))
        self._size += len(view)
        return len(view)

    def close(self) -> None:
        if not self.closed:
            try:
                with self._failed:
                    self._file.close()
            finally:
                super().close()


class _FileReader(io.RawIOBase):
    """Reads an open file of a backend at a position of its own, since others may share the file."""

    def __init__(self, file: Any, size: int, failed: Failed) -> None:
        self._file, self._size, self._failed, self._at = file, size, failed, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        with self._failed:
            self._file.seek(self._at)
            data = self._file.read(min(len(view), _MAX_PIECE_BYTES))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            super().close()


def buffered(file: Any, size: int, failed: Failed) -> io.BufferedReader:
    """Makes a reader of a file that has `seek` and `read`."""
    return io.BufferedReader(_FileReader(file, size, failed), _BUFFER)


NO_FOLDER = "cannot be written: the folder, or the bucket, does not exist"
"""Text for a file that cannot be made where it is to be."""


class Failed:
    """Context that turns errors of a backend into an OSError about a path."""

    def __init__(
        self,
        path: str,
        codes: Callable[[Exception], int | None] | None = None,
        missing: str = "does not exist",
    ) -> None:
        """Takes what goes into the error.

        Args:
          path: what it is about.
          codes: gives the number of `errno` for an error, None for what it does not know.
          missing: the text if the path is not there.
        """
        self._path, self._codes, self._missing = path, codes, missing

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception):
            return
        code = self._codes(error) if self._codes else None
        if code is None:
            code = getattr(error, "errno", None) or _CODES.get(type(error), errno.EIO)
        kind = _KINDS.get(code, OSError)
        if code == errno.ENOENT:
            text = self._missing
        else:
            said = str(error).strip().splitlines()
            text = f"cannot be used: {type(error).__name__}{': ' + said[0] if said else ''}"
        raise make_path_error(kind, code, text, self._path) from error


_KINDS: dict[int, type[OSError]] = {
    errno.ENOENT: FileNotFoundError,
    errno.EACCES: PermissionError,
    errno.EPERM: PermissionError,
    errno.EEXIST: FileExistsError,
    errno.ENOTDIR: NotADirectoryError,
    errno.EISDIR: IsADirectoryError,
}
# Errors of fsspec's that were raised without a number.
_CODES: dict[type[Exception], int] = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    FileExistsError: errno.EEXIST,
    NotADirectoryError: errno.ENOTDIR,
    IsADirectoryError: errno.EISDIR,
}
