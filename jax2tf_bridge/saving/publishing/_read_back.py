"""Checks a SavedModel before a version is made from it, or older versions are removed."""

from __future__ import annotations

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model import TensorBundle, read_saved_model
from jax2tf_bridge.storage import AnyPath

_VARIABLES = "variables"


def check_complete(folder: AnyPath) -> None:
    """Reads the graph of a SavedModel, and compares the sizes of its files with their indexes.

    Does not read arrays, so it is fast for large models and in remote storage.

    Raises:
      FileNotFoundError: there is no such folder.
      FileFormatError: the graph or the variables are missing, empty or truncated, or other files
        are missing that TensorFlow needs.
      OSError: a file cannot be read.
    """
    contents = read_saved_model(folder, of_any_tool=True)
    for missing in (*contents.missing_files, *contents.missing_functions):
        raise FileFormatError(f"{folder} has no {missing}.", file=str(folder))
    if contents.warm_up is not None and contents.warm_up.problem is not None:
        raise FileFormatError(
            f"The warm-up requests of {folder} are damaged: {contents.warm_up.problem}.",
            file=str(folder),
        )
    if (folder / _VARIABLES / "variables.index").exists():
        _check_variables(folder)


def _check_variables(folder: AnyPath) -> None:
    bundle = TensorBundle(folder / _VARIABLES / _VARIABLES)
    ends: dict[int, int] = {}
    for entry in bundle.entries.values():
        ends[entry.shard] = max(ends.get(entry.shard, 0), entry.start + entry.size)
    for shard, end in ends.items():
        path = bundle.shard(shard)
        size = path.stat().st_size if path.exists() else None
        if size is None:
            raise FileFormatError(f"{path} is missing.", file=str(path))
        if size < end:
            raise FileFormatError(
                f"{path} is cut short: it has {size} bytes, and variables up to byte {end}.",
                file=str(path),
            )
