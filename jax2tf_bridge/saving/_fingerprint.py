"""Renews fingerprint.pb of a SavedModel for another checkpoint beside the same graph.

The file is a protocol buffer of TensorFlow. Field 5 is the digest of the checkpoint's index. Field
7 (since TensorFlow 2.18) is a random decimal number, so that each saved model has its own.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np
import tensorflow as tf

from jax2tf_bridge.saved_model import ProtoMessage, bytes_field, varint_field

_CHECKPOINT, _UUID = 5, 7


def replace_checkpoint_digest(fingerprint: bytes, index: bytes) -> bytes:
    """Renews the fingerprint of a model for another index file of its checkpoint.

    Raises:
      FileFormatError: `fingerprint` is not a fingerprint.
    """
    message = ProtoMessage(fingerprint, "the fingerprint", "fingerprint.pb")
    parts: list[bytes] = []
    for field in message.fields():
        if field.number == _CHECKPOINT:
            message.integer(field)  # refuses other kinds
            parts.append(varint_field(_CHECKPOINT, _digest(index)))
        elif field.number == _UUID:
            message.content(field)
            parts.append(bytes_field(_UUID, str(secrets.randbits(128))))
        else:
            parts.append(fingerprint[field.start : field.end])
    return b"".join(parts)


def renew_fingerprint(folder: Path) -> None:
    """Updates the fingerprint of a SavedModel, if it has one, to its current checkpoint."""
    file = folder / "fingerprint.pb"
    if not file.exists():
        return
    index = (folder / "variables" / "variables.index").read_bytes()
    data = replace_checkpoint_digest(file.read_bytes(), index)
    file.unlink()  # it may be a hard link to the file of another version
    file.write_bytes(data)


def _digest(data: bytes) -> int:
    """Computes FarmHash's Fingerprint64, as TensorFlow does."""
    row = tf.constant(np.frombuffer(data, np.uint8)[None])
    digest = tf.raw_ops.Fingerprint(data=row, method=b"farmhash64")
    return int.from_bytes(digest.numpy().tobytes(), "little")
