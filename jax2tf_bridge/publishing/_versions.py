"""Writes, checks, lists and removes the versions of a model below a root.

TensorFlow Serving polls for files and folders whose names are integers, and ignores all others. On
disk, a version is written under a hidden name, and renamed when it is complete and synced; before
its removal it is renamed to a hidden name. Behind a scheme, where folders cannot be renamed
atomically, the graph is written last and removed first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

from jax2tf_bridge._utils import as_integer, reraise_interrupts
from jax2tf_bridge.errors import BridgeError, FileFormatError, make_path_error
from jax2tf_bridge.publishing._labels import (
    MODEL_CONFIG,
    STABLE,
    check_label,
    check_labels_writable,
    describe_missing,
    describe_unloaded,
    find_unloaded,
    locate_model_config,
    read_labels,
    update_labels,
)
from jax2tf_bridge.publishing._manifest import (
    NEW_MODEL,
    FileEntry,
    Origin,
    check_note,
    write_manifest,
)
from jax2tf_bridge.publishing._programs import (
    list_shared_names,
    remove_unused_programs,
    restore_programs,
    share_programs,
)
from jax2tf_bridge.saved_model import GRAPH_FILE, check_place
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
    stage_directory,
    stage_upload,
    sync_folder,
    sync_tree,
    upload,
    wait_until,
    write_marker,
)

# Part of the names of hidden folders.
_NAME = "version"
_INTEGER = re.compile(r"\s*\+?([0-9]+)\s*", re.ASCII)
# Prefix of a file that records the largest number, so that no version gets it again after its
# version is removed by hand. The name has the number, because some storage cannot lock or replace
# files.
_RECORD_PREFIX = ".versions-used-up-to-"
_RECORD = re.compile(re.escape(_RECORD_PREFIX) + r"([0-9]+)", re.ASCII)
_MAX_VERSION = 2**63 - 1


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
        """Returns the directories of each number; the usual name (7, not 007) comes last."""

    @abstractmethod
    def remove(self, directory: AnyPath) -> AnyPath | None:
        """Removes a version.

        Returns:
          The hidden path of files that could not be deleted; None if nothing is left.

        Raises:
          FileNotFoundError: it no longer exists.
          OSError: it cannot be removed.
        """

    def check(self) -> None:
        """Raises if the path is a file, or a SavedModel itself."""
        if not self.path.is_dir():
            text = "is a file, and not the folder of the versions: name the folder above it"
            raise make_path_error(errno.ENOTDIR, text, self.path)
        if (self.path / GRAPH_FILE).is_file():
            text = f"is a SavedModel, and not the folder of its versions: name {self.path.parent}"
            raise make_path_error(errno.EEXIST, text, self.path)


class _OnDisk(VersionFolder):
    """Folder on disk, where a version is renamed to its number."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path

    def stage(self, needed: int | None) -> AbstractContextManager[Path]:
        return stage_directory(self.path, _NAME, needed=needed)

    def settle(self, new: Path) -> None:
        sync_tree(new)

    def add(self, place: Path, notes: list[str]) -> int:
        number = 0
        while True:
            # On a shared file system, a name may be taken before it is listed.
            number = max(_find_largest(os.listdir(self.path)), number) + 1
            if number > _MAX_VERSION:
                problem = (
                    f"has the version {number - 1}, and there is no larger number for the next"
                )
                raise ValueError(f"{self.path} {problem}")
            # Empty, so that it fits on a full disk.
            (self.path / _name_record(number)).touch()
            with contextlib.suppress(FileExistsError):
                rename_to_new(place / "new", self.path / str(number))
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
            for number, name in _iter_versions(os.listdir(self.path)):
                path = self.path / name
                if path.is_dir():
                    directories.setdefault(number, []).append(path)
                elif not os.path.lexists(path):
                    break  # it was removed after the listing, and there may be new ones: list again
            else:
                break
        return _sort_usual_last(directories)

    def remove(self, directory: AnyPath) -> AnyPath | None:
        return remove_at_once(Path(directory), _NAME)


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

    def add(self, place: Path, notes: list[str]) -> int:
        self.path.mkdir(parents=True, exist_ok=True)
        claim = claim_number(self.path, place, _find_largest, _MAX_VERSION)
        number = int(claim.name)

        def record() -> None:
            file = self.path / _name_record(number)
            write_marker(file)
            # A publisher of a larger number may have replaced the record by its own.
            wait_until(
                lambda: max(_parse_records(self.path.names()).values(), default=0) >= number, file
            )

        notes += upload(place / "new", claim, GRAPH_FILE, prepare=record)
        with contextlib.suppress(OSError):
            for name in _list_older_records(self.path.names(), number):
                self.path.backend.remove(str(self.path / name))
        return number

    def directories(self) -> dict[int, list[AnyPath]]:
        directories: dict[int, list[AnyPath]] = {}
        for number, name in _iter_versions(self.path.names()):
            if (self.path / name / GRAPH_FILE).is_file():
                directories.setdefault(number, []).append(self.path / name)
        return _sort_usual_last(directories)

    def remove(self, directory: AnyPath) -> AnyPath | None:
        assert isinstance(directory, StoragePath)
        remove_visible(directory, GRAPH_FILE)
        return None


