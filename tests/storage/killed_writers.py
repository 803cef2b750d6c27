"""Kills writers of a storage at each of its operations, and lets others come after them.

A program of its own, since it forks. Prints how many writers were killed.
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
    """The disk, where this process ends at an operation."""

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
    """Writes in a process that is killed at an operation; returns whether it was not."""
    child = os.fork()
    if child == 0:
        Killed.left = operations
        write(path)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(place: Path) -> int:
    """Returns how many writers were killed before one was not."""
    for operations in itertools.count(1):
        path = as_path(f"killed://{place}/{operations}/m")
        assert isinstance(path, StoragePath)
        if ends_alone(path, operations):
            return operations - 1
        found = dict(path.files_below())
        assert PB not in found or found.items() >= WHOLE.items(), found
        if PB not in found:
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
    # The last who wrote has removed what those before left on this disk.
    left = os.listdir(tempfile.tempdir)
    assert left == [], left
    print(count)
