"""Writes the values of a SavedModel's variables from the user's arrays to the file.

While a model is traced and saved, its variables have no values, so memory holds the weights only
once, in the user's arrays. TensorFlow writes everything else and lists each variable in the object
graph; then the values are appended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import SavingError, format_bullets
from jax2tf_bridge.saved_model import NewTensor, ProtoMessage, TensorSpec, append_tensors
from jax2tf_bridge.saving._fingerprint import renew_fingerprint
from jax2tf_bridge.saving.weights._variables import (
    ConstantArray,
    ConstantVariables,
    Weight,
    WeightLeaf,
    checkpoint_key,
)
from jax2tf_bridge.weights.msgpack import byte_blocks

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# trackable_object_graph.proto
_NODES, _ATTRIBUTES, _CHECKPOINT_KEY = 1, 2, 3


@dataclass(frozen=True)
class VariableValue:
    """Variable of a SavedModel, and its value.

    Attributes:
      name: its name, for messages.
      key: its key in the checkpoint.
      variable: the variable, which may have its value already.
      value: its value.
    """

    name: str
    key: str
    variable: tf.Variable
    value: WeightLeaf | ConstantArray

    def tensor(self) -> NewTensor:
        """Returns the array to write."""
        kind = TensorSpec(self.value.dtype.name, self.value.shape)
        return NewTensor(kind, partial(_blocks, self.value))


def variable_values(weights: Sequence[Weight], constants: ConstantVariables) -> list[VariableValue]:
    """Lists the variables of a model with their values."""
    return [
        *(
            VariableValue(f"params/{w.name}", checkpoint_key("params", w.name), w.variable, w.value)
            for w in weights
        ),
        *(
            VariableValue(
                f"constants/{name}",
                checkpoint_key("constants", name),
                variable,
                constants.values[name],
            )
            for name, variable in constants.variables.items()
        ),
    ]


def hold_values(values: Sequence[VariableValue]) -> None:
    """Assigns variables their values, to run functions that read them."""
    for each in _without(values):
        each.variable.assign(each.value.array())


def write_values(folder: Path, values: Sequence[VariableValue]) -> None:
    """Writes the values of variables that have none into a SavedModel that TensorFlow wrote.

    Raises:
      SavingError: TensorFlow lists a variable under another key, or an array changed its size.
    """
    if not values:
        return
    prefix = str(folder / "variables" / "variables")
    append_tensors(prefix, {each.key: each.tensor() for each in _without(values)})
    check_keys(prefix, values)
    renew_fingerprint(folder)


def check_keys(prefix: str, values: Sequence[VariableValue]) -> None:
    """Raises unless each key is in the checkpoint, and TensorFlow will look for it.

    Raises:
      SavingError: TensorFlow has written another key.
    """
    reader = tf.train.load_checkpoint(prefix)
    graph = ProtoMessage(reader.get_tensor(_OBJECT_GRAPH), "the object graph of the variables")
    written = reader.get_variable_to_shape_map().keys() & set(_read_noted_keys(graph))
    missing = [f"{each.name}: {each.key}" for each in values if each.key not in written]
    if missing:
        raise SavingError(
            "TensorFlow has written variables under other keys than expected:"
            f"{format_bullets(missing)}\nThis is a fault of jax2tf-bridge with TensorFlow "
            f"{tf.__version__}; please report it."
        )


def _without(values: Sequence[VariableValue]) -> Iterator[VariableValue]:
    return (each for each in values if not each.variable.is_initialized())


def _blocks(value: WeightLeaf | ConstantArray) -> Iterator[memoryview]:
    return byte_blocks(value.given(), np.dtype(value.dtype.as_numpy_dtype))


def _read_noted_keys(graph: ProtoMessage) -> Iterator[str]:
    for node in graph.messages(_NODES, "an object"):
        for attribute in node.messages(_ATTRIBUTES, "an attribute"):
            yield attribute.text_of(_CHECKPOINT_KEY)