def open_version_folder(root: str | os.PathLike[str]) -> VersionFolder:
    """Returns the folder of versions at a path, which need not exist.

    Raises:
      OSError: no installed library supports its scheme.
    """
    path = as_path(root)
    return _BehindScheme(path) if isinstance(path, StoragePath) else _OnDisk(local_path(path))


def _iter_versions(names: list[str]) -> Iterator[tuple[int, str]]:
    """Yields each name that is a version for TensorFlow Serving, which reads 007 as 7."""
    for name in sorted(names):
        match = _INTEGER.fullmatch(name)
        if match and int(match[1]) <= _MAX_VERSION:
            yield int(match[1]), name


def _find_largest(names: list[str]) -> int:
    """Returns the largest number that a version has or had; 0 if there was none."""
    versions = (number for number, _ in _iter_versions(names))
    return max((*versions, *_parse_records(names).values()), default=0)


def _name_record(number: int) -> str:
    return f"{_RECORD_PREFIX}{number}"


def _parse_records(names: list[str]) -> dict[str, int]:
    matches = filter(None, map(_RECORD.fullmatch, names))
    return {match[0]: n for match in matches if (n := int(match[1])) <= _MAX_VERSION}


def _list_older_records(names: list[str], number: int) -> list[str]:
    return [name for name, recorded in _parse_records(names).items() if recorded < number]


def _is_version_claim(claim: Claim) -> bool:
    return any(_iter_versions([claim.name]))


def _sort_usual_last(directories: dict[int, list[AnyPath]]) -> dict[int, list[AnyPath]]:
    for paths in directories.values():
        paths.sort(key=lambda path: path.name == str(int(path.name)))
    return directories


T = TypeVar("T")


