"""What is wrong with a command line."""

from __future__ import annotations

from pathlib import Path


class UsageError(Exception):
    """A command line that cannot be carried out as it is written; the text is one line."""


def check_output(file: Path, option: str = "--output") -> None:
    """Raises before the work is done if the file that an option names cannot be written there."""
    if file.is_dir():
        raise UsageError(f"{option}: {file} is a folder; name the file to write")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{option}: there is no folder {file.parent}")
