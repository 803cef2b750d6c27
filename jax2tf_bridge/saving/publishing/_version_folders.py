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

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.saved_model import GRAPH_FILE
from jax2tf_bridge.storage import (
    AnyPath,
    Claim,
    StoragePath,
    as_path,
    claim_number,
    clear_dead_claims,
    local_path,
    lock_folder,
    remove_at_once,
    remove_visible,
    rename_to_new,
    send,
    stage_upload,
    staging,
    sync_folder,
    sync_tree,
)

# Part of the names of hidden folders.
_NAME = "version"
_INTEGER = re.compile(r"\s*\+?([0-9]+)\s*", re.ASCII)
# Prefix of a file that records the largest number, so that it stays used when its version is
# removed by hand. The name has the number, because some storage cannot lock or replace files.
_RECORD_PREFIX = ".versions-used-up-to-"
_RECORD = re.compile(re.escape(_RECORD_PREFIX) + r"([0-9]+)", re.ASCII)
_MAX_VERSION = 2**63 - 1
# Publishers hold the lock for a rename only, which takes milliseconds, unless they are stopped.
_LOCK_SECONDS = 10.0


class VersionFolder(ABC):
    """Folder of versions, whose directories have their numbers as names.

    Attributes:
      path: the path of the folder.
    """

    path: AnyPath

    @abstractmethod
    def stage(self, needed: int | None) -> AbstractContextManager[Path]:
        """Yields a staging folder on disk; the caller makes and fills its `new` folder."""

    @abstractmethod
    def settle(self, new: Path) -> None:
        """Syncs `new` to the disk, if the versions are on disk."""

    @abstractmethod
    def add(self, place: Path, notes: list[str]) -> int:
        """Makes the `new` folder in a staging folder the next version, and returns its number.

        Records the number before the version is visible, so that the number is not used again
        when the version is removed.
        """

    @abstractmethod
    def directories(self) -> dict[int, list[AnyPath]]:
        """Returns the directories of each number, last the one with the usual name (7, not 007)."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[None]:
        """Locks the folder so that numbers are assigned in order, if the storage has locks."""

    @abstractmethod
    def remove(self, directory: AnyPath) -> None:
        """Removes a version.

        Raises:
          FileNotFoundError: it no longer exists.
          OSError: it cannot be removed.
        """

    def check(self) -> None:
        """Raises if the path is a file, or a SavedModel itself."""
        if not self.path.is_dir():
            text = "is a file, and not the folder of the versions: name the folder above it"
            raise make_path_error(NotADirectoryError, errno.ENOTDIR, text, self.path)
        if (self.path / GRAPH_FILE).is_file():
            text = f"is a SavedModel, and not the folder of its versions: name {self.path.parent}"
            raise make_path_error(FileExistsError, errno.EEXIST, text, self.path)


class _OnDisk(VersionFolder):
    """Folder on disk, where a version is renamed to its number."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path

    def stage(self, needed: int | None) -> AbstractContextManager[Path]:
        return staging(self.path, _NAME, needed=needed)

    def settle(self, new: Path) -> None:
        sync_tree(new)

    def lock(self) -> AbstractContextManager[None]:
        # Not needed for uniqueness: the rename ensures it, also while others remove versions.
        return lock_folder(self.path, _LOCK_SECONDS)

    def add(self, place: Path, notes: list[str]) -> int:
        taken = 0
        while True:
            largest = _find_largest(os.listdir(self.path))
            # On a shared file system, a name may be taken before it is listed.
            number = max(largest, taken) + 1
            if number > _MAX_VERSION:
                text = f"{self.path} has the version {largest}, and there is no larger number for "
                raise ValueError(text + "the next")
            # Empty, so that it fits on a full disk.
            (self.path / _record_name(number)).touch()
            try:
                rename_to_new(place / "new", self.path / str(number))
            except FileExistsError:
                taken = number
            else:
                break
        with contextlib.suppress(OSError):
            for name in _list_older_records(os.listdir(self.path), number):
                (self.path / name).unlink(missing_ok=True)
        try:
            sync_folder(self.path)
        except OSError as e:  # the version exists, so publishing has not failed
            notes.append(f"version {number} may be lost if the machine stops now: {e}")
        return number

    def directories(self) -> dict[int, list[AnyPath]]:
        for _ in range(100):
            directories: dict[int, list[AnyPath]] = {}
            for number, name in _iterate_versions(os.listdir(self.path)):
                path = self.path / name
                if path.is_dir():
                    directories.setdefault(number, []).append(path)
                elif not os.path.lexists(path):
                    break  # removed since the listing; others may be new
            else:
                break
        return _sort_usual_last(directories)

    def remove(self, directory: AnyPath) -> None:
        remove_at_once(Path(directory), _NAME)


