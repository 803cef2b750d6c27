"""Kills a writer at each operation on storage, and then writes again.

This is a separate program, because it forks. It prints the number of killed writers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from jax2tf_bridge.storage import StoragePath, as_path, whole_directory

PB = "saved_model.pb"
WHOLE = {PB: 5, "variables/data": 7}
_CALLS = ("info", "ls", "open", "makedirs", "mv", "rm_file", "rm")


class Killed(LocalFileSystem):  # type: ignore[misc]
    """File system on disk that ends the process at an operation."""

    protocol = "killed"
    left = sys.maxsize

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("killed://"))  # type: ignore[no-any-return]

    def __getattribute__(self, name: str) -> Any:
        if name in _CALLS:
            Killed.left -= 1
            if Killed.left == 0:
                os._exit(9)
        return super().__getattribute__(name)


def write(path: StoragePath) -> None:
    """Writes a small directory."""
    with whole_directory(path, has=PB) as folder:
        (folder / "variables").mkdir(parents=True)
        (folder / PB).write_text("graph")
        (folder / "variables" / "data").write_text("weights")


def ends_alone(path: StoragePath, operations: int) -> bool:
    """Writes in a process that is killed at an operation; returns whether it ended before."""
    child = os.fork()
    if child == 0:
        Killed.left = operations
        write(path)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(place: Path) -> int:
    """Returns the number of killed writers; the next one ended by itself."""
    for operations in itertools.count(1):
        path = as_path(f"killed://{place}/{operations}/m")
        assert isinstance(path, StoragePath)
        if ends_alone(path, operations):
            return operations - 1
        files = dict(path.files_below())
        assert PB not in files or files.items() >= WHOLE.items(), files
        if PB not in files:
            write(path)
        else:
            with contextlib.suppress(FileExistsError):
                write(path)
        assert dict(path.files_below()) == WHOLE, operations
        assert path.parent.names() == ["m"], path.parent.names()
    raise AssertionError


def run() -> None:
    """Runs the program."""
    fsspec.register_implementation("killed", Killed)
    place = Path(sys.argv[1])
    tempfile.tempdir = str(place / "tmp")
    Path(tempfile.tempdir).mkdir()
    count = main(place)
    # The last writer has removed the leftovers of the others.
    leftovers = os.listdir(tempfile.tempdir)
    assert leftovers == [], leftovers
    print(count)
