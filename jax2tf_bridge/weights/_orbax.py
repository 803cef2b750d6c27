"""Reads Orbax checkpoints, which are directories, with orbax-checkpoint.

orbax-checkpoint is optional and imports JAX, so it is imported when a checkpoint is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jax2tf_bridge.errors import FileFormatError, MissingDependencyError
from jax2tf_bridge.storage import AnyPath, as_path, on_disk

_METADATA = "_METADATA"
"""File that marks the directory of a tree of arrays."""

_STEP_METADATA = "_CHECKPOINT_METADATA"
"""File that marks the directory of a step, which has a directory for each item."""


def read_orbax(path: str | os.PathLike[str]) -> Any:
    """Reads an Orbax checkpoint as a tree of dicts and lists with NumPy arrays.

    Everything is read, including an optimizer's state. Named tuples become dicts of their fields,
    as Orbax stores them.

    Args:
      path: the directory of a tree, or of a step with one tree; on disk or behind a scheme.

    Raises:
      FileFormatError: it is not an Orbax checkpoint, has several trees, or is damaged.
      MissingDependencyError: orbax-checkpoint is not installed.
      OSError: the checkpoint cannot be read.
    """
    folder = _find_tree(as_path(path))
    try:
        import orbax.checkpoint as ocp
    except ImportError as e:
        if not str(e.name or "").startswith("orbax"):
            raise
        needed_for = f"Reading {folder}, a checkpoint of Orbax,"
        raise MissingDependencyError("orbax-checkpoint", "orbax", needed_for) from e
    with on_disk(folder) as local:
        place = os.path.abspath(local)
        try:
            checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
            # orbax-checkpoint 0.11 and newer write the metadata of a step.
            metadata = checkpointer.metadata(place)
            metadata = getattr(metadata, "item_metadata", metadata)
            args = _make_restore_args(getattr(metadata, "tree", metadata), ocp)
            return checkpointer.restore(place, restore_args=args)
        except Exception as e:  # Orbax and TensorStore raise many types
            reason = (str(e).strip().splitlines() or ["no reason is given"])[0]
            raise FileFormatError(
                f"{folder} cannot be read as a checkpoint of Orbax: {type(e).__name__}: "
                f"{reason:.300}",
                file=str(folder),
            ) from e


def _find_tree(folder: AnyPath) -> AnyPath:
    """Returns the directory of the only tree in a directory.

    Raises:
      FileFormatError: the directory has no tree, or several.
    """
    if (folder / _METADATA).exists():
        return folder
    below: list[AnyPath] = sorted(folder.iterdir(), key=lambda path: path.name)
    trees = [path for path in below if (path / _METADATA).exists()]
    if len(trees) == 1:
        return trees[0]
    if trees:
        raise FileFormatError(
            f"{folder} is a checkpoint of Orbax with several trees. Name one of "
            f"{', '.join(str(path) for path in trees)}.",
            file=str(folder),
        )
    steps = [path for path in below if (path / _STEP_METADATA).exists()]
    if steps:
        newest = max(steps, key=lambda path: (_read_step_number(path.name), path.name))
        raise FileFormatError(
            f"{folder} is a folder of checkpoints of Orbax. Name one of them, such as {newest}.",
            file=str(folder),
        )
    raise FileFormatError(
        f"{folder} is a directory: expected a file of msgpack or safetensors, or a checkpoint of "
        "Orbax. Load other checkpoints, or a SavedModel, with the library that wrote them, and "
        "give the arrays as a state dict.",
        file=str(folder),
    )


def _read_step_number(name: str) -> int:
    digits = "".join(filter(str.isdecimal, name))
    return int(digits) if digits else -1


def _make_restore_args(metadata: Any, ocp: Any) -> Any:
    """Makes arguments that restore the arrays of any device as NumPy arrays."""
    if isinstance(metadata, Mapping):
        return {key: _make_restore_args(child, ocp) for key, child in metadata.items()}
    if isinstance(metadata, (list, tuple)):
        return type(metadata)(_make_restore_args(child, ocp) for child in metadata)
    if metadata is None:
        return None
    is_array = hasattr(metadata, "shape")
    return ocp.RestoreArgs(restore_type=np.ndarray) if is_array else ocp.RestoreArgs()
