"""Claims: files that name the writer of a directory in storage without locks.

A claim is a marker file beside the directory, `.NAME.KIND-OWNER`. OWNER has the time, the machine,
and the name of a staging folder on the writer's own disk. The writer locks that folder while it
runs, so others can tell whether it still does.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jax2tf_bridge.storage._paths import StoragePath
from jax2tf_bridge.storage._staging import is_unlocked

# Time after which a claim of another machine expires.
_HOLDS_S = 24 * 3600
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
        if self.machine == machine():
            return is_unlocked(Path(tempfile.gettempdir(), self.place))
        return self.time < time.time() - _HOLDS_S


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
    owner = f"{machine()}-{now:08x}-{place.name.lstrip('.')}-{secrets.token_hex(4)}"
    file = directory.with_name(f".{directory.name}.{kind}-{owner}")
    try:
        write_marker(file)
    except OSError as e:
        e.filename = str(directory)
        raise
    return Claim(file, directory.name, kind, machine(), now, place.name)


def write_marker(file: StoragePath) -> int:
    """Writes a file whose name is its only information, and returns its size in bytes.

    Raises:
      OSError: the file cannot be written.
    """
    with file.open("wb") as opened:
        return opened.write(b"-\n")  # some storage drops empty files


def claims_among(folder: StoragePath, names: list[str]) -> Iterator[Claim]:
    """Yields the claims among the names in a folder."""
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


def machine() -> str:
    """Computes a digest of the running system and its file systems, which share locks."""
    parts = [tempfile.gettempdir()]
    for link in ("/proc/self/ns/mnt",):
        try:
            parts.append(os.readlink(link))
        except OSError:
            parts.append("")
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    except OSError:
        # Without a unique name, a writer counts as ended only after the time limit.
        parts.append(secrets.token_hex(16))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
