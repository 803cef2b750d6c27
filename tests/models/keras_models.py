"""Models of Keras 3 on JAX; the process must have KERAS_BACKEND=jax before it imports Keras."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tests.models.model import Built, integers, model, normal, random_weights


def _keras() -> Any:
    """Keras, which has no types; imported when a model is built.

    Raises:
      RuntimeError: it was imported with another backend.
    """
    keras = importlib.import_module("keras")
    if keras.backend.backend() != "jax":
        raise RuntimeError(
            "Keras models are exported from a process with KERAS_BACKEND=jax. Got: "
            f"{keras.backend.backend()}."
        )
    return keras


def stateless(net: Any) -> tuple[Callable[..., Any], Any]:
    """A function of the weights and the arguments, and random weights by their paths."""
    groups = {"trainable": net.trainable_variables, "fixed": net.non_trainable_variables}

    def call(params: Any, *args: Any) -> Any:
        given = ([params[group][v.path] for v in variables] for group, variables in groups.items())
        inputs = args[0] if len(args) == 1 else list(args)
        results, _ = net.stateless_call(*given, inputs, training=False)
        return results

    shapes = {group: {v.path: v.value for v in variables} for group, variables in groups.items()}
    return call, _drawn(shapes)


def _drawn(shapes: Any) -> Any:
    """Random weights; the last word of a path such as "conv/kernel" is the name."""
    return {
        group: {
            path: random_weights({path.rpartition("/")[2]: value}, seed=i).popitem()[1]
            for i, (path, value) in enumerate(by_path.items())
        }
        for group, by_path in shapes.items()
    }


@model("Keras", "(b, 64, 64, 3)", trainable=["trainable"], gradient_tolerance=2e-2)
def keras_mobilenet() -> Built:
    """keras.applications.MobileNetV2 as Keras ships it: depthwise convolutions, BatchNorm."""
    applications = _keras().applications
    net = applications.MobileNetV2((64, 64, 3), weights=None, classes=100)
    function, params = stateless(net)
    calls = [(normal(b, 64, 64, 3),) for b in (1, 3)]
    return Built(function, params, (normal(2, 64, 64, 3),), calls)


@model("Keras", "(b, n)", trainable=["trainable"])
def keras_text() -> Built:
    """A bidirectional GRU and attention over words, of which 0 is padding; the length is open."""
    keras = _keras()
    layers = keras.layers
    words = keras.Input((None,), dtype="int32")
    x = layers.Embedding(5000, 128, mask_zero=True)(words)
    x = layers.Bidirectional(layers.GRU(96, return_sequences=True))(x)
    y = layers.MultiHeadAttention(4, 48)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, y]))
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dense(20, activation="softmax")(layers.Dropout(0.1)(x))
    function, params = stateless(keras.Model(words, x))

    def arguments(b: int, n: int) -> Any:
        ids = 1 + integers(b, n, below=4999)
        ids[:, n - 2 :] *= integers(b, 2, below=2)
        return (ids,)

    return Built(function, params, arguments(2, 6), [arguments(1, 9), arguments(4, 5)])
