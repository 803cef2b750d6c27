"""What lies beside saved_model.pb: variables, assets, requests to warm up, and the sidecar."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model._protobuf import BYTES, Message
from jax2tf_bridge.saved_model._saved_model import WarmUp
from jax2tf_bridge.saved_model._schema import ModelSpecField, PredictionLogField, RequestField
from jax2tf_bridge.saved_model._sidecar import SIDECAR
from jax2tf_bridge.saved_model._signature import SERVING_DEFAULT
from jax2tf_bridge.saved_model._tfrecord import count_records, read_records

WARM_UP = Path("assets.extra", "tf_serving_warmup_requests")
"""Where TensorFlow Serving looks for requests, below the model's directory."""

_LARGEST_SIDECAR = 1 << 26
_MOST_REQUESTS = 100_000
"""TensorFlow Serving itself replays 1000."""

_MOST_FILES = 10_000


def read_warm_up(folder: Path) -> WarmUp | None:
    """The warm-up file, which is a TFRecord: each record's length, then the record, with checksums.

    None if there is none. Its requests are counted and not read.
    """
    path = folder / WARM_UP
    size = _size(path)
    if size is None:
        return None
    requests, problem = count_records(path, _MOST_REQUESTS)
    return WarmUp(requests, size, problem)


@dataclass(frozen=True)
class Request:
    """A request to warm up.

    Attributes:
      signature: which it calls.
      inputs: by name, as TensorProto messages.
    """

    signature: str
    inputs: Mapping[str, Message]


def requests_in(record: Message) -> Iterator[Request]:
    """The requests to predict in a record of the warm-up file; those of other kinds are left out.

    Raises:
      FileFormatError: it is damaged.
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


def read_requests(folder: Path) -> Iterator[Request]:
    """Yields the requests to predict in a SavedModel's warm-up file; none without such a file.

    Raises:
      FileFormatError: it is no warm-up file, or damaged.
    """
    path = folder / WARM_UP
    if _size(path) is None:
        return
    try:
        for record in read_records(path):
            yield from requests_in(Message(record, "a request to warm up", str(path)))
    except FileFormatError:
        raise  # it says more
    except ValueError as e:
        text = f"{path}: not a warm-up file of TensorFlow Serving, or damaged: {e}"
        raise FileFormatError(text, file=str(path)) from e


def _messages(message: Message, number: int, place: str) -> Iterator[Message]:
    """The messages in the fields of a number; what else has that number is passed over."""
    for field in message.fields():
        if field.number == number and field.kind == BYTES:
            yield message.message(field, place)


def read_sidecar(folder: Path) -> Mapping[str, object]:
    """What the bridge wrote beside a model that it saved; empty if there is nothing.

    It need not be whole: what is in it is looked at bit by bit.

    Raises:
      ValueError: what is there is no JSON; the text ends a sentence.
    """
    path = folder / SIDECAR
    size = _size(path)
    if size is None:
        return {}
    if size > _LARGEST_SIDECAR:
        raise ValueError(f"it has {size:,} bytes")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise ValueError("it is no JSON") from e
    if not isinstance(found, dict):
        raise ValueError("it is JSON of something else")
    return found


def files_below(folder: Path) -> dict[str, int]:
    """The sizes of the files in a folder and below, by their paths in it."""
    found: dict[str, int] = {}
    for path, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            file = Path(path, name)
            size = _size(file)
            if size is not None and len(found) < _MOST_FILES:
                found[file.relative_to(folder).as_posix()] = size
    return found


def _size(path: Path) -> int | None:
    """The size of a plain file; None if there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
