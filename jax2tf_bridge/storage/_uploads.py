"""Uploads directories to storage that cannot rename folders; readers see them complete or not.

A directory is made on the local disk and uploaded file by file. Its *last* file (saved_model.pb)
makes it visible, because readers ignore a directory without that file. The last file is uploaded
under another name, and renamed when all other files have arrived. Meanwhile a claim names the
writer. Leftovers of dead writers are removed by the next one.

A claim is a marker file beside the directory, `.NAME.KIND-OWNER`. OWNER has the time, the machine,
and the name of a staging folder on the writer's own disk. The writer locks that folder while it
runs, so others can tell whether it still does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from jax2tf_bridge._utils import reraise_interrupts
from jax2tf_bridge.errors import Argument, Message, make_path_error
from jax2tf_bridge.storage._paths import StoragePath, copy_file, wait_until
from jax2tf_bridge.storage._staging import digest, is_unlocked, read_boot_id, stage_directory

_STAGING_NAME = "jax2tf-bridge"
# Time after which a claim of another machine expires.
_CLAIM_LIFETIME_S = 24 * 3600
_CLAIM = re.compile(
    r"\.(?P<name>.+?)\.(?P<kind>partial|removed)"
    r"-(?P<machine>[0-9a-f]{8})-(?P<time>[0-9a-f]{8})-(?P<place>[\w.-]+)-(?P<random>[0-9a-f]{8})"
)

PARTIAL, REMOVED = "partial", "removed"
"""Kinds of claims: the directory is being written, or is being removed (by anyone)."""


@dataclass(frozen=True)
class Claim:
    """Claim on a directory.

    Attributes:
      file: the path of the claim, beside the directory.
      name: the name of the directory.
      kind: PARTIAL or REMOVED.
      machine, time, place: the writer's machine, start time and staging folder.
    """

    file: StoragePath
    name: str
    kind: str
    machine: str
    time: int
    place: str

    @property
    def directory(self) -> StoragePath:
        """Returns the claimed directory."""
        return self.file.with_name(self.name)

    def is_dead(self) -> bool:
        """Returns whether the writer is known to have ended."""
        if self.machine == identify_machine():
            return is_unlocked(Path(tempfile.gettempdir(), self.place))
        return self.time < time.time() - _CLAIM_LIFETIME_S


def make_claim(directory: StoragePath, kind: str, place: Path) -> Claim:
    """Claims a directory.

    Args:
      directory: the directory.
      kind: PARTIAL or REMOVED.
      place: the writer's staging folder, in the system's folder for temporary files.

    Raises:
      OSError: the claim cannot be written.
    """
    now = int(time.time())
    owner = f"{identify_machine()}-{now:08x}-{place.name.lstrip('.')}-{secrets.token_hex(4)}"
    file = directory.with_name(f".{directory.name}.{kind}-{owner}")
    try:
        write_marker(file)
    except OSError as e:
        e.filename = str(directory)
        raise
    return Claim(file, directory.name, kind, identify_machine(), now, place.name)


def write_marker(file: StoragePath) -> None:
    """Writes a file whose name is its only information."""
    with file.open("wb") as marker:
        marker.write(b"-\n")  # some storage drops empty files


def _iter_claims(folder: StoragePath, names: list[str]) -> Iterator[Claim]:
    for name in names:
        if match := _CLAIM.fullmatch(name):
            yield Claim(
                folder / name,
                match["name"],
                match["kind"],
                match["machine"],
                int(match["time"], 16),
                f".{match['place']}",
            )


def identify_machine() -> str:
    """Computes a digest of the running system and its file systems, which share locks."""
    file_systems = ""
    with contextlib.suppress(OSError):
        file_systems = os.readlink("/proc/self/ns/mnt")
    # Without a unique name, a writer counts as ended only after the time limit.
    boot = read_boot_id() or secrets.token_hex(16)
    return digest("\n".join([tempfile.gettempdir(), file_systems, boot]))


def stage_upload(needed: int | None = None) -> AbstractContextManager[Path]:
    """Yields a staging folder on the local disk, whose folder `new` is to be filled and uploaded.

    Raises:
      OSError: the disk is full, or cannot be written.
    """
    return stage_directory(Path(tempfile.gettempdir()), _STAGING_NAME, needed=needed)


@contextlib.contextmanager
def whole_upload(path: StoragePath, *, overwrite: bool, last: str) -> Iterator[Path]:
    """Yields a local path to write a directory at, and uploads the directory to `path` at the end.

    Args:
      path: the final path; it must not exist or must be an empty folder.
      overwrite: whether the user asked to overwrite; only changes the message if `path` exists.
      last: the file that makes the directory visible.

    Raises:
      FileExistsError: `path` exists, or another process is writing it.
      FileNotFoundError: the directory has no file `last`.
      OSError: the directory cannot be written, or `path` is a bucket.
    """
    path.check_is_below()
    clear_dead_claims(path.parent, lambda claim: claim.name == path.name, last)
    check_free_upload(path, overwrite=overwrite)
    with stage_upload() as place, reraise_interrupts() as check_interrupts:
        yield place / "new"
        check_interrupts()
        path.parent.mkdir(parents=True, exist_ok=True)
        claim = make_claim(path, PARTIAL, place)
        with _withdraw_on_error(claim):
            if _find_rival_claims(path.parent, claim):
                text = "is being written by another process"
                raise make_path_error(errno.EEXIST, text, path)
            check_free_upload(path, overwrite=overwrite)
        # Leftovers beside a complete directory are removed by the next writer.
        upload(place / "new", claim, last)


def check_free_upload(path: StoragePath, *, overwrite: bool) -> None:
    """Raises if `whole_upload` would refuse the path."""
    path.check_is_below()
    status = path.find()
    if status is None:
        return
    if not status.is_folder:
        text = "already exists, and is not a folder"
        raise make_path_error(errno.ENOTDIR, text, path)
    if not path.names():
        return
    if overwrite:
        message = Message(
            "already exists: ",
            Argument("overwrite", True),
            " needs a local path, because storage cannot exchange folders atomically. Name a new "
            "path, or publish the next version below a folder",
        )
        raise make_path_error(errno.EEXIST, message, path)
    text = "already exists: name a new path"
    raise make_path_error(errno.EEXIST, text, path)


def upload(
    source: Path, claim: Claim, last: str, *, prepare: Callable[[], None] = lambda: None
) -> list[str]:
    """Uploads a local directory to its claimed path, and removes the claim.

    Args:
      source: the local directory.
      claim: the claim on the final path.
      last: the file that makes the directory visible.
      prepare: called before the first file is written; if it raises, nothing is uploaded.

    Returns:
      Notes about problems after the directory became visible.

    Raises:
      FileNotFoundError: the directory has no file `last`.
      OSError: the directory cannot be written. Then it stays invisible, and uploaded files are
        removed if possible.
    """
    target = claim.directory
    try:
        if not (source / last).is_file():
            text = f"is not written: readers look for its {last}, which the writer did not make"
            raise make_path_error(errno.ENOENT, text, target)
        prepare()
        _upload_files(source, target, claim, last)
    except BaseException as error:
        if _is_uploaded(target / last, source / last):
            notes = _tidy(claim, last)
            if isinstance(error, OSError):
                # The error came after the rename, for example when the old name was removed.
                return notes
            raise
        with contextlib.suppress(OSError):
            remove_directory(target, last)
            _withdraw(claim)
        raise
    return _tidy(claim, last)


def _upload_files(source: Path, target: StoragePath, claim: Claim, last: str) -> None:
    sizes: dict[str, int] = {}
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.rglob("*")):
        name = file.relative_to(source).as_posix()
        if file.is_dir():
            (target / name).mkdir(parents=True, exist_ok=True)
        elif name != last:
            sizes[name] = copy_file(file, target / name)
    waiting = _make_waiting_name(last)
    sizes[waiting] = copy_file(source / last, target / waiting)
    # Another process may have removed files, if it thought that this writer had ended.
    for name, size in sizes.items():
        wait_until(lambda n=name, s=size: (target / n).has_size(s), target / name)  # type: ignore[misc]
    wait_until(claim.file.exists, claim.file)
    target.backend.rename(str(target / waiting), str(target / last))
    wait_until(lambda: (target / last).has_size(sizes[waiting]), target / last)


def _is_uploaded(path: StoragePath, source: Path) -> bool:
    try:
        return path.has_size(source.stat().st_size)
    except OSError:
        return False


def _make_waiting_name(last: str) -> str:
    return f".{last}.partial"


def _tidy(claim: Claim, last: str) -> list[str]:
    try:
        claim.directory.backend.remove(str(claim.directory / _make_waiting_name(last)))
        _withdraw(claim)
    except OSError as e:
        return [f"{claim.file} could not be removed: {e}"]
    return []


def _withdraw(claim: Claim) -> None:
    claim.file.backend.remove(str(claim.file))


@contextlib.contextmanager
def _withdraw_on_error(claim: Claim) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            _withdraw(claim)
        raise


def _find_rival_claims(folder: StoragePath, own: Claim) -> list[Claim]:
    """Waits until the own claim is visible, and lists others' claims on the same directory."""
    claims: list[Claim] = []

    def sees_own() -> bool:
        claims[:] = _iter_claims(folder, folder.names())
        return own.file in [claim.file for claim in claims]

    wait_until(sees_own, own.file)
    return [claim for claim in claims if claim.file != own.file and claim.name == own.name]


