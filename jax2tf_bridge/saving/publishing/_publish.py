"""publish_version(): writes the next version below a root, as TensorFlow Serving takes it up.

TensorFlow Serving looks again and again for names that are integers, of files and of folders, and
passes over all others. On disk, a version is written under a hidden name, and renamed when it is
complete and on the disk; one that is removed gets a hidden name first. Behind a scheme, where
folders cannot be renamed at once, its graph is written last, and removed first.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

from jax2tf_bridge._utils import as_integer, ended_by_interrupts
from jax2tf_bridge.errors import BridgeError, path_error
from jax2tf_bridge.saved_model import check_place
from jax2tf_bridge.saving.publishing._version_folders import VersionFolder, version_folder
from jax2tf_bridge.saving.serving import (
    program_names,
    remove_programs,
    share_programs,
)
from jax2tf_bridge.storage import AnyPath, StoragePath

T = TypeVar("T")


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
    path: AnyPath
    result: T
    removed: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def publish_version(
    root: str | os.PathLike[str],
    write: Callable[[Path], T],
    *,
    keep: int | None = None,
    needed: int | None = None,
    check: Callable[[AnyPath], object] | None = None,
) -> NewVersion[T]:
    """Writes the directory `root/N` for the next N, complete or not at all.

    N is one more than the largest number that was ever published there, or 1: a server keeps the
    weights that it has when a removed number appears again. A hidden file in `root` keeps the
    number. Nothing but a complete version is ever seen,
    also if the process is killed, the machine stops or the disk is full. Several may publish at
    the same time, from several machines as well: each gets a number of its own. What a dead
    publisher left is removed: on the same machine when its lock is free, so at once; of another
    machine, whose locks may not be seen, when it also has not changed for a day.

    Args:
      root: the folder of all versions, on disk or behind a scheme; made if it is not there.
      write: is given the path at which it makes the directory; what it returns is handed on.
      keep: how many of the newest versions stay; older ones are removed when the new one is
        there. None keeps all. Keep 2 or more where a server may just be loading the one before.
      needed: about how many bytes are written, for the message if the disk is full.
      check: raises if the directory it is given is damaged. It is called before the version is
        visible, which it prevents, and again before older versions are removed; these stay if it
        raises then.

    Raises:
      ValueError: `keep` is less than 1, or there is no next number.
      TypeError: `keep` is no integer.
      NotADirectoryError: `root` is a file, or below one.
      FileExistsError: `root` is a SavedModel itself.
      FileNotFoundError: `root` is a link to what is not there, or `write` made no directory.
      PermissionError: `root` cannot be written to.
      OSError: nothing that is installed has the scheme of `root`, `root` is a scheme alone, or the
        disk is full.
    """
    count = _checked_keep(keep)
    folder = _folder(root)
    notes: list[str] = []
    with (
        folder.staged(needed) as place,
        ended_by_interrupts() as check_interrupts,
    ):
        partial = place / "new"
        result = write(partial)
        if not partial.is_dir() or not any(partial.iterdir()):
            text = "is not published: what writes it left no folder with something in it"
            raise path_error(FileNotFoundError, errno.ENOENT, text, partial)
        if check is not None:
            check(partial)
        folder.settle(partial)
        removable: dict[int, list[AnyPath]] = {}
        with folder.locked():
            check_interrupts()
            # Before the version is visible: a server that sees it compiles what it does not find.
            share_programs(partial, folder.path)
            version = folder.add(place, notes)
            if count is not None:
                versions = _directories(folder, notes)
                removable = {number: versions[number] for number in sorted(versions)[:-count]}
        path = folder.path / str(version)
        if removable and check is not None and not _is_readable(path, check, notes):
            removable = {}
        removed, programs = [], set[str]()
        for number, paths in removable.items():
            names = {name for each in paths for name in program_names(each)}
            if _removed(folder, paths, notes):
                removed.append(number)
                programs |= names
        if programs:
            remaining = _directories(folder, notes).values()
            remove_programs(folder.path, programs, chain.from_iterable(remaining))
    return NewVersion(version, path, result, tuple(removed), tuple(notes))


def published_versions(root: str | os.PathLike[str]) -> dict[int, AnyPath]:
    """Returns the directories of the versions below a root by number, the newest last.

    They are those that TensorFlow Serving takes for versions; empty if there is no such root.

    Raises:
      NotADirectoryError: `root` is a file.
      OSError: `root` cannot be read.
    """
    folder = version_folder(root)
    if not folder.path.exists():
        return {}
    folder.check()
    found = folder.directories()
    return {number: found[number][-1] for number in sorted(found)}


def latest_version(root: str | os.PathLike[str]) -> AnyPath | None:
    """Returns the directory of the newest version below a root; None if there is none.

    Raises:
      NotADirectoryError: `root` is a file.
      OSError: `root` cannot be read.
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


def _folder(root: str | os.PathLike[str]) -> VersionFolder:
    folder = version_folder(root)
    if isinstance(folder.path, StoragePath):
        folder.path.check_is_below(least=1)
    check_place(folder.path)
    there = folder.path.exists()
    if os.path.islink(root) and not there:
        text = f"is a link to {folder.path}, which is not there: make that folder, or mend the link"
        raise path_error(FileNotFoundError, errno.ENOENT, text, root)
    if there:
        folder.check()
    return folder


def _directories(folder: VersionFolder, notes: list[str]) -> dict[int, list[AnyPath]]:
    try:
        return folder.directories()
    except OSError as e:  # the new version is there, so this is no failure to publish
        notes.append(f"older versions could not be listed, and stay: {e}")
        return {}


def _is_readable(path: AnyPath, check: Callable[[AnyPath], object], notes: list[str]) -> bool:
    try:
        check(path)
    except (OSError, BridgeError) as e:
        # Another publisher may have removed it after it published a newer version.
        if path.exists():
            notes.append(f"older versions stay, because {path} cannot be read back: {e}")
        return False
    return True


def _removed(folder: VersionFolder, paths: list[AnyPath], notes: list[str]) -> bool:
    for path in paths:
        try:
            folder.remove(path)
        except FileNotFoundError:
            return False  # another publisher was faster
        except OSError as e:
            notes.append(f"version {path.name} could not be removed: {e.strerror}: {path}")
            return False
    return True
