"""A Keras layer for SavedModels, portable functions and JAX functions.

It needs Keras 3 with the TensorFlow backend. Importing this package registers the layer with
Keras, so that `keras.models.load_model` finds it.
"""

from jax2tf_bridge.errors import LayerError, MissingDependencyError

try:
    import keras as _keras
    import tensorflow as _tf  # noqa: F401
except ModuleNotFoundError as e:
    if e.name not in ("keras", "tensorflow"):
        raise
    raise MissingDependencyError("TensorFlow with Keras", "tensorflow-cpu", "A Keras layer") from e


def _check_keras(version: str, backend: str) -> None:
    if int(version.split(".")[0]) < 3:
        raise LayerError(
            f"jax2tf_bridge.keras needs Keras 3, but Keras {version} is installed. "
            "Upgrade TensorFlow to 2.16 or later, which brings Keras 3."
        )
    if backend != "tensorflow":
        alternative = " In the backend jax, keras.layers.JaxLayer takes the JAX function itself."
        raise LayerError(
            f"jax2tf_bridge.keras needs Keras' backend tensorflow, but the backend is {backend}. "
            "Set KERAS_BACKEND=tensorflow before Keras is imported (or change "
            f"~/.keras/keras.json).{alternative if backend == 'jax' else ''}"
        )


_check_keras(_keras.__version__, _keras.config.backend())

from jax2tf_bridge.keras._layer import KerasLayer  # noqa: E402

# Keras archives store this name; it must not depend on the file that defines the class.
KerasLayer.__module__ = __name__

__all__ = ["KerasLayer"]
