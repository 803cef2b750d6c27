"""A file system for fsspec that fails, delays or forgets at the operation that a test names."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem


class Trouble:
    """Faults of operations, which are counted from 1.

    Attributes:
      count: the number of operations so far.
      at: the number of the faulty operation; 0 for none.
      kind: "fails" raises, "is full" raises ENOSPC, "dies" raises from then on, "forgets" does
        nothing, "shows late" hides the result from the next two operations.
    """

    def __init__(self) -> None:
        self.count, self.at, self.kind = 0, 0, "fails"
        self.hidden: dict[str, int] = {}

    def begin(self) -> bool:
        """Counts an operation, and returns whether to forget it."""
        self.count += 1
        if self.count == self.at and self.kind in ("fails", "dies"):
            raise OSError(5, f"operation {self.count} fails")
        if self.count == self.at and self.kind == "is full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.kind == "dies" and self.at and self.count > self.at:
            raise OSError(5, "the storage is out of reach")
        return self.kind == "forgets" and self.count == self.at

    def is_hidden(self, path: str) -> bool:
        return self.hidden.get(path, 0) >= self.count

    def wrote(self, path: str) -> None:
        if self.kind == "shows late" and self.count == self.at:
            self.hidden[path] = self.count + 2

    @contextlib.contextmanager
    def happens(self, kind: str, at: int) -> Iterator[None]:
        """Makes an operation of the block faulty."""
        self.kind, self.at, self.count = kind, at, 0
        try:
            yield
        finally:
            self.at, self.hidden = 0, {}


TROUBLE = Trouble()


class _File(MemoryFile):  # type: ignore[misc]
    """File that appears when it is closed, as in object stores."""

    def write(self, data: Any) -> int:
        if TROUBLE.begin():
            return len(data)
        return int(super().write(data))

    def close(self) -> None:
        if not getattr(self, "is_done", False):
            self.is_done = True
            if not TROUBLE.begin():
                self.fs.store[self.path] = self
                TROUBLE.wrote(self.path)


class FlakyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """File system in memory."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(str(path).removeprefix("flaky://"))  # type: ignore[no-any-return]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        path = self._strip_protocol(path)
        if mode == "rb":
            TROUBLE.begin()
            if path not in self.store:
                raise FileNotFoundError(path)
            return _Reading(self.store[path].getvalue())
        return _File(self, path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        if TROUBLE.begin():
            return []
        entries = super().ls(path, detail=True)
        shown = [each for each in entries if not TROUBLE.is_hidden(each["name"])]
        return shown if detail else sorted(each["name"] for each in shown)

    def info(self, path: str, **_: Any) -> Any:
        if TROUBLE.begin() or TROUBLE.is_hidden(self._strip_protocol(path)):
            raise FileNotFoundError(path)
        return super().info(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        TROUBLE.begin()  # as in object stores, there are no folders

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if not TROUBLE.begin():
            self.store[target] = self.store[source]
            TROUBLE.wrote(target)
        if not TROUBLE.begin():
            del self.store[source]

    def rm_file(self, path: str) -> None:
        if not TROUBLE.begin():
            self.store.pop(self._strip_protocol(path), None)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        below = self._strip_protocol(path) + "/"
        for name in [name for name in self.store if name.startswith(below)]:
            if not TROUBLE.begin():
                del self.store[name]


class _Reading(MemoryFile):  # type: ignore[misc]
    def __init__(self, data: bytes) -> None:
        super().__init__(None, "", data)
        self.seek(0)


def register() -> None:
    """Registers the scheme "flaky" with fsspec, without files."""
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    FlakyFileSystem.store.clear()
    TROUBLE.__init__()  # type: ignore[misc]
