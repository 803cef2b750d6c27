"""Folders of versions: on disk, or in storage behind a scheme."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from jax2tf_bridge.errors import path_error
from jax2tf_bridge.saved_model import GRAPH_FILE
from jax2tf_bridge.storage import (
    AnyPath,
    Claim,
    StoragePath,
    as_path,
    claim_number,
    clear_dead_claims,
    local_path,
    locked_folder,
    remove_at_once,
    remove_visible,
    rename_to_new,
    send,
    staged_upload,
    staging,
    sync_folder,
    sync_tree,
)

# Part of the names of hidden folders.
_NAME = "version"
_INTEGER = re.compile(r"\s*\+?([0-9]+)\s*", re.ASCII)
# A file whose name keeps the largest number in use after its version was removed by hand. The
# number is in the name, because some storage can neither lock nor replace a file.
_RECORD_PREFIX = ".versions-used-up-to-"
_RECORD = re.compile(re.escape(_RECORD_PREFIX) + r"([0-9]+)", re.ASCII)
_LARGEST = 2**63 - 1
# Others hold the lock while they rename, so for milliseconds, unless they are stopped.
_LOCK_SECONDS = 10.0


class VersionFolder(ABC):
    """Folder with directories that are named by their versions' numbers.

    Attributes:
      path: of the folder.
    """

    path: AnyPath

    @abstractmethod
    def staged(self, needed: int | None) -> AbstractContextManager[Path]:
        """Yields a staging folder on disk, whose `new` is to be filled."""

    @abstractmethod
    def settle(self, new: Path) -> None:
        """Has the system write what was filled to the disk, if it stays there."""

    @abstractmethod
    def add(self, place: Path, notes: list[str]) -> int:
        """Makes `new` of a staging folder the next version, and returns its number.

        A record of the number is written before the version is visible, so that the number is
        not used again when the version is removed.
        """

    @abstractmethod
    def directories(self) -> dict[int, list[AnyPath]]:
        """Finds the directories of each number; the one that is written as usual is last."""

    @abstractmethod
    def locked(self) -> AbstractContextManager[None]:
        """Keeps numbers in order, where there are locks."""

    @abstractmethod
    def remove(self, directory: AnyPath) -> None:
        """Removes a version.

        Raises:
          FileNotFoundError: it is not there any more.
          OSError: it cannot be removed.
        """

    def check(self) -> None:
        """Raises if it is a file, or a SavedModel itself."""
        if not self.path.is_dir():
            text = "is a file, and not the folder of the versions: name the folder above it"
            raise path_error(NotADirectoryError, errno.ENOTDIR, text, self.path)
        if (self.path / GRAPH_FILE).is_file():
            text = f"is a SavedModel, and not the folder of its versions: name {self.path.parent}"
            raise path_error(FileExistsError, errno.EEXIST, text, self.path)


class _OnDisk(VersionFolder):
    """Folder on disk: a version is renamed to its number."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path

    def staged(self, needed: int | None) -> AbstractContextManager[Path]:
        return staging(self.path, _NAME, needed=needed)

    def settle(self, new: Path) -> None:
        sync_tree(new)

    def locked(self) -> AbstractContextManager[None]:
        # The rename alone makes numbers unique, also while others remove versions.
        return locked_folder(self.path, _LOCK_SECONDS)

    def add(self, place: Path, notes: list[str]) -> int:
        tried = 0
        while True:
            largest = _largest(os.listdir(self.path))
            # On a shared file system a name may be taken before it is listed.
            number = max(largest, tried) + 1
            if number > _LARGEST:
                text = f"{self.path} has the version {largest}, and there is no larger number for "
                raise ValueError(text + "the next")
            # Empty, so that it fits on a full disk.
            (self.path / _record_name(number)).touch()
            try:
                rename_to_new(place / "new", self.path / str(number))
            except FileExistsError:
                tried = number
            else:
                break
        with contextlib.suppress(OSError):
            for name in _older_records(os.listdir(self.path), number):
                (self.path / name).unlink(missing_ok=True)
        try:
            sync_folder(self.path)
        except OSError as e:  # it is there, so this is no failure to publish
            notes.append(f"version {number} may be lost if the machine stops now: {e}")
        return number

    def directories(self) -> dict[int, list[AnyPath]]:
        for _ in range(100):
            found: dict[int, list[AnyPath]] = {}
            for number, name in _numbered(os.listdir(self.path)):
                path = self.path / name
                if path.is_dir():
                    found.setdefault(number, []).append(path)
                elif not os.path.lexists(path):
                    break  # removed since it was listed; others may have come as well
            else:
                break
        return _usual_last(found)

    def remove(self, directory: AnyPath) -> None:
        remove_at_once(Path(directory), _NAME)


