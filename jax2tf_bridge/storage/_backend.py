"""Backends: operations on storage behind a scheme, and the choice of one for a scheme.

The operations are few, so that every storage can provide them. Only renaming a file is assumed to
be atomic: object stores copy the file, and the copy appears complete.
"""

from __future__ import annotations

import errno
import importlib.util
import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.errors import make_path_error

# Maximum number of bytes per read or write.
_MAX_PIECE_BYTES = 16 << 20
_BUFFER = 1 << 20


@dataclass(frozen=True)
class FileStatus:
    """Status of an existing file or folder.

    Attributes:
      size: the size in bytes; 0 for a folder.
      is_folder: whether it is a folder.
      state: a value that changes whenever the file is written; "" if the storage has no such value.
    """

    size: int
    is_folder: bool
    state: str = ""


class Backend(ABC):
    """File systems of one kind; paths include the scheme.

    Every method raises an OSError with the path if the storage fails.
    """

    @abstractmethod
    def find(self, path: str) -> FileStatus | None:
        """Returns the status of a path; None if it does not exist."""

    @abstractmethod
    def names(self, path: str) -> list[str]:
        """Lists the names in a folder; returns an empty list for a missing folder."""

    @abstractmethod
    def reader(self, path: str) -> io.BufferedReader:
        """Opens a file for reading with random access."""

    @abstractmethod
    def writer(self, path: str) -> FileWriter:
        """Opens a new file for writing; its folder must exist."""

    @abstractmethod
    def make_folder(self, path: str) -> None:
        """Makes a folder and its parents, if the storage has folders."""

    @abstractmethod
    def rename(self, path: str, target: str) -> None:
        """Renames a file; replaces an existing file at `target`."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Removes a file, if it exists."""

    @abstractmethod
    def remove_folder(self, path: str) -> None:
        """Removes a folder and its contents, if it exists."""


class FileWriter(io.RawIOBase):
    """Writes in pieces to an open file of a backend, and closes it."""

    def __init__(self, file: Any, errors: ErrorConverter) -> None:
        """Writes to `file`; `errors` converts the backend's errors."""
        self._file, self._errors, self._size = file, errors, 0

    def tell(self) -> int:
        return self._size

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with self._errors:
            for at in range(0, len(view), _MAX_PIECE_BYTES):
                self._file.write(bytes(view[at : at + _MAX_PIECE_BYTES]))
        self._size += len(view)
        return len(view)

    def close(self) -> None:
        if not self.closed:
            try:
                with self._errors:
                    self._file.close()
            finally:
                super().close()


class _FileReader(io.RawIOBase):
    """Reader with its own position, because others may share the open file."""

    def __init__(self, file: Any, size: int, errors: ErrorConverter) -> None:
        self._file, self._size, self._errors, self._at = file, size, errors, 0

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
        with self._errors:
            self._file.seek(self._at)
            data = self._file.read(min(len(view), _MAX_PIECE_BYTES))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            super().close()


def make_reader(file: Any, size: int, errors: ErrorConverter) -> io.BufferedReader:
    """Makes a buffered reader of a file that has `seek` and `read`."""
    return io.BufferedReader(_FileReader(file, size, errors), _BUFFER)


NO_FOLDER = "cannot be written: the folder, or the bucket, does not exist"
"""Text of errors for a file in a missing folder."""


class ErrorConverter:
    """Context manager that converts errors of a backend to an OSError that names a path."""

    def __init__(
        self,
        path: str,
        codes: Callable[[Exception], int | None] | None = None,
        missing: str = "does not exist",
    ) -> None:
        """Stores the parts of the error.

        Args:
          path: the path.
          codes: returns the `errno` of an error; None for unknown errors.
          missing: the text for a missing path.
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
        kind = type(OSError(code, ""))  # OSError chooses its subclass by the code
        if code == errno.ENOENT:
            text = self._missing
        else:
            lines = str(error).strip().splitlines()
            text = f"cannot be used: {type(error).__name__}{': ' + lines[0] if lines else ''}"
        raise make_path_error(kind, code, text, self._path) from error


# Errors that fsspec raises without an errno.
_CODES: dict[type[Exception], int] = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    FileExistsError: errno.EEXIST,
    NotADirectoryError: errno.ENOTDIR,
    IsADirectoryError: errno.EISDIR,
}


# Packages that fsspec needs for each scheme.
_PACKAGES = {
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hdfs": "pyarrow",
    "hf": "huggingface_hub",
    "http": "aiohttp",
    "https": "aiohttp",
    "s3": "s3fs",
    "s3a": "s3fs",
    "sftp": "paramiko",
    "ssh": "paramiko",
}

_TENSORFLOW_ONLY = frozenset({"ram"})


def choose_backend(scheme: str, path: str) -> Backend:
    """Chooses the backend for paths of a scheme.

    The first of these that supports the scheme is chosen: TensorFlow if it is already imported;
    fsspec with the packages for the scheme; TensorFlow if it is installed.

    Raises:
      OSError: no installed package supports the scheme; the text names the package to install.
    """
    has_tensorflow = hasattr(sys.modules.get("tensorflow"), "io")
    openers = (_open_gfile, _open_fsspec) if has_tensorflow else (_open_fsspec, _open_gfile)
    for open_backend in openers:
        if backend := open_backend(scheme, path):
            return backend
    raise make_path_error(OSError, errno.EPROTONOSUPPORT, _describe_missing(scheme), path)


def _open_gfile(scheme: str, path: str) -> Backend | None:
    if "tensorflow" not in sys.modules and not _is_installed("tensorflow"):
        return None
    from jax2tf_bridge.storage._gfile import gfile_backend

    return gfile_backend(scheme)


def _open_fsspec(scheme: str, path: str) -> Backend | None:
    if scheme in _TENSORFLOW_ONLY or not _is_installed("fsspec"):
        return None
    from jax2tf_bridge.storage._fsspec import FsspecBackend, file_system

    files = file_system(scheme, path)
    return None if files is None else FsspecBackend(files)


def _is_installed(package: str) -> bool:
    if package in sys.modules:
        return sys.modules[package] is not None
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # a parent module cannot be imported
        return False


def _describe_missing(scheme: str) -> str:
    if scheme in _TENSORFLOW_ONLY:
        return (
            f"needs TensorFlow, because nothing else supports {scheme}://: pip install tensorflow"
        )
    more = _PACKAGES.get(scheme)
    if not _is_installed("fsspec"):
        packages = " ".join(["'jax2tf-bridge[storage]'", *([more] if more else [])])
        return f"needs fsspec for {scheme}://: pip install {packages}"
    if more:
        return f"needs a package for {scheme}://: pip install {more}"
    from fsspec.registry import known_implementations

    if reason := known_implementations.get(scheme, {}).get("err"):
        return f"needs a package for {scheme}://. fsspec says: {reason}"
    return (
        f"has the scheme {scheme}://, which TensorFlow and fsspec do not support: import the "
        "package that registers it, or name a local path"
    )
