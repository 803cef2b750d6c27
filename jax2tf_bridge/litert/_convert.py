"""Runs TensorFlow's converter on a SavedModel of TensorFlow's own operations."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import ModuleError, SavingError
from jax2tf_bridge.litert._failures import conversion_error
from jax2tf_bridge.litert._graph import with_built_ins
from jax2tf_bridge.litert._quantization import Quantization
from jax2tf_bridge.litert._report import LiteRTSignature
from jax2tf_bridge.saved_model import GRAPH_FILE
from jax2tf_bridge.saving import ServedArray
from jax2tf_bridge.to_tensorflow import saved_model_message

_DEPRECATED = r"\s*Warning: tf.lite.Interpreter is deprecated"
_INTERNAL = "__saved_model"
"""Prefix of TensorFlow's own entries among signatures."""


@dataclass(frozen=True)
class ConvertedModel:
    """SavedModel to convert; its graph consists of built-in operations as far as possible.

    Attributes:
      folder: the path of the SavedModel.
      signatures: the signatures by name.
      callers: maps each signature to the function of the graph that it calls.
    """

    folder: Path
    signatures: Mapping[str, LiteRTSignature]
    callers: Mapping[str, str]

    @staticmethod
    def read(folder: Path, served: Mapping[str, Any] | None = None) -> ConvertedModel:
        """Rewrites the graph of a SavedModel in place.

        Args:
          folder: the SavedModel, whose graph is replaced.
          served: the inputs and outputs of its signatures; by default they are read from the graph.

        Raises:
          SavingError: it has no signature.
          ModuleError: the installed TensorFlow has no SavedModel protocol buffer.
        """
        kind = saved_model_message()
        if kind is None:
            raise ModuleError(
                f"The installed TensorFlow {tf.__version__} has no message of SavedModels where "
                "2.15 to 2.22 have it: write LiteRT models with one of these."
            )
        message = kind()
        message.ParseFromString((folder / GRAPH_FILE).read_bytes())
        graph = message.meta_graphs[0]
        names = sorted(n for n in graph.signature_def if not n.startswith(_INTERNAL))
        if not names:
            raise SavingError("The SavedModel has no signature. Save it with one.")
        with_built_ins(graph.graph_def)
        (folder / GRAPH_FILE).write_bytes(message.SerializeToString(deterministic=True))
        called = {n.name: n.attr["f"].func.name for n in graph.graph_def.node if "f" in n.attr}
        signatures, callers = {}, {}
        for name in served or names:
            definition = graph.signature_def[name]
            sides = (
                served[name] if served else (_side(definition.inputs), _side(definition.outputs))
            )
            signatures[name] = LiteRTSignature(*sides)
            sources = {info.name.partition(":")[0] for info in definition.outputs.values()}
            callers[name] = next((called.get(source, "") for source in sources), "")
        return ConvertedModel(folder, signatures, callers)


def _side(arrays: Mapping[str, Any]) -> dict[str, ServedArray]:
    callers = {}
    for name in sorted(arrays):
        info = arrays[name]
        shape = tf.TensorShape(info.tensor_shape)
        callers[name] = ServedArray.of_tensor(tf.TensorSpec(shape, tf.as_dtype(info.dtype)))
    return callers


def convert_model(model: ConvertedModel, quantization: Quantization) -> bytes:
    """Converts a SavedModel.

    Raises:
      UnsupportedByTargetError: LiteRT has no built-in operation for an operation.
      SavingError: the converter fails for another reason.
      StructureError, ShapeError, DTypeError: representative data does not fit.
    """
    names = list(model.signatures)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(model.folder), signature_keys=names)
    quantization.apply(converter, {n: s.inputs for n, s in model.signatures.items()})
    try:
        with warnings.catch_warnings():
            # TensorFlow measures ranges with an interpreter that warns of its own deprecation.
            warnings.filterwarnings("ignore", _DEPRECATED)
            return bytes(converter.convert())
    except Exception as e:
        error = conversion_error(e, model.callers)
        if error is None:
            raise
        raise error from e
