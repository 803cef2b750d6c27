"""Paths from users: on disk, or with a scheme."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Literal, NamedTuple, TypeAlias, overload

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.storage._backend import Backend, FileStatus, FileWriter, choose_backend

_PIECE_BYTES = 4 << 20
# Seconds between polls.
_PAUSES_S = (0.01, 0.1, 0.5, 2.0)
# A single letter is a Windows drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)")
# Such as "simplecache::s3://bucket" or "zip://file::s3://bucket".
_CHAIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+((://|::).*)?::[A-Za-z][A-Za-z0-9+.-]+://")


class Status(NamedTuple):
    """Size and kind of a file, with the field names of os.stat_result."""

    st_size: int
    st_mode: int


@functools.total_ordering
class StoragePath:
    """Path with a scheme, such as "gs://bucket/model", with the methods of pathlib that are used.

    `os.fspath` and `str` return the path as it was written.
    """

    def __init__(self, text: str, backend: Backend) -> None:
        """Stores a path with its scheme, and its backend."""
        scheme, _, rest = text.partition("://")
        parts = [part for part in rest.split("/") if part]
        # An empty host: to file systems, memory:///model is the same as memory://model.
        start = "/" if rest.startswith("/") else ""
        self._text = f"{scheme}://{start}{'/'.join(parts)}"
        self._count = len(parts)
        self.backend = backend

    def __fspath__(self) -> str:
        return self._text

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"StoragePath({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoragePath) and other._text == self._text

    def __lt__(self, other: StoragePath) -> bool:
        return self._text < other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Callable[[str], AnyPath], tuple[str]]:
        # Backends hold modules and connections, so another process chooses its own.
        return as_path, (self._text,)

    def __truediv__(self, name: str | PurePath) -> StoragePath:
        below = name.as_posix() if isinstance(name, PurePath) else name
        return StoragePath(f"{self._text}/{below}", self.backend)

    @property
    def name(self) -> str:
        """Returns the last part; "" for a bare scheme."""
        return self._text.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """Returns the end of the name from its last dot."""
        return PurePath(self.name).suffix

    @property
    def stem(self) -> str:
        """Returns the name without its suffix."""
        return PurePath(self.name).stem

    @property
    def parent(self) -> StoragePath:
        """Returns the parent folder; a bucket is its own parent."""
        if self._count < 2:
            return self
        return StoragePath(self._text.rpartition("/")[0], self.backend)

    def check_is_below(self, *, min_parts: int = 2) -> None:
        """Raises for a bucket, because a directory needs temporary files beside it.

        Args:
          min_parts: the minimum number of parts; 1 for a folder to write directories in.
        """
        if self._count < min_parts:
            scheme = self._text.partition("://")[0]
            bucket = self if self._count else f"{scheme}://bucket"
            text = f"is a bucket, or the top of its storage: name a path below, as {bucket}/model"
            raise make_path_error(errno.EINVAL, text, self)

    def with_name(self, name: str) -> StoragePath:
        """Returns the path with another name in the same folder."""
        return self.parent / name

    def absolute(self) -> StoragePath:
        """Returns the path itself."""
        return self

    def relative_to(self, folder: str | os.PathLike[str]) -> Path:
        """Returns the path relative to a folder above."""
        return Path(self._text).relative_to(Path(os.fspath(folder)))

    def mkdir(self, *, parents: Literal[True], exist_ok: Literal[True]) -> None:
        """Makes the folder and its parents, if the storage has folders."""
        self.backend.make_folder(self._text)

    def find(self) -> FileStatus | None:
        """Returns the status of the path; None if it does not exist."""
        return self.backend.find(self._text)

    def exists(self) -> bool:
        """Returns whether the path exists."""
        return self.find() is not None

    def is_file(self) -> bool:
        """Returns whether it is a file."""
        status = self.find()
        return status is not None and not status.is_folder

    def is_dir(self) -> bool:
        """Returns whether it is a folder."""
        status = self.find()
        return status is not None and status.is_folder

    def stat(self) -> Status:
        """Returns the size and the kind of the file or folder.

        Raises:
          FileNotFoundError: the path does not exist.
        """
        status = self.find()
        if status is None:
            raise make_path_error(errno.ENOENT, "does not exist", self)
        return Status(status.size, stat.S_IFDIR if status.is_folder else stat.S_IFREG)

    def names(self) -> list[str]:
        """Lists the names in the folder, sorted; a missing folder has none."""
        return sorted(self.backend.names(self._text))

    def iterdir(self) -> Iterator[StoragePath]:
        """Yields the paths in the folder."""
        return (self / name for name in self.names())

    def files_below(self) -> Iterator[tuple[str, int]]:
        """Yields all files below the folder as (relative path, size)."""
        for path in self.iterdir():
            status = path.find()
            if status is not None and status.is_folder:
                yield from ((f"{path.name}/{name}", size) for name, size in path.files_below())
            elif status is not None:
                yield path.name, status.size

    @overload
    def open(self, mode: Literal["rb"]) -> io.BufferedReader: ...
    @overload
    def open(self, mode: Literal["wb"]) -> FileWriter: ...
    def open(self, mode: Literal["rb", "wb"]) -> io.BufferedReader | FileWriter:
        """Opens the file for reading with random access, or a new file for writing."""
        if mode == "rb":
            return self.backend.reader(self._text)
        return self.backend.writer(self._text)

    def read_bytes(self) -> bytes:
        """Reads the file."""
        with self.open("rb") as file:
            return file.read()

    def has_size(self, size: int) -> bool:
        """Returns whether the file exists and has this size in bytes."""
        status = self.find()
        return status is not None and not status.is_folder and status.size == size


def wait_until(
    holds: Callable[[], bool],
    path: StoragePath,
    problem: str = "was written, but the storage does not show it as it was written",
) -> None:
    """Polls until storage shows a change, for some seconds, because some shows it with a delay.

    Raises:
      OSError: the condition still does not hold; the text is the path, then `problem`.
    """
    for pause in (0.0, *_PAUSES_S):
        time.sleep(pause)
        if holds():
            return
    raise make_path_error(errno.EIO, problem, path)


def copy_file(source: AnyPath, target: AnyPath) -> int:
    """Copies a file piece by piece; returns its size in bytes."""
    with source.open("rb") as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy, _PIECE_BYTES)
        return copy.tell()


AnyPath: TypeAlias = Path | StoragePath
"""Path on disk, or with a scheme."""


def walk_files(folder: AnyPath) -> Iterator[tuple[str, int]]:
    """Yields all plain files below a folder as (relative path, size)."""
    if isinstance(folder, StoragePath):
        yield from folder.files_below()
        return
    for path, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            file = Path(path, name)
            with contextlib.suppress(OSError, ValueError):
                status = file.stat()
                if stat.S_ISREG(status.st_mode):
                    yield file.relative_to(folder).as_posix(), status.st_size


def as_path(path: str | os.PathLike[str]) -> AnyPath:
    """Returns a pathlib path, or a StoragePath for a path with a scheme other than "file://".

    Raises:
      OSError: no installed package supports the scheme; pathlib collapsed the two slashes of a
        scheme; or several addresses are joined.
      TypeError: the path is bytes, which may be the contents of a file.

    >>> as_path("models/predict")
    PosixPath('models/predict')
    """
    if isinstance(path, StoragePath):
        return path
    text: str | bytes = os.fspath(path)
    if isinstance(text, bytes):
        raise TypeError(
            f"A path must be a str or os.PathLike[str], not bytes: {text[:40]!r}. Give "
            "os.fsdecode(path); deserialize reads the contents of a .jaxfn file."
        )
    if _CHAIN.match(text):
        problem = "joins addresses with ::, as fsspec does: give one address"
        raise make_path_error(errno.EINVAL, problem, text)
    match = _SCHEME.match(text)
    if match is None:
        return Path(text)
    scheme = match[1].lower()
    if not match[2]:
        # A folder whose name ends with a colon may exist, though hardly ever.
        if os.path.isdir(f"{match[1]}:"):
            return Path(text)
        whole = f"{match[1]}://{text[match.end() :]}"
        problem = (
            "has one slash after the scheme, because pathlib drops the other: pass the text "
            f"{whole!r}"
        )
        raise make_path_error(errno.EINVAL, problem, text)
    if scheme == "file":
        rest = text[match.end() :]
        if not rest.startswith("/"):
            problem = "names another machine: give the path alone, or with three slashes"
            raise make_path_error(errno.EINVAL, problem, text)
        return Path(rest)
    text = f"{scheme}://{text[match.end() :]}"
    return StoragePath(text, choose_backend(scheme, text))