def clear_dead_claims(folder: StoragePath, selects: Callable[[Claim], bool], last: str) -> None:
    """Removes leftovers of dead writers in a folder, as far as possible.

    Args:
      folder: the folder with the directories.
      selects: returns whether to check a claim.
      last: as in `upload`.
    """
    for claim in _iter_claims(folder, folder.names()):
        if not selects(claim):
            continue
        with contextlib.suppress(OSError):
            if claim.kind == REMOVED:
                remove_directory(claim.directory, last)
                _withdraw(claim)
            elif claim.is_dead():
                if not (claim.directory / last).exists():
                    remove_directory(claim.directory, last)
                _tidy(claim, last)


def remove_directory(path: StoragePath, last: str) -> None:
    """Removes a directory, beginning with the file that makes it visible.

    Raises:
      OSError: a file cannot be removed, or still exists.
    """
    path.backend.remove(str(path / last))
    wait_until(lambda: not (path / last).exists(), path / last, "was removed, and is still there")
    path.backend.remove_folder(str(path))
    wait_until(lambda: not path.exists(), path, "was removed, and is still there")


def remove_visible(path: StoragePath, last: str) -> None:
    """Removes a visible directory under a claim, so that the next writer can finish the removal.

    Raises:
      OSError: the directory cannot be removed.
    """
    with stage_upload() as place:
        claim = make_claim(path, REMOVED, place)
        remove_directory(path, last)
        _withdraw(claim)


