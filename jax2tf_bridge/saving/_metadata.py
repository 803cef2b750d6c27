"""Writes metadata beside the graph: defaults of inputs, and the sidecar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from jax2tf_bridge._utils import number_text
from jax2tf_bridge._version import __version__
from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.saved_model import (
    ArrayEntry,
    ConstantEntry,
    Sidecar,
    SignatureEntry,
    VariableEntry,
    write_sidecar,
)
from jax2tf_bridge.saving.signatures import Endpoint, NamedPort
from jax2tf_bridge.saving.weights import ConstantVariables, Weight, checkpoint_key
from jax2tf_bridge.to_tensorflow import tf_compat
from shape_poly import shape_text


def write_metadata(
    folder: Path,
    endpoints: Sequence[Endpoint],
    weights: Sequence[Weight],
    constants: ConstantVariables,
) -> None:
    """Writes the sidecar, with which the SavedModel can be read back and published again."""
    sidecar = Sidecar(
        bridge=__version__,
        tensorflow=str(tf.__version__),
        signatures={e.name: _signature(e) for e in endpoints},
        variables=tuple(
            VariableEntry(
                weight.path,
                weight.name,
                checkpoint_key("params", weight.name),
                weight.variable.dtype.name,
                tuple(weight.variable.shape.as_list()),
                bool(weight.variable.trainable),
            )
            for weight in weights
        ),
        constants=tuple(
            ConstantEntry(
                constant.digest,
                constant.aval.dtype,
                tuple(int(str(size)) for size in constant.aval.shape),
                checkpoint_key("constants", name),
            )
            for name, constant in constants.lifted.items()
        ),
    )
    write_sidecar(folder, sidecar, {e.name: e.portable for e in endpoints})


def _signature(endpoint: Endpoint) -> SignatureEntry:
    inputs, outputs, masks = map(_arrays, (endpoint.inputs, endpoint.outputs, endpoint.masks))
    entry = SignatureEntry(inputs, outputs, endpoint.takes_params, endpoint.function.order)
    bucketing = endpoint.bucketing
    if bucketing is None:
        return entry
    return replace(
        entry,
        buckets=dict(bucketing.sizes),
        masks=masks,
        unchecked_padding=bucketing.unchecked,
        pad_values={name: number_text(value) for name, value in bucketing.pad_values.items()},
    )


def _arrays(ports: Iterable[NamedPort]) -> dict[str, ArrayEntry]:
    return {p.name: ArrayEntry(p.path, p.aval.dtype, shape_text(p.aval.shape)) for p in ports}


def write_defaults(folder: Path, defaults: Mapping[str, Mapping[str, tf.Tensor]]) -> None:
    """Writes defaults into the signatures of a SavedModel.

    tf.saved_model.save would take them from a function's own defaults, but fails on tensors.

    Raises:
      SavingError: this TensorFlow has no defaults for inputs.
    """
    if not any(defaults.values()):
        return
    message = tf_compat.saved_model_message()
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
    # It holds a checksum of the previous graph.
    (folder / "fingerprint.pb").unlink(missing_ok=True)
