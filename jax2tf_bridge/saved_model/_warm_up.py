"""Reads and writes the warm-up requests of TensorFlow Serving.

They are a TFRecord file, which is a sequence of records. A record is the length of its content in
eight bytes, the checksum of these, the content, and the checksum of the content.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model._crc32c import crc32c, mask_checksum
from jax2tf_bridge.saved_model._schema import ModelSpecField, PredictionLogField, RequestField
from jax2tf_bridge.serialization import BYTES, ProtoMessage
from jax2tf_bridge.storage import AnyPath

_HEAD, _CHECKSUM = struct.Struct("<QI"), struct.Struct("<I")

SERVING_DEFAULT = "serving_default"
"""Signature that TensorFlow Serving uses for requests without a signature name."""

WARM_UP = Path("assets.extra", "tf_serving_warmup_requests")
"""Path of TensorFlow Serving's warm-up requests in the model's directory."""

_MAX_REQUESTS = 100_000
"""Maximum number of requests to count; TensorFlow Serving replays at most 1000."""


@dataclass(frozen=True)
class WarmUp:
    """Requests that TensorFlow Serving replays when it loads the model.

    Attributes:
      requests: the number of requests.
      size: the size of the file in bytes.
      problem: the reason why they cannot be counted; None if they can.
    """

    requests: int
    size: int
    problem: str | None = None


def read_warm_up(folder: AnyPath) -> WarmUp | None:
    """Counts the requests in the warm-up file, a TFRecord, without parsing them.

    Returns None if there is no such file.
    """
    path = folder / WARM_UP
    size = _get_size(path)
    if size is None:
        return None
    count = 0
    with path.open("rb") as file:
        try:
            for _ in _iter_spans(file):
                if count == _MAX_REQUESTS:
                    return WarmUp(count, size, f"it has more than {count:,} records")
                count += 1
        except ValueError as e:
            return WarmUp(count, size, str(e))
    return WarmUp(count, size)


@dataclass(frozen=True)
class Request:
    """Warm-up request.

    Attributes:
      signature: the name of the signature.
      inputs: maps input names to TensorProto messages.
    """

    signature: str
    inputs: Mapping[str, ProtoMessage]


def _iter_requests(record: ProtoMessage) -> Iterator[Request]:
    """Yields the predict requests in a record of the warm-up file; other kinds are skipped."""
    for log in _iter_messages(record, PredictionLogField.PREDICT_LOG, "a predict request"):
        for request in _iter_messages(log, PredictionLogField.REQUEST, "a predict request"):
            name = ""
            specs = _iter_messages(request, RequestField.MODEL_SPEC, "the model spec of a request")
            for spec in specs:
                name = spec.text_of(ModelSpecField.SIGNATURE_NAME) or name
            inputs = dict(
                request.entry(field, "an input of a request")
                for field in request.fields()
                if field.number == RequestField.INPUTS and field.kind == BYTES
            )
            yield Request(name or SERVING_DEFAULT, inputs)


def _iter_messages(message: ProtoMessage, number: int, place: str) -> Iterator[ProtoMessage]:
    """Yields the messages in the fields of a number, and skips fields of other kinds."""
    for field in message.fields():
        if field.number == number and field.kind == BYTES:
            yield message.message(field, place)


def read_requests(folder: AnyPath) -> Iterator[Request]:
    """Yields the predict requests in a SavedModel's warm-up file, if there is one.

    Raises:
      FileFormatError: it is not a warm-up file, or is damaged.
    """
    path = folder / WARM_UP
    if _get_size(path) is None:
        return
    try:
        for record in _read_records(path):
            yield from _iter_requests(ProtoMessage(record, "a warm-up request", str(path)))
    except FileFormatError:
        raise  # its text says more
    except ValueError as e:
        text = f"{path}: not a warm-up file of TensorFlow Serving, or damaged: {e}"
        raise FileFormatError(text, file=str(path)) from e


def _get_size(path: AnyPath) -> int | None:
    """Returns the size of a plain file; None if it does not exist."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _read_records(path: AnyPath) -> Iterator[bytes]:
    """Yields the records of a file; raises a ValueError whose text completes a sentence."""
    with path.open("rb") as file:
        for number, (start, length) in enumerate(_iter_spans(file)):
            file.seek(start - _HEAD.size)
            head = file.read(_HEAD.size)
            content = file.read(length)
            (checksum,) = _CHECKSUM.unpack(file.read(_CHECKSUM.size))
            if head != _encode_head(length) or checksum != mask_checksum(crc32c(content)):
                raise ValueError(f"its record {number} does not have its checksum")
            yield content


def write_records(path: AnyPath, records: Iterable[bytes]) -> None:
    """Writes a TFRecord file."""
    with path.open("wb") as file:
        for record in records:
            file.write(_encode_head(len(record)))
            file.write(record)
            file.write(_CHECKSUM.pack(mask_checksum(crc32c(record))))


def _encode_head(length: int) -> bytes:
    return _HEAD.pack(length, mask_checksum(crc32c(length.to_bytes(8, "little"))))


def _iter_spans(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yields the offset and the length of each record, which lie within the file."""
    size, at = file.seek(0, 2), 0
    while at < size:
        file.seek(at)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise ValueError("it ends within a record's length")
        length, _ = _HEAD.unpack(head)
        start = at + _HEAD.size
        at = start + length + _CHECKSUM.size
        if at > size:
            raise ValueError("it ends within a record")
        yield start, length