def claim_number(
    folder: StoragePath, place: Path, find_largest: Callable[[list[str]], int], max_number: int
) -> Claim:
    """Claims the next free number as a name in a folder.

    Each writer writes its claim before it lists those of others. If two writers want the same
    number, at least one sees the other and gives way. If both do, they take further numbers in the
    order of their claims.

    Args:
      folder: an existing folder.
      place: the writer's staging folder, as in `make_claim`.
      find_largest: returns the largest number among names, 0 without any.
      max_number: the maximum number.

    Raises:
      ValueError: the next number would exceed the maximum.
      OSError: the claim cannot be written.
    """
    number = _find_largest_taken(folder, find_largest)
    while True:
        number += 1
        if number > max_number:
            text = f"{folder} has the version {number - 1}, and there is no larger number for the "
            raise ValueError(text + "next")
        claim = make_claim(folder / str(number), PARTIAL, place)
        with _withdraw_on_error(claim):
            rivals = _find_rival_claims(folder, claim)
            if not rivals and not claim.directory.exists():
                return claim
            _withdraw(claim)
        ranks = sorted(str(c.file) for c in (*rivals, claim))
        number = max(number, _find_largest_taken(folder, find_largest))
        number += ranks.index(str(claim.file))


def _find_largest_taken(folder: StoragePath, find_largest: Callable[[list[str]], int]) -> int:
    names = folder.names()
    return find_largest([*names, *(claim.name for claim in _iter_claims(folder, names))])
