"""Warm-up requests: TensorFlow Serving replays them at load time, and `precompile` runs them ahead.

`precompile` starts another process, since TensorFlow reads the setting of its cache when it starts:

    python -m jax2tf_bridge.saving.serving._warm_up MODEL FOLDER_WITH_REQUESTS
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.errors import SavingError, ShapeError
from jax2tf_bridge.publishing import CACHE_FOLDER
from jax2tf_bridge.saved_model import (
    WARM_UP,
    ModelSpecField,
    PredictionLogField,
    RequestField,
    bytes_field,
    read_requests,
    read_tensor_spec,
    write_records,
)
from jax2tf_bridge.storage import AnyPath

_MAX_REQUESTS = 1000
"""Maximum number of requests with which TensorFlow Serving loads a model."""

_Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class WarmUpRequest:
    """Call of a signature.

    Attributes:
      signature: the name of the signature.
      inputs: the arguments by name.
    """

    signature: str
    inputs: Mapping[str, _Array]

    def __str__(self) -> str:
        # NumPy stores strings as objects.
        inputs = (
            f"{name}: {array_type_text(tf.as_dtype(array.dtype).name, array.shape)}"
            for name, array in self.inputs.items()
        )
        return f"{self.signature}({', '.join(inputs)})"


def make_zeros(shape: tuple[int, ...], dtype: str) -> _Array:
    """Makes an array of zeros or empty strings that takes no space in memory or in a file."""
    zero = b"" if dtype == "string" else 0
    return np.broadcast_to(np.array(zero, tf.as_dtype(dtype).as_numpy_dtype), shape)


def write_warm_up(folder: Path, requests: Iterable[WarmUpRequest]) -> None:
    """Writes the file with requests that TensorFlow Serving replays when it loads the model.

    Args:
      folder: the folder of the SavedModel.
      requests: at most 1000 requests, in the order in which they run.

    Raises:
      ShapeError: there are more than 1000 requests.
      OSError: the file cannot be written.
    """
    requests = tuple(requests)
    if len(requests) > _MAX_REQUESTS:
        raise ShapeError(
            f"{len(requests)} warm-up requests, one for each signature and choice of buckets: "
            f"TensorFlow Serving loads a model with at most {_MAX_REQUESTS}. Give fewer buckets."
        )
    path = folder / WARM_UP
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(path, map(_encode_log, requests))


def _encode_log(request: WarmUpRequest) -> bytes:
    # TensorFlow Serving ignores the model's name in replays.
    message = encode_predict_request(request.signature, request.inputs)
    predict_log = bytes_field(PredictionLogField.REQUEST, message)
    return bytes_field(PredictionLogField.PREDICT_LOG, predict_log)


def encode_predict_request(signature: str, inputs: Mapping[str, _Array], model: str = "") -> bytes:
    """Encodes a PredictRequest; `model` is the name of the model at the server."""
    spec = bytes_field(ModelSpecField.NAME, model) if model else b""
    spec += bytes_field(ModelSpecField.SIGNATURE_NAME, signature)
    message = bytes_field(RequestField.MODEL_SPEC, spec)
    for name, array in inputs.items():
        entry = bytes_field(1, name) + bytes_field(2, encode_tensor(array))
        message += bytes_field(RequestField.INPUTS, entry)
    return message


def encode_tensor(array: _Array) -> bytes:
    """Encodes a TensorProto."""
    if not (array.ndim and array.size) or any(array.strides):
        return bytes(tf.make_tensor_proto(array).SerializeToString())
    # `make_zeros` repeats one element in memory, and a proto with a shape repeats a single value.
    proto = tf.make_tensor_proto(array.flat[0], array.dtype)
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    return bytes(proto.SerializeToString())


def read_warm_up_requests(folder: Path) -> Iterator[WarmUpRequest]:
    """Yields the requests in a SavedModel's warm-up file.

    Raises:
      FileFormatError: the file is not a warm-up file, or is damaged.
    """
    for request in read_requests(folder):
        inputs = {
            name: np.asarray(
                tf.io.parse_tensor(
                    message.data[message.start : message.end], read_tensor_spec(message).dtype
                ).numpy()
            )
            for name, message in request.inputs.items()
        }
        yield WarmUpRequest(request.signature, inputs)


_FLAGS = "TF_XLA_FLAGS"
_HEADINGS = ("Graph execution error:", "Detected at node", "Node:")
_NODES = re.compile(r"\{\{[^}]*\}\} ?")
"""TensorFlow's names of graph nodes, which mean nothing to users."""
_MAX_CHARACTERS = 500
"""Maximum length of a message of TensorFlow that an error quotes."""


def precompile(folder: Path, requests: Iterable[WarmUpRequest]) -> int:
    """Runs a SavedModel once for each request, and stores the programs that XLA compiles in it.

    Each request runs in a session, as in TensorFlow Serving and C++ programs, and by
    tf.saved_model.load, as in Python, because TensorFlow compiles for each of them. The programs
    are for the installed TensorFlow and for the devices of this machine.

    Returns:
      The number of programs.

    Raises:
      SavingError: the model cannot be loaded or run; the text ends with TensorFlow's error.
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
    path = str(cache)
    # TensorFlow splits the flags at spaces, except within quotes.
    value = json.dumps(path, ensure_ascii=False) if re.search(r"\s", path) else path
    return f"--tf_xla_persistent_cache_directory={value}"


def _make_environment(cache: Path) -> dict[str, str]:
    """Returns this process's environment with the cache, and with this bridge in PYTHONPATH."""
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
    """Runs the requests in a folder; returns an error message, or None."""
    try:
        _run_loaded(model, read_warm_up_requests(Path(folder)))
        _run_in_session(model, read_warm_up_requests(Path(folder)))
    except Exception as e:  # the process that started this one reports it
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
