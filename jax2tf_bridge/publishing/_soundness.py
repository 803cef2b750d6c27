"""Checks whether a version is complete, and whether it is what was published."""

from __future__ import annotations

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.publishing._manifest import Manifest, list_differences, read_manifest
from jax2tf_bridge.saved_model import VARIABLES_FOLDER, TensorBundle, read_saved_model
from jax2tf_bridge.storage import AnyPath


def check_complete(folder: AnyPath) -> None:
    """Reads the graph of a SavedModel, and compares the sizes of its files with their indexes.

    Does not read arrays, so it is fast for large models and in remote storage.

    Raises:
      FileNotFoundError: there is no such folder.
      FileFormatError: the graph or the variables are missing, empty or truncated, or other files
        are missing that TensorFlow needs.
      OSError: a file cannot be read.
    """
    contents = read_saved_model(folder, accept_any_tool=True)
    for missing in (*contents.missing_files, *contents.missing_functions):
        raise FileFormatError(f"{folder} has no {missing}.", file=str(folder))
    if contents.warm_up is not None and contents.warm_up.problem is not None:
        raise FileFormatError(
            f"The warm-up requests of {folder} are damaged: {contents.warm_up.problem}.",
            file=str(folder),
        )
    if (folder / VARIABLES_FOLDER / "variables.index").exists():
        _check_variables(folder)


def _check_variables(folder: AnyPath) -> None:
    bundle = TensorBundle(folder / VARIABLES_FOLDER / VARIABLES_FOLDER)
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


def check_published(folder: AnyPath, *, contents: bool) -> Manifest | None:
    """Checks that a version is complete, and compares its files with its manifest, if it has one.

    Args:
      folder: the version.
      contents: whether to read and compare all files; otherwise only their sizes.

    Returns:
      The manifest; None without one.

    Raises:
      FileNotFoundError: there is no such folder.
      FileFormatError: it is incomplete, or differs from its manifest; the text names each file.
      OSError: a file cannot be read.
    """
    check_complete(folder)
    manifest = read_manifest(folder)
    if manifest is not None:
        check_files(folder, manifest, contents=contents)
    return manifest


def check_files(
    folder: AnyPath, manifest: Manifest, *, contents: bool, version: AnyPath | None = None
) -> None:
    """Compares the files of a version with its manifest.

    Args:
      folder: the version, or a copy of it.
      manifest: its manifest.
      contents: as for `check_published`.
      version: the path of the version for the message, if `folder` is a copy.

    Raises:
      FileFormatError: they differ; the text names each file.
      OSError: a file cannot be read.
    """
    differences = list(list_differences(folder, manifest, contents=contents))
    if differences:
        place = str(version or folder)
        raise FileFormatError(
            f"{place} is not what was published: {'; '.join(differences)}.", file=place
        )
