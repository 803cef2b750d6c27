"""Programs that XLA compiled ahead: in each version, and beside the versions for servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from jax2tf_bridge.storage import AnyPath, StoragePath, replace_file_at

CACHE_FOLDER = Path("assets.extra", "xla_cache")
"""Path of the cache in the model's directory, so that it is published and copied with the model."""

# Every version has its own programs, so that it can be copied alone. A server reads the programs
# beside the versions, so its setting stays valid when `keep` removes a version.

SHARED_CACHE = "xla_cache"
"""Name of the folder beside the versions; TensorFlow Serving ignores it, since it is no number."""


def locate_served_cache(model: AnyPath) -> AnyPath:
    """Returns the folder from which a server reads the programs of a model.

    It is beside the versions if the model is a version, that is if its name is a number; else it
    is in the model.
    """
    is_version = model.name.isdecimal()
    return model.parent / SHARED_CACHE if is_version else model / CACHE_FOLDER


def share_programs(model: AnyPath, root: AnyPath) -> None:
    """Copies the programs of a version to the folder beside the versions below `root`.

    A server may read the folder meanwhile, so files appear only when complete.

    Raises:
      OSError: the programs cannot be written.
    """
    for name in list_program_names(model):
        data = (model / CACHE_FOLDER / name).read_bytes()
        shared = root / SHARED_CACHE
        shared.mkdir(parents=True, exist_ok=True)
        target = shared / name
        if not (target.exists() and target.read_bytes() == data):
            with replace_file_at(target, bytes_of="the compiled program") as file:
                file.write(data)


def list_program_names(model: AnyPath) -> set[str]:
    """Returns the names of the programs that a version has."""
    folder = model / CACHE_FOLDER
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def remove_programs(root: AnyPath, names: Iterable[str], remaining: Iterable[AnyPath]) -> None:
    """Removes programs beside the versions that no remaining version has, as far as possible."""
    unused = set(names)
    for model in remaining if unused else ():
        unused -= list_program_names(model)
    for name in unused:
        path = root / SHARED_CACHE / name
        with contextlib.suppress(OSError):
            if isinstance(path, StoragePath):
                path.backend.remove(str(path))
            else:
                path.unlink(missing_ok=True)
