"""Staging folders: hidden folders in which a directory is written before it gets its name.

A staging folder lies beside the final path, so that a rename suffices at the end. It holds `lock`,
which its writer locks while it runs; `new`, which the writer fills; and `old` while a directory is
replaced. The next writer removes staging folders whose lock is free.

A staging folder is renamed before it is deleted. A writer that wrongly counts as dead (on a shared
file system whose locks do not reach other machines) then fails when it renames its directory, and
never publishes one with missing files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.storage._disk import find_existing_parent, name_full_disk, sync_folder
from jax2tf_bridge.storage._paths import AnyPath, StoragePath

if sys.platform != "win32":
    import fcntl

# Age at which an unchanged staging folder without usable locks counts as abandoned.
_ABANDONED_AFTER_S = 24 * 3600
_LOCK = "lock"
# Number of staging folders that a writer makes before it gives up, because others remove each.
_MAX_ATTEMPTS = 100


@contextlib.contextmanager
def stage_directory(
    parent: Path, name: str, *, target: Path | None = None, needed: int | None = None
) -> Iterator[Path]:
    """Yields a staging folder in `parent`, whose folder `new` is to be written and renamed.

    Args:
      parent: the folder; it and its parents are made, and removed again on failure.
      name: the name of the directory.
      target: the path that `old` is restored to if it is free.
      needed: the number of bytes to write, if known.

    Raises:
      NotADirectoryError: a parent is a file.
      OSError: `parent` cannot be written to, or the disk is full.
    """
    with contextlib.ExitStack() as stack:
        with name_full_disk(parent, needed):
            stack.enter_context(_make_folders(parent))
            place = stack.enter_context(staging_folder(parent, name, target))
        with name_full_disk(parent, needed, place / "new"):
            yield place


@contextlib.contextmanager
def _make_folders(folder: Path) -> Iterator[None]:
    above = find_existing_parent(folder / "new")
    missing = [p for p in (folder, *folder.parents) if p != above and above in p.parents]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
        for created in missing:
            sync_folder(created.parent)
    except BaseException:
        for created in missing:
            with contextlib.suppress(OSError):  # other processes use it
                created.rmdir()
        raise


@contextlib.contextmanager
def staging_folder(parent: Path, name: str, target: Path | None = None) -> Iterator[Path]:
    """Yields a new staging folder in `parent`, and removes it at the end.

    Args:
      parent: an existing folder.
      name: the name of the directory. Leftovers of dead writers of this name are removed.
      target: the path that `old` is restored to if it is free.

    Raises:
      PermissionError, OSError: `parent` cannot be written to.
    """
    clear_leftovers(parent, name, target)
    boot, node = _identify_system()
    for _ in range(_MAX_ATTEMPTS):
        # Never the same name twice: a process that removes the folder of the last attempt cannot
        # remove this one.
        token = secrets.token_hex(8)
        place = Path(os.path.abspath(parent), f".{name}.partial-{boot}-{node}-{token}")
        lock: int | None = None
        try:  # from before the folder exists, so that an interrupt at any moment removes it
            lock = _make(place)
            if lock is not None:
                yield place
                return
        finally:
            _clear(place, name, target)
            if lock is not None:
                os.close(lock)
    raise make_path_error(errno.EBUSY, "is cleared by other processes again and again", parent)


def clear_leftovers(parent: Path, name: str, target: Path | None = None) -> None:
    """Removes leftovers of dead writers of `name` in `parent`; arguments as in `staging_folder`."""
    pattern = re.compile(
        rf"\.{re.escape(name)}\."
        rf"(?:(?P<removed>removed-[0-9a-f]{{16}})|partial-(?P<boot>\w{{8}})-(?P<node>\w{{8}})-[0-9a-f]{{16}})"
    )
    boot, node = _identify_system()
    try:
        entries = os.listdir(parent)
    except PermissionError:  # a folder may be writable but not readable
        return
    for entry in entries:
        match = pattern.fullmatch(entry)
        if match is None:
            continue
        place = parent / entry
        if match["removed"]:
            _delete(place)
        else:
            _clear_if_dead(place, name, target, match["boot"] == boot or match["node"] == node)


def remove_at_once(path: Path, name: str) -> Path | None:
    """Renames a directory, then removes as much of it as possible.

    Returns:
      The hidden path of what could not be removed; None if nothing is left.

    Raises:
      OSError: the directory cannot be renamed.
    """
    removed = path.parent / f".{name}.removed-{secrets.token_hex(8)}"
    os.rename(path, removed)
    _delete(removed)
    return removed if os.path.lexists(removed) else None


def is_unlocked(place: Path) -> bool:
    """Returns whether no writer holds the lock of a staging folder, or the folder is gone.

    Returns False if the state of the lock is unknown.
    """
    try:
        handle = os.open(place / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:  # the folder of another user
        return False
    try:
        return _lock(handle) is True
    finally:
        os.close(handle)


# Holders rename or write a small file, which takes milliseconds, unless they are stopped.
_LOCK_SECONDS = 10.0


@contextlib.contextmanager
def lock_folder(folder: AnyPath) -> Iterator[None]:
    """Locks a folder on disk, after waiting for at most ten seconds.

    The block also runs without the lock, after the wait or if the storage has no locks, so it must
    be safe then.
    """
    if sys.platform == "win32" or isinstance(folder, StoragePath):
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while _lock(handle) is False and time.monotonic() < deadline:
            time.sleep(0.005)
        yield
    finally:
        os.close(handle)


def _make(place: Path) -> int | None:
    """Makes a staging folder, and returns the handle of its lock, which it holds.

    Returns None if another process removed the folder before it was locked.

    Raises:
      PermissionError, OSError: the folder around it cannot be written to.
    """
    try:
        place.mkdir(mode=0o700)
        handle = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileNotFoundError:
        if not place.parent.is_dir():
            raise
        return None
    except OSError as e:
        if e.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            text = f"cannot be written to ({os.strerror(e.errno)})"
            raise make_path_error(e.errno, text, place.parent) from e
        raise
    if _lock(handle) is not False and (place / _LOCK).exists():
        return handle
    os.close(handle)
    return None


def _clear_if_dead(place: Path, name: str, target: Path | None, same_machine: bool) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(place)  # only an empty folder; a live writer makes another one
        return
    try:
        handle = os.open(place / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        if _is_abandoned(place):
            _clear(place, name, target)
        return
    except OSError:  # the lock of another user
        return
    try:
        free = _lock(handle)
        if (free and same_machine) or (free is not False and _is_abandoned(place)):
            _clear(place, name, target)
    finally:
        os.close(handle)


def _lock(handle: int) -> bool | None:
    """Takes a lock; returns False if another process holds it, None if locks are not supported."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _is_abandoned(place: Path) -> bool:
    newest = 0.0
    for folder, _, files in os.walk(place):
        for path in (folder, *(os.path.join(folder, file) for file in files)):
            with contextlib.suppress(OSError):
                newest = max(newest, os.lstat(path).st_mtime)
    return 0 < newest < time.time() - _ABANDONED_AFTER_S


def _clear(place: Path, name: str, target: Path | None) -> None:
    """Removes a staging folder; first restores `old` if its place is free."""
    old = place / "old"
    if target is not None and old.exists() and not os.path.lexists(target):
        try:
            old.rename(target)
        except OSError:
            return  # it is the only copy
    with contextlib.suppress(OSError):
        remove_at_once(place, name)


def _delete(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _identify_system() -> tuple[str, str]:
    """Computes digests of the running system (new after a restart) and of the machine's name."""
    return digest(read_boot_id() or platform.node()), digest(platform.node())


def read_boot_id() -> str | None:
    """Returns the id of the running system, which is new after a restart; None if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return None


def digest(text: str) -> str:
    """Returns a short digest for the name of a file."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
