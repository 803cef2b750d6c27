"""Converts JAX functions, portable functions and SavedModels to models of TensorFlow.js."""

from jax2tf_bridge.tfjs._save import TFJSModel, TFJSSignature, save_tfjs

__all__ = ["TFJSModel", "TFJSSignature", "save_tfjs"]
