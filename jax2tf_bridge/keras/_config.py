"""Writes and reads the config of a layer.

Keras stores configs as JSON and rebuilds models from them before it reads any weights. The config
therefore holds the functions without their arrays, which are variables of the layer.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from jax2tf_bridge._utils import JsonProblem, JsonValue
from jax2tf_bridge._version import __version__
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.keras._functions import LayerFunction
from jax2tf_bridge.keras._model import LayerModel, count_gradient_orders
from jax2tf_bridge.serialization import deserialize, serialize
from jax2tf_bridge.signatures import WeightLeaf

FORMAT = 1
"""Version of the config format. Every change increases it, even a new field."""


def make_model_config(model: LayerModel) -> dict[str, Any]:
    """Makes the config of a layer: its functions and the names of its trained weights.

    Raises:
      SerializationError: the format cannot hold a function.
    """
    inference, *training = map(_make_function_config, model.functions)
    return {
        "format": FORMAT,
        "bridge": __version__,
        "inference": inference,
        "training": training[0] if training else None,
        "mutable": list(model.mutable),
        "trained": [weight.name for weight in model.weights if weight.trainable],
    }


def _make_function_config(function: LayerFunction) -> dict[str, Any]:
    portable = function.portable
    data = serialize(portable, vjp_order=count_gradient_orders(portable), arrays=False)
    return {
        "jaxfn": base64.b64encode(data).decode("ascii"),
        "takes_params": function.takes_params,
        "input_names": dict(function.input_names),
    }


def read_model_config(config: Any, name: Any) -> LayerModel:
    """Reads a config that `make_model_config` made; the weights have no values yet.

    Args:
      config: the parsed JSON.
      name: the name of the layer in error messages.

    Raises:
      FileFormatError: the config is damaged, or of a newer format.
    """
    try:
        root = JsonValue.of(json.dumps(config))
        version = root.get("format").integer(1)
        if version > FORMAT:
            release = root.get("bridge").text()
            raise FileFormatError(
                f"The layer {name!r:.80} was written by jax2tf-bridge {release:.40}, in format "
                f"{version}. The installed release {__version__} reads up to {FORMAT}: upgrade "
                "jax2tf-bridge."
            )
        fields = ("format", "bridge", "inference", "training", "mutable", "trained")
        _, _, inference, training, mutable, trained = root.fields(*fields)
        functions = [_read_function(inference)]
        if training.value is not None:
            functions.append(_read_function(training))
        trained_names = {name.text() for name in trained.elements()}
        return LayerModel.of(
            functions,
            [name.text() for name in mutable.elements()],
            [WeightLeaf(*weight, None) for function in functions for weight in function.weights],
            lambda leaf: leaf.name in trained_names,
            lambda portable, constant: None,
        )
    except JsonProblem as e:
        raise FileFormatError(
            f"The config of the layer {name!r:.80} is damaged: {e}. Save the model again."
        ) from e


def _read_function(config: JsonValue) -> LayerFunction:
    data, takes_params, input_names = config.fields("jaxfn", "takes_params", "input_names")
    try:
        decoded = base64.b64decode(data.text(), validate=True)
    except (binascii.Error, ValueError) as e:
        raise JsonProblem(f"{data.path}: {e}") from e
    names = {path: name.text() for path, name in input_names.items()}
    return LayerFunction(deserialize(decoded), takes_params.flag(), names)
