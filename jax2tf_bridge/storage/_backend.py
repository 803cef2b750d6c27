"""Backends: operations on storage behind a scheme, TensorFlow's backend, and their choice.

The operations are few, so that every storage can provide them. Only renaming a file is assumed to
be atomic: object stores copy the file, and the copy appears complete.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.errors import make_path_error

# Maximum number of bytes per read or write.
_MAX_PIECE_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 20


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

    def __init__(self, file: Any, path: str) -> None:
        """Writes to `file`; errors name `path`."""
        self._file, self._path, self._size = file, path, 0

    def tell(self) -> int:
        return self._size

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with convert_errors(self._path, NO_FOLDER):
            for at in range(0, len(view), _MAX_PIECE_BYTES):
                self._file.write(bytes(view[at : at + _MAX_PIECE_BYTES]))
        self._size += len(view)
        return len(view)

    def close(self) -> None:
        if not self.closed:
            try:
                with convert_errors(self._path, NO_FOLDER):
                    self._file.close()
            finally:
                super().close()


class _FileReader(io.RawIOBase):
    """Reader with its own position, because others may share the open file."""

    def __init__(self, file: Any, size: int, path: str) -> None:
        self._file, self._size, self._path, self._at = file, size, path, 0

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
        with convert_errors(self._path):
            self._file.seek(self._at)
            data = self._file.read(min(len(view), _MAX_PIECE_BYTES))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            super().close()


def make_reader(file: Any, size: int, path: str) -> io.BufferedReader:
    """Makes a buffered reader of a file that has `seek` and `read`; errors name `path`."""
    return io.BufferedReader(_FileReader(file, size, path), _BUFFER_BYTES)


NO_FOLDER = "cannot be written: the folder, or the bucket, does not exist"
"""Text of errors for a file in a missing folder."""


@contextlib.contextmanager
def convert_errors(path: str, missing: str = "does not exist") -> Iterator[None]:
    """Converts errors of a backend in the block to an OSError that names a path.

    Args:
      path: the path.
      missing: the text for a missing path.
    """
    try:
        yield
    except Exception as e:
        kind = type(e).__name__
        code = getattr(e, "errno", None) or _CODES.get(kind, errno.EIO)
        if code == errno.ENOENT:
            text = missing
        else:
            lines = str(e).strip().splitlines()
            text = f"cannot be used: {kind}{': ' + lines[0] if lines else ''}"
        raise make_path_error(code, text, path) from e


# Errors without an errno: those of fsspec, and those of tf.errors.
_CODES = {
    "FileNotFoundError": errno.ENOENT,
    "PermissionError": errno.EACCES,
    "FileExistsError": errno.EEXIST,
    "NotADirectoryError": errno.ENOTDIR,
    "IsADirectoryError": errno.EISDIR,
    "NotFoundError": errno.ENOENT,
    "PermissionDeniedError": errno.EACCES,
    "UnauthenticatedError": errno.EACCES,
    "AlreadyExistsError": errno.EEXIST,
    "ResourceExhaustedError": errno.ENOSPC,
}


class GFileBackend(Backend):
    """Backend for TensorFlow's file systems."""

    def __init__(self, gfile: Any) -> None:
        """Uses tf.io.gfile."""
        self._gfile = gfile

    def find(self, path: str) -> FileStatus | None:
        with contextlib.suppress(FileNotFoundError), convert_errors(path):
            status = self._gfile.stat(path)
            if status.is_directory:
                return FileStatus(0, True)
            return FileStatus(status.length, False, str(status.mtime_nsec))
        return None

    def names(self, path: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError), convert_errors(path):
            return [name.rstrip("/") for name in self._gfile.listdir(path)]
        return []

    def reader(self, path: str) -> io.BufferedReader:
        with convert_errors(path):
            file = self._gfile.GFile(path, "rb")
            return make_reader(file, file.size(), path)

    def writer(self, path: str) -> FileWriter:
        with convert_errors(path, NO_FOLDER):
            return FileWriter(self._gfile.GFile(path, "wb"), path)

    def make_folder(self, path: str) -> None:
        with convert_errors(path):
            self._gfile.makedirs(path)

    def rename(self, path: str, target: str) -> None:
        with convert_errors(target):
            self._gfile.rename(path, target, overwrite=True)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), convert_errors(path):
            self._gfile.remove(path)

    def remove_folder(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), convert_errors(path):
            self._gfile.rmtree(path)


class _RamBackend(GFileBackend):
    """Backend for TensorFlow's ram://, which confuses a prefix of a name with a folder.

    If only ram://models exists, TensorFlow reports ram://m as a folder that contains "odels".
    Removing ram://m removes the contents of ram://models and then raises NotFoundError.
    """

    def find(self, path: str) -> FileStatus | None:
        status = super().find(path)
        if status is None or not status.is_folder:
            return status
        parent, _, name = path.rpartition("/")
        # The parent of a top-level name, ram://name, is ram://.
        siblings = super().names(parent if parent != "ram:/" else "ram://")
        return status if name in siblings else None

    def names(self, path: str) -> list[str]:
        if self.find(path) is None:
            return []
        return [
            name for name in super().names(path) if super(_RamBackend, self).find(f"{path}/{name}")
        ]


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
    raise make_path_error(errno.EPROTONOSUPPORT, _describe_missing(scheme), path)


def _open_gfile(scheme: str, path: str) -> Backend | None:
    if "tensorflow" not in sys.modules and not _is_installed("tensorflow"):
        return None
    import tensorflow as tf

    if scheme not in tf.io.gfile.get_registered_schemes():
        return None
    return (_RamBackend if scheme == "ram" else GFileBackend)(tf.io.gfile)


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
