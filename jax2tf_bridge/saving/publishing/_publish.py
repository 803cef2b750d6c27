"""publish_version(): writes the next version below a root, as TensorFlow Serving takes it up.

TensorFlow Serving looks again and again for names that are integers, of files and of folders, and
passes over all others. A version is written under a hidden name, and renamed when it is complete
and on the disk; one that is removed gets a hidden name first.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from jax2tf_bridge._utils._integers import as_integer
from jax2tf_bridge._utils._interrupts import ended_by_interrupts
from jax2tf_bridge.errors import path_error
from jax2tf_bridge.saved_model._atomic_rename import rename_to_new
from jax2tf_bridge.saved_model._staging import locked_folder, remove_at_once
from jax2tf_bridge.saved_model._whole_directory import (
    local_path,
    staging,
    sync_folder,
    sync_tree,
)

T = TypeVar("T")

# Part of the names of hidden folders.
_NAME = "version"
_INTEGER = re.compile(r"\s*\+?([0-9]+)\s*", re.ASCII)
_LARGEST = 2**63 - 1
# Others hold the lock while they rename, so for milliseconds, unless they are stopped.
_LOCK_SECONDS = 10.0


@dataclass(frozen=True)
class NewVersion(Generic[T]):
    """Version that `publish_version` wrote.

    Attributes:
      version: its number.
      path: its directory.
      result: what the writer returned.
      removed: the numbers of the versions that were removed for it.
      notes: what did not go well after it was there, for people.
    """

    version: int
    path: Path
    result: T
    removed: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def publish_version(
    root: str | os.PathLike[str],
    write: Callable[[Path], T],
    *,
    keep: int | None = None,
    needed: int | None = None,
) -> NewVersion[T]:
    """Writes the directory `root/N` for the next N, complete or not at all.

    N is one more than the largest number there, or 1. Nothing but a complete version is ever seen,
    also if the process is killed, the machine stops or the disk is full. Several may publish at
    the same time, from several machines as well: each gets a number of its own. What a dead
    publisher left is removed: on the same machine when its lock is free, so at once; of another
    machine, whose locks may not be seen, when it also has not changed for a day.

    Args:
      root: the folder of all versions, a local one; made if it is not there.
      write: is given the path at which it makes the directory; what it returns is handed on.
      keep: how many of the newest versions stay; older ones are removed when the new one is
        there. None keeps all. Keep 2 or more where a server may just be loading the one before.
      needed: about how many bytes are written, for the message if the disk is full.

    Raises:
      ValueError: `keep` is less than 1, or there is no next number.
      TypeError: `keep` is no integer.
      NotADirectoryError: `root` is a file, or below one.
      FileExistsError: `root` is a SavedModel itself.
      FileNotFoundError: `root` is a link to what is not there, or `write` made no directory.
      PermissionError: `root` cannot be written to.
      OSError: `root` is an address, or the disk is full.
    """
    count = _checked_keep(keep)
    folder = _root(root)
    with (
        staging(folder, _NAME, needed=needed) as place,
        ended_by_interrupts() as check_interrupts,
    ):
        partial = place / "new"
        result = write(partial)
        if not partial.is_dir() or not any(partial.iterdir()):
            text = "is not published: what writes it left no folder with something in it"
            raise path_error(FileNotFoundError, errno.ENOENT, text, partial)
        sync_tree(partial)
        removable: dict[int, list[Path]] = {}
        # The lock keeps numbers in order, while others may remove versions; the rename alone
        # makes them unique.
        with locked_folder(folder, _LOCK_SECONDS):
            check_interrupts()
            version = _take_number(partial, folder)
            notes = _made_lasting(folder, version)
            if count is not None:
                found = _found(folder)
                removable = {number: found[number] for number in sorted(found)[:-count]}
        removed = []
        for number, paths in removable.items():
            if _removed(paths, notes):
                removed.append(number)
    return NewVersion(version, folder / str(version), result, tuple(removed), tuple(notes))


def published_versions(root: str | os.PathLike[str]) -> dict[int, Path]:
    """Returns the directories of the versions below a root by number, the newest last.

    They are those that TensorFlow Serving takes for versions; empty if there is no such root.

    Raises:
      NotADirectoryError: `root` is a file.
      OSError: `root` is an address, or cannot be read.
    """
    folder = local_path(root)
    if not folder.exists():
        return {}
    _check_folder(folder)
    found = _found(folder)
    return {number: found[number][-1] for number in sorted(found)}


def latest_version(root: str | os.PathLike[str]) -> Path | None:
    """Returns the directory of the newest version below a root; None if there is none.

    Raises:
      NotADirectoryError: `root` is a file.
      OSError: `root` is an address, or cannot be read.
    """
    found = published_versions(root)
    return found[max(found)] if found else None


def _checked_keep(keep: int | None) -> int | None:
    if keep is None:
        return None
    if (count := as_integer(keep)) is None:
        raise TypeError(f"keep is how many versions stay, so an integer, and not {keep!r}")
    if count < 1:
        raise ValueError(
            f"keep is {count}, but the newest version always stays: give 1 or more, or None to "
            "keep all"
        )
    return count


def _root(root: str | os.PathLike[str]) -> Path:
    folder = local_path(root)
    if os.path.islink(root) and not folder.exists():
        text = f"is a link to {folder}, which is not there: make that folder, or mend the link"
        raise path_error(FileNotFoundError, errno.ENOENT, text, root)
    if folder.exists():
        _check_folder(folder)
    return folder


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        text = "is a file, and not the folder of the versions: name the folder above it"
        raise path_error(NotADirectoryError, errno.ENOTDIR, text, folder)
    if (folder / "saved_model.pb").is_file():
        text = f"is a SavedModel, and not the folder of its versions: name {folder.parent}"
        raise path_error(FileExistsError, errno.EEXIST, text, folder)


def _numbered(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yields all that TensorFlow Serving would take for a version: it reads 007 as 7."""
    for name in sorted(os.listdir(folder)):
        match = _INTEGER.fullmatch(name)
        if match and int(match[1]) <= _LARGEST:
            yield int(match[1]), folder / name


def _found(folder: Path) -> dict[int, list[Path]]:
    """Returns the directories of each number; the one that is written as usual is last."""
    for _ in range(100):
        found: dict[int, list[Path]] = {}
        for number, path in _numbered(folder):
            if path.is_dir():
                found.setdefault(number, []).append(path)
            elif not os.path.lexists(path):
                break  # removed since it was listed; others may have come as well
        else:
            break
    for paths in found.values():
        paths.sort(key=lambda path: path.name == str(int(path.name)))
    return found


def _take_number(partial: Path, root: Path) -> int:
    tried = 0
    while True:
        largest = max((number for number, _ in _numbered(root)), default=0)
        # On a shared file system a name may be taken before it is listed.
        number = max(largest, tried) + 1
        if number > _LARGEST:
            text = f"{root} has the version {largest}, and there is no larger number for the next"
            raise ValueError(text)
        try:
            rename_to_new(partial, root / str(number))
        except FileExistsError:
            tried = number
        else:
            return number


def _made_lasting(root: Path, version: int) -> list[str]:
    try:
        sync_folder(root)
    except OSError as e:  # it is there, so this is no failure to publish
        return [f"version {version} may be lost if the machine stops now: {e}"]
    return []


def _removed(paths: list[Path], notes: list[str]) -> bool:
    for path in paths:
        try:
            remove_at_once(path, _NAME)
        except FileNotFoundError:
            return False  # another publisher was faster
        except OSError as e:
            notes.append(f"version {path.name} could not be removed: {e.strerror}: {path}")
            return False
    return True
