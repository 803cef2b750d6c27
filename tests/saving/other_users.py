"""Code that runs without the right to write, also where the tests run as root."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_NOBODY = 65534


@contextlib.contextmanager
def folder_for_all() -> Iterator[Path]:
    """A folder that other users may read, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(os.path.realpath(name))


def as_another_user(folder: Path, run: Callable[[Path], object]) -> str:
    """Gives the error of `run`, which may read `folder`, but not write it.

    Args:
      folder: one of `folder_for_all`.
      run: takes the folder. What it imports has to be imported before.
    """
    os.chmod(folder, 0o555)
    try:
        with _nobody():
            run(folder)
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    finally:
        os.chmod(folder, 0o755)
    return ""


@contextlib.contextmanager
def _nobody() -> Iterator[None]:
    """Makes root, if this process runs as root, a user without rights for a while."""
    if os.geteuid() != 0:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(_NOBODY)
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)
