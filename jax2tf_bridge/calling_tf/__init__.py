"""Calls TensorFlow functions from JAX."""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("call_tf"):
    import jax as _jax  # noqa: F401
    import tensorflow as _tf  # noqa: F401

from jax2tf_bridge.calling_tf._call_tf import call_tf

__all__ = ["call_tf"]
