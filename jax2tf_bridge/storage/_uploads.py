"""Directories in storage without atomic renames of folders: complete, or not seen.

A directory is made on the local disk and sent file by file. What makes it visible, its *last*
file (saved_model.pb), is sent under another name, and renamed when all else is known to be there.
Who reads takes a directory without it for none. A claim beside the directory (see `_claims`) says
meanwhile that somebody is at work; whoever finds one of a dead writer removes what that one left.
"""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from jax2tf_bridge._utils import ended_by_interrupts
from jax2tf_bridge.errors import Argument, Message, make_path_error
from jax2tf_bridge.storage._arrivals import has_size, wait_until
from jax2tf_bridge.storage._claims import (
    PARTIAL,
    REMOVED,
    Claim,
    claims_among,
    make_claim,
    write_marker,
)
from jax2tf_bridge.storage._paths import StoragePath
from jax2tf_bridge.storage._whole_directory import staging

_PLACE = "jax2tf-bridge"
_PIECE = 4 << 20


@contextlib.contextmanager
def staged_upload(needed: int | None = None) -> Iterator[Path]:
    """Yields a staging folder on the local disk, whose `new` is filled and sent.

    Raises:
      OSError: the disk is full, or cannot be written.
    """
    with staging(Path(tempfile.gettempdir()), _PLACE, needed=needed) as place:
        yield place


@contextlib.contextmanager
def whole_upload(path: StoragePath, *, overwrite: bool, last: str) -> Iterator[Path]:
    """Yields a local path to write a directory at, and sends that to `path` at the end.

    Args:
      path: nothing may be there; or an empty folder.
      overwrite: only for the message if something is there.
      last: the file that makes it visible.

    Raises:
      FileExistsError: something is there, or somebody else is writing it.
      FileNotFoundError: the writer left no `last`.
      OSError: it cannot be written, or is a bucket.
    """
    path.check_is_below()
    clear_dead_claims(path.parent, lambda claim: claim.name == path.name, last)
    check_free_upload(path, overwrite=overwrite)
    with staged_upload() as place, ended_by_interrupts() as check_interrupts:
        yield place / "new"
        check_interrupts()
        path.parent.mkdir(parents=True, exist_ok=True)
        claim = make_claim(path, PARTIAL, place)
        try:
            others = [c for c in _claims(path.parent, claim) if c.name == path.name]
            if others:
                text = "is just being written by somebody else"
                raise make_path_error(FileExistsError, errno.EEXIST, text, path)
            check_free_upload(path, overwrite=overwrite)
        except BaseException:
            with contextlib.suppress(OSError):
                _withdraw(claim)
            raise
        # The next writer removes what is left over once the directory is there.
        send(place / "new", claim, last)


def check_free_upload(path: StoragePath, *, overwrite: bool) -> None:
    """Raises if `whole_upload` would refuse a path, as where something is."""
    path.check_is_below()
    found = path.find()
    if found is None:
        return
    if not found.is_folder:
        text = "is there already, and is no folder"
        raise make_path_error(NotADirectoryError, errno.ENOTDIR, text, path)
    if not path.names():
        return
    if overwrite:
        said = Message(
            "is there already, and is not replaced: ",
            Argument("overwrite", True),
            " needs a local path, where one folder takes the place of another at once. Name a "
            "new path, or publish the next version below a folder",
        )
        raise make_path_error(FileExistsError, errno.EEXIST, said, path)
    text = "is there already: name a new path"
    raise make_path_error(FileExistsError, errno.EEXIST, text, path)


def send(source: Path, claim: Claim, last: str, *, record: StoragePath | None = None) -> list[str]:
    """Sends a local directory to where a claim is, and gives the claim up.

    Args:
      source: the local directory.
      claim: on the directory that is written.
      last: the file that makes it visible.
      record: a file that is written first, and stays when the directory is removed.

    Returns:
      What went wrong when it was there already, for people.

    Raises:
      FileNotFoundError: there is no `last` in it.
      OSError: it cannot be written; then nothing of it is seen, and what can be removed is.
    """
    target = claim.directory
    try:
        if not (source / last).is_file():
            text = f"is not written: it would be seen by its {last}, and its writer left none"
            raise make_path_error(FileNotFoundError, errno.ENOENT, text, target)
        if record is not None:
            size = write_marker(record)
            wait_until(lambda: has_size(record, size), record)
        _send_all(source, target, claim, last)
    except BaseException as error:
        if _is_there(target / last, source / last):
            notes = _tidied(claim, last)
            if isinstance(error, OSError):
                # It is of what came after, as removing the other name of a copy.
                return notes
            raise
        with contextlib.suppress(OSError):
            remove_directory(target, last)
            _withdraw(claim)
        raise
    return _tidied(claim, last)