class _BehindScheme(VersionFolder):
    """Folder in storage without atomic renames, where a version is visible with its graph."""

    def __init__(self, path: StoragePath) -> None:
        self.path: StoragePath = path

    @contextlib.contextmanager
    def stage(self, needed: int | None) -> Iterator[Path]:
        clear_dead_claims(self.path, _is_version_claim, GRAPH_FILE)
        with stage_upload(needed) as place:
            yield place

    def settle(self, new: Path) -> None:
        pass

    def lock(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def add(self, place: Path, notes: list[str]) -> int:
        self.path.mkdir(parents=True, exist_ok=True)
        claim = claim_number(self.path, place, _find_largest, _MAX_VERSION)
        number = int(claim.name)
        record = self.path / _record_name(number)
        notes += send(place / "new", claim, GRAPH_FILE, record=record)
        with contextlib.suppress(OSError):
            for name in _list_older_records(self.path.names(), number):
                self.path.backend.remove(str(self.path / name))
        return number

    def directories(self) -> dict[int, list[AnyPath]]:
        directories: dict[int, list[AnyPath]] = {}
        for number, name in _iterate_versions(self.path.names()):
            if (self.path / name / GRAPH_FILE).is_file():
                directories.setdefault(number, []).append(self.path / name)
        return _sort_usual_last(directories)

    def remove(self, directory: AnyPath) -> None:
        assert isinstance(directory, StoragePath)
        remove_visible(directory, GRAPH_FILE)


def open_version_folder(root: str | os.PathLike[str]) -> VersionFolder:
    """Returns the folder of versions at a path, which need not exist.

    Raises:
      OSError: no installed library supports its scheme.
    """
    path = as_path(root)
    return _BehindScheme(path) if isinstance(path, StoragePath) else _OnDisk(local_path(path))


def _iterate_versions(names: list[str]) -> Iterator[tuple[int, str]]:
    """Yields each name that is a version for TensorFlow Serving, which reads 007 as 7."""
    for name in sorted(names):
        match = _INTEGER.fullmatch(name)
        if match and int(match[1]) <= _MAX_VERSION:
            yield int(match[1]), name


def _find_largest(names: list[str]) -> int:
    """Returns the largest number that a version has or had; 0 if there was none."""
    versions = (number for number, _ in _iterate_versions(names))
    return max((*versions, *_parse_records(names).values()), default=0)


def _record_name(number: int) -> str:
    return f"{_RECORD_PREFIX}{number}"


def _parse_records(names: list[str]) -> dict[str, int]:
    """Maps the names of record files to their numbers."""
    matches = filter(None, map(_RECORD.fullmatch, names))
    return {match[0]: n for match in matches if (n := int(match[1])) <= _MAX_VERSION}


def _list_older_records(names: list[str], number: int) -> list[str]:
    return [name for name, recorded in _parse_records(names).items() if recorded < number]


def _is_version_claim(claim: Claim) -> bool:
    return any(_iterate_versions([claim.name]))


def _sort_usual_last(directories: dict[int, list[AnyPath]]) -> dict[int, list[AnyPath]]:
    for paths in directories.values():
        paths.sort(key=lambda path: path.name == str(int(path.name)))
    return directories
