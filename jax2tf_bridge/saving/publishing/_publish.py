"""publish_version(): writes and checks the next version below a root.

TensorFlow Serving polls for files and folders whose names are integers, and ignores all others. On
disk, a version is written under a hidden name, and renamed when it is complete and synced; before
its removal it is renamed to a hidden name. Behind a scheme, where folders cannot be renamed
atomically, the graph is written last and removed first.
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
from jax2tf_bridge.errors import BridgeError, FileFormatError, make_path_error
from jax2tf_bridge.saved_model import TensorBundle, check_place, read_saved_model
from jax2tf_bridge.saving.publishing._version_folders import VersionFolder, open_version_folder
from jax2tf_bridge.saving.serving import (
    list_program_names,
    remove_programs,
    share_programs,
)
from jax2tf_bridge.storage import AnyPath, StoragePath

T = TypeVar("T")


@dataclass(frozen=True)
class NewVersion(Generic[T]):
    """Version that `publish_version` wrote.

    Attributes:
      version: the number of the version.
      path: the directory of the version.
      result: the result of the writer.
      removed: the numbers of the older versions that were removed.
      notes: problems after the version was published, for people.
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

    N is one more than the largest number that was ever published there, or 1: if a removed number
    is used again, a server keeps its old weights. A hidden file in `root` records the number.
    Only complete versions are ever visible, even if the process is killed, the machine stops or
    the disk is full. Several processes and machines may publish at the same time; each gets a
    different number. Leftovers of a dead publisher are removed: on the same machine as soon as its
    lock is free; of another machine, whose locks may be invisible, if they also have not changed
    for a day.

    Args:
      root: the folder of all versions, on disk or behind a scheme; created if missing.
      write: takes the path at which it makes the directory; its result is returned.
      keep: the number of newest versions that stay; older ones are removed after the new one is
        published. None keeps all. Keep 2 or more if a server may still load the version before.
      needed: the approximate number of bytes to write, for the message if the disk is full.
      check: raises if a directory is damaged. It is called before the version is visible, and
        prevents that if it raises. It is called again before older versions are removed; they
        stay if it raises then.

    Raises:
      ValueError: `keep` is less than 1, or there is no next number.
      TypeError: `keep` is not an integer.
      NotADirectoryError: `root` is a file, or below one.
      FileExistsError: `root` is a SavedModel itself.
      FileNotFoundError: `root` is a broken link, or `write` made no directory.
      PermissionError: `root` cannot be written to.
      OSError: no installed library supports the scheme of `root`, `root` is a scheme alone, or the
        disk is full.
    """
    count = _validate_keep(keep)
    folder = _open_folder(root)
    notes: list[str] = []
    with (
        folder.stage(needed) as place,
        ended_by_interrupts() as check_interrupts,
    ):
        partial = place / "new"
        result = write(partial)
        if not partial.is_dir() or not any(partial.iterdir()):
            text = "is not published: the writer made no folder, or an empty one"
            raise make_path_error(FileNotFoundError, errno.ENOENT, text, partial)
        if check is not None:
            check(partial)
        folder.settle(partial)
        removable: dict[int, list[AnyPath]] = {}
        # Before the version is visible, because a server compiles programs that it does not find;
        # and before the lock, because copies take longer than others wait for it.
        share_programs(partial, folder.path)
        with folder.lock():
            check_interrupts()
            version = folder.add(place, notes)
            if count is not None:
                versions = _list_directories(folder, notes)
                removable = {number: versions[number] for number in sorted(versions)[:-count]}
        path = folder.path / str(version)
        if removable and check is not None and not _is_readable(path, check, notes):
            removable = {}
        removed, programs = [], set[str]()
        for number, paths in removable.items():
            names = {name for directory in paths for name in list_program_names(directory)}
            if _remove_version(folder, paths, notes):
                removed.append(number)
                programs |= names
        if programs:
            remaining = _list_directories(folder, notes).values()
            remove_programs(folder.path, programs, chain.from_iterable(remaining))
    return NewVersion(version, path, result, tuple(removed), tuple(notes))


def published_versions(root: str | os.PathLike[str]) -> dict[int, AnyPath]:
    """Returns the directories of the versions below a root by number, the newest last.

    These are the versions for TensorFlow Serving. The result is empty if there is no such root.

    Raises:
      NotADirectoryError: `root` is a file.
      OSError: `root` cannot be read.
    """
    folder = open_version_folder(root)
    if not folder.path.exists():
        return {}
    folder.check()
    directories = folder.directories()
    return {number: directories[number][-1] for number in sorted(directories)}


def latest_version(root: str | os.PathLike[str]) -> AnyPath | None:
    """Returns the directory of the newest version below a root; None if there is none.

    Raises:
      NotADirectoryError: `root` is a file.
      OSError: `root` cannot be read.
    """
    versions = published_versions(root)
    return versions[max(versions)] if versions else None


def _validate_keep(keep: int | None) -> int | None:
    if keep is None:
        return None
    if (count := as_integer(keep)) is None:
        raise TypeError(f"keep is the number of versions that stay, an integer, and not {keep!r}")
    if count < 1:
        raise ValueError(
            f"keep is {count}, but the newest version always stays: give 1 or more, or None to "
            "keep all"
        )
    return count


def _open_folder(root: str | os.PathLike[str]) -> VersionFolder:
    folder = open_version_folder(root)
    if isinstance(folder.path, StoragePath):
        folder.path.check_is_below(least=1)
    check_place(folder.path)
    exists = folder.path.exists()
    if os.path.islink(root) and not exists:
        text = f"is a link to {folder.path}, which is not there: make that folder, or mend the link"
        raise make_path_error(FileNotFoundError, errno.ENOENT, text, root)
    if exists:
        folder.check()
    return folder


def _list_directories(folder: VersionFolder, notes: list[str]) -> dict[int, list[AnyPath]]:
    try:
        return folder.directories()
    except OSError as e:  # the new version exists, so publishing has not failed
        notes.append(f"older versions could not be listed, and stay: {e}")
        return {}


def _is_readable(path: AnyPath, check: Callable[[AnyPath], object], notes: list[str]) -> bool:
    try:
        check(path)
    except (OSError, BridgeError) as e:
        # Another publisher may have removed it after publishing a newer version.
        if path.exists():
            notes.append(f"older versions stay, because {path} cannot be read back: {e}")
        return False
    return True


def _remove_version(folder: VersionFolder, paths: list[AnyPath], notes: list[str]) -> bool:
    for path in paths:
        try:
            folder.remove(path)
        except FileNotFoundError:
            return False  # another publisher was faster
        except OSError as e:
            notes.append(f"version {path.name} could not be removed: {e.strerror}: {path}")
            return False
    return True


_VARIABLES = "variables"


def check_complete(folder: AnyPath) -> None:
    """Reads the graph of a SavedModel, and compares the sizes of its files with their indexes.

    Does not read arrays, so it is fast for large models and in remote storage.

    Raises:
      FileNotFoundError: there is no such folder.
      FileFormatError: the graph or the variables are missing, empty or truncated, or other files
        are missing that TensorFlow needs.
      OSError: a file cannot be read.
    """
    contents = read_saved_model(folder, of_any_tool=True)
    for missing in (*contents.missing_files, *contents.missing_functions):
        raise FileFormatError(f"{folder} has no {missing}.", file=str(folder))
    if contents.warm_up is not None and contents.warm_up.problem is not None:
        raise FileFormatError(
            f"The warm-up requests of {folder} are damaged: {contents.warm_up.problem}.",
            file=str(folder),
        )
    if (folder / _VARIABLES / "variables.index").exists():
        _check_variables(folder)


def _check_variables(folder: AnyPath) -> None:
    bundle = TensorBundle(folder / _VARIABLES / _VARIABLES)
    ends: dict[int, int] = {}
    for entry in bundle.entries.values():
        ends[entry.shard] = max(ends.get(entry.shard, 0), entry.start + entry.size)
    for shard, end in ends.items():
        path = bundle.shard(shard)
        size = path.stat().st_size if path.exists() else None
        if size is None:
            raise FileFormatError(f"{path} is missing.", file=str(path))
        if size < end:
            raise FileFormatError(
                f"{path} is cut short: it has {size} bytes, and variables up to byte {end}.",
                file=str(path),
            )