@dataclass(frozen=True)
class NewVersion(Generic[T]):
    """Version that `publish_version` wrote.

    Attributes:
      version: the number of the version.
      path: the directory of the version.
      result: the result of the function that wrote it.
      removed: the numbers of the older versions that were removed.
      notes: problems after the version was published, for people.
      labels: the labels of the versions below the root, for TensorFlow Serving.
    """

    version: int
    path: AnyPath
    result: T
    removed: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"version {self.version}: {self.path}"]
        if self.removed:
            lines.append(f"  removed: {', '.join(map(str, self.removed))}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def publish_version(
    root: str | os.PathLike[str],
    write: Callable[[Path], T],
    *,
    keep: int | None = None,
    needed: int | None = None,
    check: Callable[[AnyPath], object] | None = None,
    origin: Origin = NEW_MODEL,
    label: str | None = None,
    files: Mapping[str, FileEntry] | None = None,
) -> NewVersion[T]:
    """Writes the directory `root/N` for the next N, complete or not at all.

    N is one more than the largest number that was ever published there, or 1. A hidden file in
    `root` records it, because a server would keep the old weights if a number were used again.
    Only complete versions are ever visible, even if the process is killed, the machine stops or
    the disk is full. Several processes and machines may publish at the same time; each gets a
    different number. Leftovers of a dead publisher are removed. If it ran on the same machine, they
    are removed as soon as its lock is free; otherwise after a day without changes, because locks of
    other machines may be invisible.

    Args:
      root: the folder of all versions, on disk or behind a scheme; created if missing.
      write: takes the path at which it makes the directory; its result is returned.
      keep: the number of newest versions that stay; older ones are removed after the new one is
        published. None keeps all. Keep 2 or more if a server may still load the version before.
      needed: the approximate number of bytes to write, for the message if the disk is full.
      check: raises if a directory is damaged. It is called before the version is visible; if it
        raises, nothing is published. It is called again before older versions are removed; if it
        raises then, they stay.
      origin: how the version came to be, for its manifest.
      label: the label that the version gets in the file of models beside `root`. With the first
        label, the version before becomes "stable". Versions with a label are never removed.
      files: the sizes and digests of the files that `write` makes, for the manifest; None computes
        them.

    Raises:
      ValueError: `keep` is less than 1, or there is no next number.
      SavingError: `label` is not a word, or a note is not a line of text.
      FileFormatError: the file with the labels is damaged.
      TypeError: `keep` is not an integer.
      NotADirectoryError: `root` is a file, or below one.
      FileExistsError: `root` is a SavedModel itself.
      FileNotFoundError: `root` is a broken link, or `write` made no directory.
      PermissionError: `root` cannot be written to.
      OSError: no installed library supports the scheme of `root`, `root` is a scheme alone, or the
        disk is full.
    """
    count = _validate_keep(keep)
    check_note(origin.note)
    folder = _open_folder(root)
    if label is not None:
        check_label(label)
        check_labels_writable(folder.path)
        find_unloaded(folder.path, ())  # raises if the version policy is damaged
    notes: list[str] = []
    labels: Mapping[str, int] = {}
    try:
        labels = read_labels(folder.path)
    except FileFormatError as e:
        # Another model's entry must not prevent a version without a label.
        if label is not None:
            raise
        notes.append(f"the labels are unknown, so older versions stay: {e}")
        count = None
    with folder.stage(needed) as place, reraise_interrupts() as check_interrupts:
        partial = place / "new"
        result = write(partial)
        if not partial.is_dir() or not any(partial.iterdir()):
            text = "is not published: the writer made no folder, or an empty one"
            raise make_path_error(errno.ENOENT, text, partial)
        if check is not None:
            check(partial)
        write_manifest(partial, origin, files)
        folder.settle(partial)
        # Before the version is visible, because a server compiles programs that it does not find;
        # and before the lock, because copies take longer than others wait for it.
        share_programs(partial, folder.path)
        # The lock keeps numbers in order. They are unique without it.
        with lock_folder(folder.path):
            check_interrupts()
            version = folder.add(place, notes)
            needs_versions = count is not None or label is not None or labels
            versions = _list_directories(folder, notes) if needs_versions else {}
        # Until the server reads the new labels, requests with a label go to its old version.
        pinned = set(labels.values())
        if label is not None:
            labels = _add_label(folder, label, version)
            if unloaded := find_unloaded(folder.path, versions):
                notes.append(describe_unloaded(folder.path, unloaded))
        elif labels and versions:
            labels = _check_labels(folder, version, labels, versions, notes)
        path = folder.path / str(version)
        removed: list[int] = []
        if count is not None:
            old = [n for n in sorted(versions)[:-count] if n not in {*pinned, *labels.values()}]
            if old and (check is None or _is_readable(path, check, notes)):
                removed = [n for n in old if _remove_version(folder, versions[n], notes)]
        _remove_unused_programs(folder)
        # Another publisher, which did not see this version yet, may have removed them.
        restore_programs(path, folder.path)
    return NewVersion(version, path, result, tuple(removed), tuple(notes), labels)


