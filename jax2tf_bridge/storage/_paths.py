"""Paths as users give them: on disk, or with a scheme."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Literal, NamedTuple, TypeAlias, overload

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.storage._backend import Backend, FileStatus, FileWriter
from jax2tf_bridge.storage._backend_choice import choose_backend

# One letter is a drive of Windows.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)")
# "simplecache::s3://bucket", "zip://file::s3://bucket"
_CHAIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+((://|::).*)?::[A-Za-z][A-Za-z0-9+.-]+://")


class Status(NamedTuple):
    """Size and kind of a file, by the names of os.stat_result."""

    st_size: int
    st_mode: int


@functools.total_ordering
class StoragePath:
    """Path with a scheme, as "gs://bucket/model", with those of pathlib's methods that are used.

    `os.fspath` and `str` give it as it was written.
    """

    def __init__(self, text: str, backend: Backend) -> None:
        """Takes a path with its scheme, and what carries out its operations."""
        scheme, _, rest = text.partition("://")
        parts = [part for part in rest.split("/") if part]
        # An empty host: memory:///model names what memory://model does, file systems say.
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
        # Backends hold modules and connections; another process chooses its own.
        return as_path, (self._text,)

    def __truediv__(self, name: str | PurePath) -> StoragePath:
        below = name.as_posix() if isinstance(name, PurePath) else name
        return StoragePath(f"{self._text}/{below}", self.backend)

    @property
    def name(self) -> str:
        """Returns the last part; "" of a scheme alone."""
        return self._text.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """Returns the end of the name from its last dot on."""
        return PurePath(self.name).suffix

    @property
    def stem(self) -> str:
        """Returns the name without its suffix."""
        return PurePath(self.name).stem

    @property
    def parent(self) -> StoragePath:
        """Returns the folder above; a bucket is its own."""
        if self._count < 2:
            return self
        return StoragePath(self._text.rpartition("/")[0], self.backend)

    def check_is_below(self, *, least: int = 2) -> None:
        """Raises if it is a bucket, beside which nothing can be written while it is made.

        Args:
          least: how many parts it must have; of what others are made in, 1.
        """
        if self._count < least:
            scheme = self._text.partition("://")[0]
            bucket = self if self._count else f"{scheme}://bucket"
            said = f"is a bucket, or the top of its storage: name a path below, as {bucket}/model"
            raise make_path_error(OSError, errno.EINVAL, said, self)

    def with_name(self, name: str) -> StoragePath:
        """Returns the path of another name in the same folder."""
        return self.parent / name

    def absolute(self) -> StoragePath:
        """Returns the path itself."""
        return self

    def relative_to(self, folder: str | os.PathLike[str]) -> Path:
        """Returns the path from a folder above."""
        return Path(self._text).relative_to(Path(os.fspath(folder)))

    def mkdir(self, *, parents: Literal[True], exist_ok: Literal[True]) -> None:
        """Makes the folder and those above it, where there are folders."""
        self.backend.make_folder(self._text)

    def find(self) -> FileStatus | None:
        """Returns the status of the path; None if nothing is there."""
        return self.backend.find(self._text)

    def exists(self) -> bool:
        """Returns whether something is there."""
        return self.find() is not None

    def is_file(self) -> bool:
        """Returns whether it is a file."""
        found = self.find()
        return found is not None and not found.is_folder

    def is_dir(self) -> bool:
        """Returns whether it is a folder."""
        found = self.find()
        return found is not None and found.is_folder

    def stat(self) -> Status:
        """Returns the size and the kind of what is there.

        Raises:
          FileNotFoundError: nothing is.
        """
        found = self.find()
        if found is None:
            raise make_path_error(FileNotFoundError, errno.ENOENT, "does not exist", self)
        return Status(found.size, stat.S_IFDIR if found.is_folder else stat.S_IFREG)

    def names(self) -> list[str]:
        """Lists the names in the folder, sorted; none if there is no folder."""
        return sorted(self.backend.names(self._text))

    def iterdir(self) -> Iterator[StoragePath]:
        """Yields what is in the folder."""
        return (self / name for name in self.names())

    def files_below(self) -> Iterator[tuple[str, int]]:
        """Yields the files in the folder and below, by their paths in it, with their sizes."""
        for path in self.iterdir():
            found = path.find()
            if found is None:
                continue
            if found.is_folder:
                yield from ((f"{path.name}/{name}", size) for name, size in path.files_below())
            else:
                yield path.name, found.size

    @overload
    def open(self, mode: Literal["rb"]) -> io.BufferedReader: ...
    @overload
    def open(self, mode: Literal["wb"]) -> FileWriter: ...
    def open(self, mode: Literal["rb", "wb"]) -> io.BufferedReader | FileWriter:
        """Opens the file to read it from any position, or a new one to write it."""
        if mode == "rb":
            return self.backend.reader(self._text)
        return self.backend.writer(self._text)

    def read_bytes(self) -> bytes:
        """Reads the file."""
        with self.open("rb") as file:
            return file.read()


AnyPath: TypeAlias = Path | StoragePath
"""Path on disk, or with a scheme."""


def walk_files(folder: AnyPath) -> Iterator[tuple[str, int]]:
    """Yields the plain files in a folder and below, by their paths in it, with their sizes."""
    if isinstance(folder, StoragePath):
        yield from folder.files_below()
        return
    for path, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            file = Path(path, name)
            with contextlib.suppress(OSError, ValueError):
                found = file.stat()
                if stat.S_ISREG(found.st_mode):
                    yield file.relative_to(folder).as_posix(), found.st_size


def as_path(path: str | os.PathLike[str]) -> AnyPath:
    """Returns a path that reads and writes where the text says.

    Without a scheme, and with "file://", it is pathlib's.

    Raises:
      OSError: nothing that is installed has the scheme; pathlib made one slash of two; or several
        addresses are joined.
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
        said = "joins addresses with ::, as fsspec does: give one address"
        raise make_path_error(OSError, errno.EINVAL, said, text)
    match = _SCHEME.match(text)
    if match is None:
        return Path(text)
    scheme = match[1].lower()
    if not match[2]:
        # A folder of this name may be there, if hardly ever.
        if os.path.isdir(f"{match[1]}:"):
            return Path(text)
        whole = f"{match[1]}://{text[match.end() :]}"
        said = (
            "has one slash behind the scheme, as pathlib writes addresses: give it as the text "
            f"{whole!r}"
        )
        raise make_path_error(OSError, errno.EINVAL, said, text)
    if scheme == "file":
        rest = text[match.end() :]
        if not rest.startswith("/"):
            said = "names another machine: give the path alone, or with three slashes"
            raise make_path_error(OSError, errno.EINVAL, said, text)
        return Path(rest)
    text = f"{scheme}://{text[match.end() :]}"
    return StoragePath(text, choose_backend(scheme, text))
