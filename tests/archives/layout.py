"""Names in the folder of an archived program; needs neither JAX nor TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ARCHIVE = "program.exported"
RETARGETED = "program.jaxfn"


def program_folders(folder: Path) -> Iterator[Path]:
    """Lists the folders of the programs that a release wrote completely."""
    return (archive.parent for archive in sorted(folder.glob(f"*/{ARCHIVE}")))
