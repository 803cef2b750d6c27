"""fingerprint.pb of a SavedModel, for another checkpoint beside the same graph.

A protocol buffer of TensorFlow; field 5 is the digest of the checkpoint's index, field 7 (since
TensorFlow 2.18) a random number in decimal, which tells two writings of the same model apart.
"""

from __future__ import annotations

import secrets

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model._protobuf import Value, WireError, fields
from jax2tf_bridge.saved_model._protobuf_writing import bytes_field, varint_field

_CHECKPOINT, _UUID = 5, 7


def with_checkpoint(fingerprint: bytes, index: bytes) -> bytes:
    """The fingerprint of a model whose checkpoint has another index file.

    Args:
      fingerprint: the content of fingerprint.pb.
      index: the content of variables/variables.index.

    Raises:
      FileFormatError: it is no fingerprint.
    """
    try:
        found = list(fields(memoryview(fingerprint)))
    except WireError as e:
        raise FileFormatError(f"fingerprint.pb cannot be read: {e}.") from e
    if b"".join(_field(number, value) for number, value in found) != fingerprint:
        raise FileFormatError("fingerprint.pb has fields of kinds that are not known.")
    renewed: dict[int, Value] = {
        _CHECKPOINT: _digest(index),
        _UUID: memoryview(str(secrets.randbits(128)).encode()),
    }
    return b"".join(_field(number, renewed.get(number, value)) for number, value in found)


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, int):
        return varint_field(number, value)
    return bytes_field(number, bytes(value))


def _digest(data: bytes) -> int:
    """FarmHash's Fingerprint64, as TensorFlow computes it."""
    row = tf.constant(np.frombuffer(data, np.uint8)[None])
    digest = tf.raw_ops.Fingerprint(data=row, method=b"farmhash64")
    return int.from_bytes(digest.numpy().tobytes(), "little")
