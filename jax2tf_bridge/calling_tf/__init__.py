"""Calls TensorFlow functions from JAX."""

from jax2tf_bridge.errors import MissingDependencyError

try:
    import jax as _jax  # noqa: F401
    import tensorflow as _tf  # noqa: F401
except ModuleNotFoundError as e:
    if e.name not in ("jax", "tensorflow"):
        raise
    missing = ("JAX", "jax") if e.name == "jax" else ("TensorFlow", "tensorflow-cpu")
    raise MissingDependencyError(*missing, "call_tf") from e

from jax2tf_bridge.calling_tf._call_tf import call_tf

__all__ = ["call_tf"]
