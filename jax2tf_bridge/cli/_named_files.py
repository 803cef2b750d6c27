"""Reads arguments of the form [NAME=]PATH: exported functions and the names of their signatures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from jax2tf_bridge.cli._commands import UsageError, exported_path
from jax2tf_bridge.saved_model import SERVING_DEFAULT
from jax2tf_bridge.storage import AnyPath

NamedPath: TypeAlias = tuple[str, AnyPath]
"""Name of a signature, or "" without one, and the file of its function."""

METAVAR = "[NAME=]PATH"


def named_path(text: str) -> NamedPath:
    """Parses the argument.

    Raises:
      argparse.ArgumentTypeError: as `exported_path`.
    """
    name, equals, path = text.partition("=")
    if equals and name.isidentifier() and not Path(text).exists():
        return name, exported_path(path)
    return "", exported_path(text)


def by_signature(files: Sequence[NamedPath]) -> dict[str, AnyPath]:
    """Maps the names of signatures to files; a file without a name is "serving_default".

    Raises:
      UsageError: two have the same name.
    """
    paths: dict[str, AnyPath] = {}
    for name, path in files:
        signature = name or SERVING_DEFAULT
        if signature in paths:
            raise UsageError(
                f"{path}: of several files each needs the name of its signature, as "
                f"{path.stem}={path}"
            )
        paths[signature] = path
    return paths
