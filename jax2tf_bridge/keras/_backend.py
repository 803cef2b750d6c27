"""Checks that the layer supports the installed Keras."""

from __future__ import annotations

from jax2tf_bridge.errors import LayerError


def check_keras(version: str, backend: str) -> None:
    """Checks that Keras is version 3 with the backend tensorflow.

    Raises:
      LayerError: Keras is older, or has another backend.
    """
    if int(version.split(".")[0]) < 3:
        raise LayerError(
            f"jax2tf_bridge.keras needs Keras 3, and Keras {version} is installed. "
            "Upgrade TensorFlow to 2.16 or later, which brings Keras 3."
        )
    if backend != "tensorflow":
        alternative = (
            " In the backend jax, keras.layers.JaxLayer takes the JAX function itself."
            if backend == "jax"
            else ""
        )
        raise LayerError(
            f"jax2tf_bridge.keras works in Keras' backend tensorflow, and the backend is {backend} "
            "here. Set KERAS_BACKEND=tensorflow before Keras is imported (or change "
            f"~/.keras/keras.json).{alternative}"
        )
