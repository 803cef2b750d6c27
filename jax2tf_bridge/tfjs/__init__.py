"""Converts JAX functions, portable functions and SavedModels to models of TensorFlow.js."""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("save_tfjs"):
    import tensorflow as _tf  # noqa: F401

from jax2tf_bridge.tfjs._save import TFJSModel, TFJSSignature, save_tfjs

__all__ = ["TFJSModel", "TFJSSignature", "save_tfjs"]