class _BehindScheme(VersionFolder):
    """Folder in storage without atomic renames: a version is seen when it has its graph."""

    def __init__(self, path: StoragePath) -> None:
        self.path: StoragePath = path

    @contextlib.contextmanager
    def staged(self, needed: int | None) -> Iterator[Path]:
        clear_dead_claims(self.path, _is_of_version, GRAPH_FILE)
        with staged_upload(needed) as place:
            yield place

    def settle(self, new: Path) -> None:
        pass

    def locked(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def add(self, place: Path, notes: list[str]) -> int:
        self.path.mkdir(parents=True, exist_ok=True)
        claim = claim_number(self.path, place, _largest, _LARGEST)
        number = int(claim.name)
        record = self.path / _record_name(number)
        notes += send(place / "new", claim, GRAPH_FILE, record=record)
        with contextlib.suppress(OSError):
            for name in _older_records(self.path.names(), number):
                self.path.backend.remove(str(self.path / name))
        return number

    def directories(self) -> dict[int, list[AnyPath]]:
        found: dict[int, list[AnyPath]] = {}
        for number, name in _numbered(self.path.names()):
            if (self.path / name / GRAPH_FILE).is_file():
                found.setdefault(number, []).append(self.path / name)
        return _usual_last(found)

    def remove(self, directory: AnyPath) -> None:
        assert isinstance(directory, StoragePath)
        remove_visible(directory, GRAPH_FILE)


def version_folder(root: str | os.PathLike[str]) -> VersionFolder:
    """Finds the folder of versions that a path names; it need not be there.

    Raises:
      OSError: nothing that is installed has its scheme.
    """
    path = as_path(root)
    return _BehindScheme(path) if isinstance(path, StoragePath) else _OnDisk(local_path(path))


def _numbered(names: list[str]) -> Iterator[tuple[int, str]]:
    """Yields all that TensorFlow Serving would take for a version: it reads 007 as 7."""
    for name in sorted(names):
        match = _INTEGER.fullmatch(name)
        if match and int(match[1]) <= _LARGEST:
            yield int(match[1]), name


def _largest(names: list[str]) -> int:
    """Returns the largest number that is or was a version's; 0 if there was none."""
    versions = (number for number, _ in _numbered(names))
    return max((*versions, *_recorded(names).values()), default=0)


def _record_name(number: int) -> str:
    return f"{_RECORD_PREFIX}{number}"


def _recorded(names: list[str]) -> dict[str, int]:
    """Maps the names of records to their numbers."""
    matches = filter(None, map(_RECORD.fullmatch, names))
    return {match[0]: n for match in matches if (n := int(match[1])) <= _LARGEST}


def _older_records(names: list[str], number: int) -> list[str]:
    return [name for name, recorded in _recorded(names).items() if recorded < number]


def _is_of_version(claim: Claim) -> bool:
    return any(_numbered([claim.name]))


def _usual_last(found: dict[int, list[AnyPath]]) -> dict[int, list[AnyPath]]:
    for paths in found.values():
        paths.sort(key=lambda path: path.name == str(int(path.name)))
    return found
