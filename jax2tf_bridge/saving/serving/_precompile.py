"""Writes XLA's compile cache into a model.

`precompile` starts another process, since TensorFlow reads the setting when it starts:

    python -m jax2tf_bridge.saving.serving._precompile MODEL FOLDER_WITH_REQUESTS
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.publishing import CACHE_FOLDER
from jax2tf_bridge.saving.serving._warm_up import WarmUpRequest, read_warm_up, write_warm_up
from jax2tf_bridge.storage import AnyPath

_FLAGS = "TF_XLA_FLAGS"
_HEADINGS = ("Graph execution error:", "Detected at node", "Node:")
_NODES = re.compile(r"\{\{[^}]*\}\} ?")
"""TensorFlow's names of graph nodes, which mean nothing to users."""
_MAX_CHARACTERS = 500


def precompile(folder: Path, requests: Iterable[WarmUpRequest]) -> int:
    """Runs a SavedModel once for each request, and stores the programs that XLA compiles in it.

    Each request runs in a session, as in TensorFlow Serving and C++ programs, and by
    tf.saved_model.load, as in Python, since TensorFlow compiles these separately. The programs are
    for the installed TensorFlow and for the devices of this machine.

    Returns:
      The number of programs.

    Raises:
      SavingError: the model cannot be loaded or run; has TensorFlow's error.
    """
    model = folder.absolute()
    cache = model / CACHE_FOLDER
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        write_warm_up(Path(temporary), requests)
        command = [sys.executable, "-m", __name__, str(model), temporary]
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, env=_make_environment(cache)
        )
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines() or [f"it ended with {process.returncode}"]
        raise SavingError(f"{model} could not be run to compile it ahead: {lines[-1]}")
    return sum(1 for _ in cache.iterdir())


def make_cache_environment(cache: AnyPath) -> dict[str, str]:
    """Returns the environment variable with which TensorFlow reads the programs in a folder."""
    return {_FLAGS: f"{_format_cache_flag(cache)} --tf_xla_persistent_cache_read_only=true"}


def _format_cache_flag(cache: AnyPath) -> str:
    return f"--tf_xla_persistent_cache_directory={cache}"


def _make_environment(cache: Path) -> dict[str, str]:
    """Returns this process' environment with the cache, and with this bridge in PYTHONPATH."""
    paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **os.environ,
        _FLAGS: f"{os.environ.get(_FLAGS, '')} {_format_cache_flag(cache)}".strip(),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def _run_in_session(model: str, requests: Iterable[WarmUpRequest]) -> None:
    v1 = tf.compat.v1
    # Not a `with` block: requests could not be decoded in the graph of the session.
    with contextlib.closing(v1.Session(graph=tf.Graph())) as session:
        signatures = v1.saved_model.load(session, ["serve"], model).signature_def
        for request in requests:
            signature = signatures[request.signature]
            feeds = {signature.inputs[n].name: x for n, x in request.inputs.items()}
            session.run([output.name for output in signature.outputs.values()], feeds)


def _run_loaded(model: str, requests: Iterable[WarmUpRequest]) -> None:
    signatures: Any = tf.saved_model.load(model).signatures
    for request in requests:
        tensors = {name: tf.constant(array) for name, array in request.inputs.items()}
        signatures[request.signature](**tensors)


def _main(model: str, folder: str) -> str | None:
    """Runs the requests in the folder; returns an error message, or None."""
    try:
        _run_loaded(model, read_warm_up(Path(folder)))
        _run_in_session(model, read_warm_up(Path(folder)))
    except Exception as e:  # the process that started this one reports any error
        return f"{type(e).__name__}: {extract_first_line(str(e))}"
    return None


def extract_first_line(message: str) -> str:
    """Returns the first meaningful line of TensorFlow's message."""
    lines = [line for line in message.splitlines() if line.strip()]
    meaningful = [line for line in lines if not line.startswith(_HEADINGS)]
    plain = _NODES.sub("", next(iter(meaningful or lines), "it says nothing"))
    return plain[:_MAX_CHARACTERS]


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
