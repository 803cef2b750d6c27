"""Writes XLA's compile cache beside a model, and shares it with later versions.

`precompile` starts another process, since TensorFlow reads the setting when it starts:

    python -m jax2tf_bridge.saving.serving._precompile MODEL FOLDER_WITH_REQUESTS
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import SavingError, make_path_error
from jax2tf_bridge.saving.serving._warm_up import WarmUpRequest, read_warm_up, write_warm_up
from jax2tf_bridge.storage import AnyPath, StoragePath, as_path, replace_file_at

CACHE_FOLDER = Path("assets.extra", "xla_cache")
"""Path of the cache in the model's directory, so that it is published and copied with the model."""

_FLAGS = "TF_XLA_FLAGS"
_HEADINGS = ("Graph execution error:", "Detected at node", "Node:")
_NODES = re.compile(r"\{\{[^}]*\}\} ?")
"""TensorFlow's names of graph nodes, which mean nothing to users."""
_MAX_CHARACTERS = 500


@dataclass(frozen=True)
class CompileCache:
    """XLA's compile cache beside a model.

    Attributes:
      folder: the folder of the cache.
      programs: the number of compiled programs in it.
    """

    folder: AnyPath
    programs: int

    def environment(self, folder: str | os.PathLike[str] | None = None) -> dict[str, str]:
        """Returns the environment variable with which TensorFlow uses the cache.

        Args:
          folder: the folder of the cache on the serving machine, if it differs.
        """
        return {_FLAGS: _cache_flags(as_path(folder or self.folder), read_only=True)}

    def __str__(self) -> str:
        (setting,) = (f"{name}='{value}'" for name, value in self.environment().items())
        return (
            f"{self.programs} compiled programs in {self.folder}. To use them, start the process "
            f"that serves with {setting}, with TensorFlow {tf.__version__} and on the kind of "
            "processor that compiled them; others compile as before."
        )


def precompile(
    folder: str | os.PathLike[str],
    requests: Iterable[WarmUpRequest],
    *,
    cache: str | os.PathLike[str] | None = None,
) -> CompileCache:
    """Runs a SavedModel once for each request, and stores the programs that XLA compiled.

    Each request runs in a session, as in TensorFlow Serving and C++ programs, and by
    tf.saved_model.load, as in Python, since TensorFlow compiles these separately. The programs are
    for the installed TensorFlow and for the devices of this machine.

    Args:
      folder: the folder of the SavedModel.
      requests: the requests to run, from `requests_of`.
      cache: the folder of the cache, by default assets.extra/xla_cache of the model. Versions that
        differ only in their weights may share a folder.

    Raises:
      SavingError: the model cannot be loaded or run; has TensorFlow's error.
    """
    model = _require_on_disk(folder)
    cache_folder = model / CACHE_FOLDER if cache is None else _require_on_disk(cache)
    cache_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        write_warm_up(temporary, requests)
        command = [sys.executable, "-m", __name__, str(model), temporary]
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=_make_environment(cache_folder),
        )
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines() or [f"it ended with {process.returncode}"]
        raise SavingError(f"{model} could not be run to compile it ahead: {lines[-1]}")
    return CompileCache(cache_folder, sum(1 for _ in cache_folder.iterdir()))


def _require_on_disk(folder: str | os.PathLike[str]) -> Path:
    path = as_path(folder)
    if isinstance(path, StoragePath):
        text = "has a scheme, but only SavedModels on disk can be compiled: copy the SavedModel"
        raise make_path_error(OSError, errno.EINVAL, text, path)
    return path.absolute()


def _make_environment(cache: Path) -> dict[str, str]:
    """Returns this process' environment with the cache, and with this bridge in PYTHONPATH."""
    flags = f"{os.environ.get(_FLAGS, '')} {_cache_flags(cache, read_only=False)}".strip()
    packages = str(Path(__file__).parents[3])
    paths = [packages, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **os.environ,
        _FLAGS: flags,
        "PYTHONPATH": os.pathsep.join(paths),
    }


def _cache_flags(folder: AnyPath, *, read_only: bool) -> str:
    flags = f"--tf_xla_persistent_cache_directory={folder}"
    return f"{flags} --tf_xla_persistent_cache_read_only=true" if read_only else flags


def _run_in_session(model: str, requests: Sequence[WarmUpRequest]) -> None:
    v1 = tf.compat.v1
    with v1.Session(graph=tf.Graph()) as session:
        signatures = v1.saved_model.load(session, ["serve"], model).signature_def
        for request in requests:
            signature = signatures[request.signature]
            feeds = {signature.inputs[n].name: x for n, x in request.arrays().items()}
            session.run([output.name for output in signature.outputs.values()], feeds)


def _run_loaded(model: str, requests: Sequence[WarmUpRequest]) -> None:
    signatures: Any = tf.saved_model.load(model).signatures
    for request in requests:
        signatures[request.signature](**request.tensors())


def _main(model: str, folder: str) -> str | None:
    """Runs the requests in the folder; returns an error message, or None."""
    try:
        requests = read_warm_up(folder)
        _run_loaded(model, requests)
        _run_in_session(model, requests)
    except Exception as e:  # the process that started this one reports any error
        return f"{type(e).__name__}: {extract_first_line(str(e))}"
    return None


def extract_first_line(message: str) -> str:
    """Returns the first meaningful line of TensorFlow's message."""
    lines = [line for line in message.splitlines() if line.strip()]
    meaningful = [line for line in lines if not line.startswith(_HEADINGS)]
    plain = _NODES.sub("", next(iter(meaningful or lines), "it says nothing"))
    return plain[:_MAX_CHARACTERS]


# Stores compiled programs beside the versions of a model, where they outlive each version.
#
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


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
