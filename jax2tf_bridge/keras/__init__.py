"""A Keras layer for SavedModels, portable functions and JAX functions.

It needs Keras 3 with the TensorFlow backend. Importing this package registers the layer with
Keras, so that `keras.models.load_model` finds it.
"""

from jax2tf_bridge.errors import MissingDependencyError

try:
    import keras as _keras
    import tensorflow as _tf  # noqa: F401
except ModuleNotFoundError as e:
    if e.name not in ("keras", "tensorflow"):
        raise
    raise MissingDependencyError("TensorFlow with Keras", "tensorflow-cpu", "A Keras layer") from e

from jax2tf_bridge.keras._backend import check_keras

check_keras(_keras.__version__, _keras.config.backend())

from jax2tf_bridge.keras._layer import KerasLayer  # noqa: E402

# Keras archives store this name; it must not depend on the file that defines the class.
KerasLayer.__module__ = __name__

__all__ = ["KerasLayer"]
