"""Warm-up requests, which TensorFlow Serving replays at load time to spare users the wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.errors import ShapeError
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

MAX_REQUESTS = 1000
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
    if len(requests) > MAX_REQUESTS:
        raise ShapeError(
            f"{len(requests)} warm-up requests, one for each signature and choice of buckets: "
            f"TensorFlow Serving loads a model with at most {MAX_REQUESTS}. Give fewer buckets."
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


def read_warm_up(folder: Path) -> Iterator[WarmUpRequest]:
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
