"""Programs that XLA compiled ahead: in each version, and beside the versions for servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from jax2tf_bridge.storage import AnyPath, StoragePath, replace_file_at

# Every version has its own programs, so that it can be copied alone. A server reads the programs
# beside the versions, so its setting stays valid when `keep` removes a version.
CACHE_FOLDER = Path("assets.extra", "xla_cache")
"""Path of the programs in a model's directory."""

_SHARED_CACHE = "xla_cache"
"""Name of the folder beside the versions; TensorFlow Serving ignores it, since it is no number."""


def locate_served_cache(model: AnyPath) -> AnyPath:
    """Returns the folder from which a server reads the programs of a model.

    It is beside the versions if the name of the model is a number, and otherwise in the model.
    """
    is_version = model.name.isdecimal()
    return model.parent / _SHARED_CACHE if is_version else model / CACHE_FOLDER


def share_programs(model: AnyPath, root: AnyPath) -> None:
    """Copies the programs of a version to the folder beside the versions below `root`.

    A server may read the folder meanwhile, so files appear only when complete.

    Raises:
      OSError: the programs cannot be written.
    """
    for name in list_program_names(model):
        _share_program(model, root, name, replaces=True)


def restore_programs(model: AnyPath, root: AnyPath) -> None:
    """Copies the programs of a version that are missing beside the versions, as far as possible.

    It compares no contents, so it does not read the programs that are there.
    """
    with contextlib.suppress(OSError):
        for name in list_program_names(model):
            _share_program(model, root, name, replaces=False)


def _share_program(model: AnyPath, root: AnyPath, name: str, *, replaces: bool) -> None:
    shared = root / _SHARED_CACHE
    target = shared / name
    exists = target.exists()
    if exists and not replaces:
        return
    data = (model / CACHE_FOLDER / name).read_bytes()
    if exists and target.stat().st_size == len(data) and target.read_bytes() == data:
        return
    shared.mkdir(parents=True, exist_ok=True)
    with replace_file_at(target, bytes_of="the compiled program") as file:
        file.write(data)


def list_program_names(model: AnyPath) -> set[str]:
    """Returns the names of the programs that a version has."""
    return _list_names(model / CACHE_FOLDER)


def list_shared_names(root: AnyPath) -> set[str]:
    """Returns the names of the programs beside the versions below `root`."""
    return _list_names(root / _SHARED_CACHE)


def _list_names(folder: AnyPath) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def remove_unused_programs(root: AnyPath, versions: Iterable[AnyPath]) -> None:
    """Removes programs beside the versions that no version has, as far as possible."""
    unused = list_shared_names(root)
    for model in versions if unused else ():
        unused -= list_program_names(model)
    for name in unused:
        path = root / _SHARED_CACHE / name
        with contextlib.suppress(OSError):
            if isinstance(path, StoragePath):
                path.backend.remove(str(path))
            else:
                path.unlink(missing_ok=True)
