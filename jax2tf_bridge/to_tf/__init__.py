"""Converts portable functions to TensorFlow functions. Never imports jax."""

from jax2tf_bridge.errors import MissingDependencyError

try:
    import tensorflow as _tf  # noqa: F401
except ModuleNotFoundError as e:
    if e.name != "tensorflow":
        raise
    raise MissingDependencyError(
        "TensorFlow", "tensorflow-cpu", "Making a TensorFlow function"
    ) from e

from jax2tf_bridge.to_tf._function import to_tf

__all__ = ["to_tf"]
