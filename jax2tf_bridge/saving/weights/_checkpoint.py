"""Writes the values of variables into the checkpoint of a SavedModel, and renews its fingerprint.

While a model is traced and saved, its variables have no values, so memory holds the weights only
once, in the user's arrays. TensorFlow writes everything else and lists each variable in the object
graph; then the values are appended.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import SavingError, format_bullets
from jax2tf_bridge.saved_model import (
    NewTensor,
    ProtoMessage,
    TensorSpec,
    append_tensors,
    bytes_field,
    varint_field,
)
from jax2tf_bridge.saving.weights._variables import SavedVariable
from jax2tf_bridge.signatures import WeightLeaf
from jax2tf_bridge.to_tensorflow import op_dtype
from jax2tf_bridge.weights.msgpack import byte_blocks

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# trackable_object_graph.proto
_NODES, _ATTRIBUTES, _CHECKPOINT_KEY = 1, 2, 3
# fingerprint.proto: the digest of the checkpoint's index, and (since TensorFlow 2.18) a random
# decimal number, so that each saved model has its own.
_CHECKPOINT, _UUID = 5, 7


def hold_values(variables: Sequence[SavedVariable]) -> None:
    """Assigns variables their values, to run functions that read them."""
    for each in _without_value(variables):
        each.variable.assign(each.leaf.array())


def write_values(folder: Path, variables: Sequence[SavedVariable]) -> None:
    """Writes the values of variables that have none into a SavedModel that TensorFlow wrote.

    Raises:
      SavingError: TensorFlow lists a variable under another key, or an array changed its size.
    """
    if not variables:
        return
    prefix = str(folder / "variables" / "variables")
    append_tensors(prefix, {v.key: to_new_tensor(v.leaf) for v in _without_value(variables)})
    check_keys(prefix, variables)
    renew_fingerprint(folder)


def check_keys(prefix: str, variables: Sequence[SavedVariable]) -> None:
    """Raises unless each key is in the checkpoint, and TensorFlow will look for it.

    Raises:
      SavingError: TensorFlow has written another key.
    """
    reader = tf.train.load_checkpoint(prefix)
    graph = ProtoMessage(reader.get_tensor(_OBJECT_GRAPH), "the object graph of the variables")
    written = reader.get_variable_to_shape_map().keys() & set(_read_noted_keys(graph))
    missing = [f"{v.collection}/{v.name}: {v.key}" for v in variables if v.key not in written]
    if missing:
        raise SavingError(
            "TensorFlow has written variables under other keys than expected:"
            f"{format_bullets(missing)}\nThis is a fault of jax2tf-bridge with TensorFlow "
            f"{tf.__version__}; please report it."
        )


def _without_value(variables: Sequence[SavedVariable]) -> Iterator[SavedVariable]:
    return (each for each in variables if not each.variable.is_initialized())


def to_new_tensor(leaf: WeightLeaf) -> NewTensor:
    """Describes the tensor to write; its bytes are read only then."""
    dtype = np.dtype(op_dtype(leaf.aval, leaf.path).as_numpy_dtype)
    return NewTensor(
        TensorSpec(op_dtype(leaf.aval, leaf.path).name, leaf.shape),
        lambda: byte_blocks(leaf.original_array(), dtype),
    )


def _read_noted_keys(graph: ProtoMessage) -> Iterator[str]:
    for node in graph.messages(_NODES, "an object"):
        for attribute in node.messages(_ATTRIBUTES, "an attribute"):
            yield attribute.text_of(_CHECKPOINT_KEY)


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
