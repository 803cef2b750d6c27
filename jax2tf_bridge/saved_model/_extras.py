"""Reads the files beside saved_model.pb: warm-up requests, and the sizes of files."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model._protobuf import BYTES, ProtoMessage
from jax2tf_bridge.saved_model._saved_model import WarmUp
from jax2tf_bridge.saved_model._schema import ModelSpecField, PredictionLogField, RequestField
from jax2tf_bridge.saved_model._tfrecord import count_records, read_records
from jax2tf_bridge.storage import AnyPath, walk_files

SERVING_DEFAULT = "serving_default"
"""Signature that TensorFlow Serving uses for requests without a signature name."""

WARM_UP = Path("assets.extra", "tf_serving_warmup_requests")
"""Path of TensorFlow Serving's warm-up requests in the model's directory."""

_MAX_REQUESTS = 100_000
"""Maximum number of requests to count; TensorFlow Serving replays at most 1000."""

_MAX_FILES = 10_000


def read_warm_up(folder: AnyPath) -> WarmUp | None:
    """Counts the requests in the warm-up file, a TFRecord, without parsing them.

    Returns None if there is no such file.
    """
    path = folder / WARM_UP
    size = _size(path)
    if size is None:
        return None
    requests, problem = count_records(path, _MAX_REQUESTS)
    return WarmUp(requests, size, problem)


@dataclass(frozen=True)
class Request:
    """Warm-up request.

    Attributes:
      signature: the name of the signature.
      inputs: maps input names to TensorProto messages.
    """

    signature: str
    inputs: Mapping[str, ProtoMessage]


def requests_in(record: ProtoMessage) -> Iterator[Request]:
    """Yields the predict requests in an entry of the warm-up file, and skips other kinds.

    Raises:
      FileFormatError: the entry is damaged.
    """
    for log in _messages(record, PredictionLogField.PREDICT_LOG, "a request to predict"):
        for request in _messages(log, PredictionLogField.REQUEST, "a request to predict"):
            name = ""
            for spec in _messages(request, RequestField.MODEL_SPEC, "what a request is for"):
                name = spec.text_of(ModelSpecField.SIGNATURE_NAME) or name
            inputs = dict(
                request.entry(field, "an input of a request")
                for field in request.fields()
                if field.number == RequestField.INPUTS and field.kind == BYTES
            )
            yield Request(name or SERVING_DEFAULT, inputs)


def read_requests(folder: AnyPath) -> Iterator[Request]:
    """Yields the predict requests in a SavedModel's warm-up file, if there is one.

    Raises:
      FileFormatError: it is not a warm-up file, or is damaged.
    """
    path = folder / WARM_UP
    if _size(path) is None:
        return
    try:
        for record in read_records(path):
            yield from requests_in(ProtoMessage(record, "a request to warm up", str(path)))
    except FileFormatError:
        raise  # its text says more
    except ValueError as e:
        text = f"{path}: not a warm-up file of TensorFlow Serving, or damaged: {e}"
        raise FileFormatError(text, file=str(path)) from e


def _messages(message: ProtoMessage, number: int, place: str) -> Iterator[ProtoMessage]:
    """Yields the messages in the fields of a number, and skips fields of other kinds."""
    for field in message.fields():
        if field.number == number and field.kind == BYTES:
            yield message.message(field, place)


def files_below(folder: AnyPath) -> dict[str, int]:
    """Maps the relative paths of all files below a folder to their sizes."""
    sizes: dict[str, int] = {}
    for name, size in walk_files(folder):
        if len(sizes) == _MAX_FILES:
            break
        sizes[name] = size
    return sizes


def _size(path: AnyPath) -> int | None:
    """Returns the size of a plain file; None if it does not exist."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