def _send_all(source: Path, target: StoragePath, claim: Claim, last: str) -> None:
    sizes: dict[str, int] = {}
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.rglob("*")):
        name = file.relative_to(source).as_posix()
        if file.is_dir():
            (target / name).mkdir(parents=True, exist_ok=True)
        elif name != last:
            sizes[name] = _copy(file, target / name)
    waiting = _waiting_name(last)
    sizes[waiting] = _copy(source / last, target / waiting)
    # Not only of this writer's mistakes: who took it for dead may have removed files.
    for name, size in sizes.items():
        wait_until(lambda n=name, s=size: has_size(target / n, s), target / name)  # type: ignore[misc]
    wait_until(claim.file.exists, claim.file)
    target.backend.rename(str(target / waiting), str(target / last))
    wait_until(lambda: has_size(target / last, sizes[waiting]), target / last)


def _copy(file: Path, target: StoragePath) -> int:
    size = 0
    with file.open("rb") as source, target.open("wb") as copy:
        while piece := source.read(_PIECE):
            size += len(piece)
            copy.write(piece)
    return size


def _is_there(path: StoragePath, source: Path) -> bool:
    try:
        return has_size(path, source.stat().st_size)
    except OSError:
        return False


def _waiting_name(last: str) -> str:
    return f".{last}.partial"


def _tidied(claim: Claim, last: str) -> list[str]:
    try:
        claim.directory.backend.remove(str(claim.directory / _waiting_name(last)))
        _withdraw(claim)
    except OSError as e:
        return [f"{claim.file} could not be removed: {e}"]
    return []


def _withdraw(claim: Claim) -> None:
    claim.file.backend.remove(str(claim.file))


def _claims(folder: StoragePath, own: Claim) -> list[Claim]:
    """Lists the claims of others, once the own one is among all."""
    found: list[Claim] = []

    def sees_own() -> bool:
        found[:] = claims_among(folder, folder.names())
        return own.file in [claim.file for claim in found]

    wait_until(sees_own, own.file)
    return [claim for claim in found if claim.file != own.file]


def clear_dead_claims(folder: StoragePath, wanted: Callable[[Claim], bool], last: str) -> None:
    """Removes what dead writers left in a folder, as far as that can be done.

    Args:
      folder: the folder with the directories.
      wanted: picks the claims that are looked at.
      last: as for `send`.
    """
    for claim in claims_among(folder, folder.names()):
        if not wanted(claim):
            continue
        with contextlib.suppress(OSError):
            if claim.kind == REMOVED:
                remove_directory(claim.directory, last)
                _withdraw(claim)
            elif claim.is_dead():
                if not (claim.directory / last).exists():
                    remove_directory(claim.directory, last)
                _tidied(claim, last)


def remove_directory(path: StoragePath, last: str) -> None:
    """Removes a directory: first what makes it visible.

    Raises:
      OSError: something cannot be removed, or is still there.
    """
    path.backend.remove(str(path / last))
    wait_until(lambda: not (path / last).exists(), path / last, "was removed, and is still there")
    path.backend.remove_folder(str(path))
    wait_until(lambda: not path.exists(), path, "was removed, and is still there")


def remove_visible(path: StoragePath, last: str) -> None:
    """Removes a directory that is seen, so that the next writer goes on if this one dies.

    Raises:
      OSError: it cannot be removed.
    """
    with staged_upload() as place:
        claim = make_claim(path, REMOVED, place)
        remove_directory(path, last)
        _withdraw(claim)


def claim_number(
    folder: StoragePath, place: Path, largest: Callable[[list[str]], int], most: int
) -> Claim:
    """Claims the next number below a folder, which nobody else has or claims.

    Each writes its claim before it looks for those of others. So of two that want the same number
    at least one sees the other, and who sees another gives way. Both may: then they take numbers
    of their own, in the order of their claims.

    Args:
      folder: the folder, which is there.
      place: of the writer, as for `make_claim`.
      largest: the largest number among names, 0 if there is none.
      most: the largest number that there may be.

    Raises:
      ValueError: there is no next number.
      OSError: the claim cannot be written.
    """
    number = _largest_taken(folder, folder.names(), largest)
    while True:
        number += 1
        if number > most:
            text = f"{folder} has the version {number - 1}, and there is no larger number for the "
            raise ValueError(text + "next")
        claim = make_claim(folder / str(number), PARTIAL, place)
        try:
            others = [c for c in _claims(folder, claim) if c.name == claim.name]
            if not others and not claim.directory.exists():
                return claim
            _withdraw(claim)
        except BaseException:
            with contextlib.suppress(OSError):
                _withdraw(claim)
            raise
        ranks = sorted(str(c.file) for c in (*others, claim))
        number = max(number, _largest_taken(folder, folder.names(), largest))
        number += ranks.index(str(claim.file))


def _largest_taken(
    folder: StoragePath, names: list[str], largest: Callable[[list[str]], int]
) -> int:
    return largest([*names, *(claim.name for claim in claims_among(folder, names))])
