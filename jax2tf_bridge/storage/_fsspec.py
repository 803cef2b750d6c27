"""Backend for fsspec; importing this module imports fsspec."""

from __future__ import annotations

import contextlib
import io
from glob import has_magic
from typing import Any

import fsspec
import fsspec.core

from jax2tf_bridge.storage._backend import (
    NO_FOLDER,
    Backend,
    FileStatus,
    FileWriter,
    convert_errors,
    make_reader,
)

# Fields that identify the version of a file; each file system has its own.
_STATES = ("ETag", "etag", "generation", "mtime", "modified", "LastModified", "created")

# For these schemes, making a folder would make a bucket.
_WITHOUT_FOLDERS = frozenset({"abfs", "abfss", "az", "gcs", "gs", "s3", "s3a"})


def file_system(scheme: str, path: str) -> Any:
    """Returns fsspec's file system for a scheme; None if it has none, or a package is missing."""
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError):
        return None
    try:
        with convert_errors(path):
            # Only this function interprets "::" in names as joined addresses.
            return fsspec.core.url_to_fs(path.partition("::")[0])[0]
    except OSError as e:
        if isinstance(e.__cause__, ImportError):
            return None
        raise


class FsspecBackend(Backend):
    """Backend for one of fsspec's file systems."""

    def __init__(self, files: Any) -> None:
        """Uses an fsspec.AbstractFileSystem."""
        self._files = files
        protocols = files.protocol if isinstance(files.protocol, tuple) else (files.protocol,)
        self._has_folders = _WITHOUT_FOLDERS.isdisjoint(protocols)

    def find(self, path: str) -> FileStatus | None:
        with contextlib.suppress(FileNotFoundError), convert_errors(path):
            self._files.invalidate_cache()  # other processes write too
            info = self._files.info(path)
            if info["type"] == "directory":
                return FileStatus(0, True)
            state = next((str(info[key]) for key in _STATES if info.get(key)), "")
            return FileStatus(int(info["size"] or 0), False, state)
        return None

    def names(self, path: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError), convert_errors(path):
            self._files.invalidate_cache()
            names = [str(name).rstrip("/") for name in self._files.ls(path, detail=False)]
            # Some file systems list the folder itself as an empty object.
            own = str(fsspec.core.strip_protocol(path)).rstrip("/")
            return [name.rpartition("/")[2] for name in names if name != own]
        return []

    def reader(self, path: str) -> io.BufferedReader:
        with convert_errors(path):
            file = self._files.open(path, "rb")
            return make_reader(file, int(self._files.size(path) or 0), path)

    def writer(self, path: str) -> FileWriter:
        with convert_errors(path, NO_FOLDER):
            return FileWriter(self._files.open(path, "wb"), path)

    def make_folder(self, path: str) -> None:
        if not self._has_folders:
            return
        with convert_errors(path):
            self._files.makedirs(path, exist_ok=True)

    def rename(self, path: str, target: str) -> None:
        with convert_errors(target):
            if has_magic(path) and type(self._files).mv is fsspec.AbstractFileSystem.mv:
                # AbstractFileSystem.mv would interpret the name as a pattern.
                self._files.cp_file(path, target)
                self._files.rm_file(path)
            else:
                self._files.mv(path, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), convert_errors(path):
            self._files.rm_file(path)

    def remove_folder(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), convert_errors(path):
            if has_magic(path):
                self._remove_below(path)
            else:
                self._files.rm(path, recursive=True)

    def _remove_below(self, path: str) -> None:
        """Removes a folder by name; `rm` would interpret "run[1]" as a pattern for "run1"."""
        self._files.invalidate_cache()
        entries = self._files.find(path, withdirs=True, detail=True)
        for name in sorted({*entries, str(fsspec.core.strip_protocol(path))}, reverse=True):
            if name in entries and entries[name]["type"] != "directory":
                self._files.rm_file(name)
            elif self._has_folders:
                with contextlib.suppress(FileNotFoundError):  # removed with its last file
                    self._files.rmdir(name)
