"""Backend for TensorFlow's file systems, tf.io.gfile."""

from __future__ import annotations

import contextlib
import errno
import io
from typing import Any

from jax2tf_bridge.storage._backend import (
    NO_FOLDER,
    Backend,
    ErrorConverter,
    FileStatus,
    FileWriter,
    make_reader,
)

# Keyed by the names in tf.errors.
_ERRORS = {
    "NotFoundError": errno.ENOENT,
    "PermissionDeniedError": errno.EACCES,
    "UnauthenticatedError": errno.EACCES,
    "AlreadyExistsError": errno.EEXIST,
    "ResourceExhaustedError": errno.ENOSPC,
}


def gfile_backend(scheme: str) -> GFileBackend | None:
    """Imports TensorFlow and returns its backend; None if it does not support the scheme."""
    import tensorflow as tf

    if scheme not in tf.io.gfile.get_registered_schemes():
        return None
    return (_RamBackend if scheme == "ram" else GFileBackend)(tf.io.gfile)


class GFileBackend(Backend):
    """Backend for TensorFlow's file systems."""

    def __init__(self, gfile: Any) -> None:
        """Uses tf.io.gfile."""
        self._gfile = gfile

    def find(self, path: str) -> FileStatus | None:
        with contextlib.suppress(FileNotFoundError), _convert_errors(path):
            status = self._gfile.stat(path)
            if status.is_directory:
                return FileStatus(0, True)
            return FileStatus(status.length, False, str(status.mtime_nsec))
        return None

    def names(self, path: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError), _convert_errors(path):
            return [name.rstrip("/") for name in self._gfile.listdir(path)]
        return []

    def reader(self, path: str) -> io.BufferedReader:
        with _convert_errors(path):
            file = self._gfile.GFile(path, "rb")
            return make_reader(file, file.size(), _convert_errors(path))

    def writer(self, path: str) -> FileWriter:
        errors = _convert_errors(path, NO_FOLDER)
        with errors:
            return FileWriter(self._gfile.GFile(path, "wb"), errors)

    def make_folder(self, path: str) -> None:
        with _convert_errors(path):
            self._gfile.makedirs(path)

    def rename(self, path: str, target: str) -> None:
        with _convert_errors(target):
            self._gfile.rename(path, target, overwrite=True)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), _convert_errors(path):
            self._gfile.remove(path)

    def remove_folder(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), _convert_errors(path):
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
        above, _, name = path.rpartition("/")
        # The parent of a top-level name, ram://name, is ram://.
        listed = super().names(above if above != "ram:/" else "ram://")
        return status if name in listed else None

    def names(self, path: str) -> list[str]:
        if self.find(path) is None:
            return []
        return [
            name for name in super().names(path) if super(_RamBackend, self).find(f"{path}/{name}")
        ]


def _convert_errors(path: str, missing: str = "does not exist") -> ErrorConverter:
    return ErrorConverter(path, lambda error: _ERRORS.get(type(error).__name__), missing)
