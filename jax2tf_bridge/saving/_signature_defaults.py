"""Defaults of a SavedModel's inputs, which TensorFlow Serving fills in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.to_tf import _tf_compat


def write_defaults(folder: Path, defaults: Mapping[str, Mapping[str, tf.Tensor]]) -> None:
    """Writes defaults into the signatures of a SavedModel.

    tf.saved_model.save takes them from a function's own defaults, where tensors stop it.

    Args:
      folder: of the SavedModel, which nobody reads yet.
      defaults: by signature and input.

    Raises:
      SavingError: this TensorFlow has no such thing.
    """
    if not any(defaults.values()):
        return
    message = _tf_compat.saved_model_message()
    if message is None:
        raise SavingError(
            f"TensorFlow {tf.__version__} has no defaults for inputs: leave out `defaults`."
        )
    file = folder / "saved_model.pb"
    model = message.FromString(file.read_bytes())
    for graph in model.meta_graphs:
        for name, values in defaults.items():
            for key, value in values.items():
                graph.signature_def[name].defaults[key].CopyFrom(
                    tf.make_tensor_proto(value.numpy())
                )
    file.write_bytes(model.SerializeToString(deterministic=True))
    # It holds a checksum of what was there before.
    (folder / "fingerprint.pb").unlink(missing_ok=True)