def _check_labels(
    folder: VersionFolder,
    version: int,
    labels: Mapping[str, int],
    versions: Collection[int],
    notes: list[str],
) -> dict[str, int]:
    """Returns the labels of existing versions, and adds notes about the other labels.

    Another note says that the new version has no label.
    """
    existing = keep_existing(labels, versions)
    if missing := {name: n for name, n in labels.items() if name not in existing}:
        notes.append(describe_missing(folder.path, missing))
    if existing:
        texts = ", ".join(f"{label} is {number}" for label, number in sorted(existing.items()))
        notes.append(
            f"version {version} has no label ({texts}): a server that reads {MODEL_CONFIG} uses it "
            "for requests without a label; give it one by promote"
        )
    return existing


def _remove_unused_programs(folder: VersionFolder) -> None:
    # With the lock no version appears between the listing and the removal.
    with contextlib.suppress(OSError), lock_folder(folder.path):
        if list_shared_names(folder.path):
            versions = chain.from_iterable(folder.directories().values())
            remove_unused_programs(folder.path, versions)


def _add_label(folder: VersionFolder, label: str, version: int) -> Mapping[str, int]:
    def assign(labels: Mapping[str, int]) -> dict[str, int]:
        versions = folder.directories()
        existing = keep_existing(labels, versions)
        before = max((n for n in versions if n < version), default=None)
        if not existing and label != STABLE and before is not None:
            return {STABLE: before, label: version}
        return {**existing, label: version}

    try:
        return update_labels(folder.path, assign)
    except OSError as e:
        text = (
            f"cannot be written ({e.strerror or e}): version {version} is published, but without "
            f"the label {label!r}. Give it the label by promote"
        )
        file = locate_model_config(folder.path)
        raise make_path_error(e.errno or errno.EIO, text, file) from e


def keep_existing(labels: Mapping[str, int], versions: Collection[int]) -> dict[str, int]:
    """Drops the labels of versions that were removed by hand.

    Requests with such a label fail. Callers list the versions after they read the labels, because a
    version exists before it gets a label.
    """
    return {label: number for label, number in labels.items() if number in versions}


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
        raise TypeError(f"keep must be an integer: the number of versions that stay. Got: {keep!r}")
    if count < 1:
        raise ValueError(
            f"keep is {count}, but the newest version always stays: pass 1 or more, or None to "
            "keep all"
        )
    return count


def _open_folder(root: str | os.PathLike[str]) -> VersionFolder:
    folder = open_version_folder(root)
    if isinstance(folder.path, StoragePath):
        folder.path.check_is_below(min_parts=1)
    check_place(folder.path)
    exists = folder.path.exists()
    if os.path.islink(root) and not exists:
        text = (
            f"is a link to {folder.path}, which does not exist: create that folder, or fix the link"
        )
        raise make_path_error(errno.ENOENT, text, root)
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
    """Removes the directories of a version; returns whether nothing of it is left."""
    for path in paths:
        try:
            hidden = folder.remove(path)
        except FileNotFoundError:
            return False  # another publisher was faster
        except OSError as e:
            notes.append(f"version {path.name} could not be removed: {e.strerror}: {path}")
            return False
        if hidden is not None:
            notes.append(
                f"version {path.name} is no longer served, but its files could not be deleted: "
                f"remove {hidden}"
            )
            return False
    return True


def link_files(source: Path, target: Path, *, without: str = "") -> None:
    """Links the files of a version into the folder of a new one, or copies them.

    Nothing changes a published file: versions are replaced and removed as a whole.

    Args:
      source: the version.
      target: an existing folder.
      without: the name of a folder that is left out.

    Raises:
      OSError: a file cannot be read, linked or copied.
    """
    for path, folders, files in os.walk(source, onerror=_reraise, followlinks=True):
        relative = Path(path).relative_to(source)
        if relative == Path(".") and without in folders:
            folders.remove(without)
        for folder in folders:
            (target / relative / folder).mkdir()
        for file in files:
            _link(Path(path, file), target / relative / file)


def _reraise(error: OSError) -> None:
    raise error


def _link(source: Path, target: Path) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except FileNotFoundError:
        raise
    except OSError:  # no hard links here, too many links, or another user's file
        shutil.copy2(source, target)
