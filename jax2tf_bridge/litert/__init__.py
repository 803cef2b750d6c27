"""Converts JAX functions, portable functions and SavedModels to LiteRT models (.tflite files)."""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("save_litert"):
    import tensorflow as _tf  # noqa: F401

from jax2tf_bridge.litert._convert import LiteRTSignature
from jax2tf_bridge.litert._save import LiteRTModel, save_litert

__all__ = ["LiteRTModel", "LiteRTSignature", "save_litert"]
