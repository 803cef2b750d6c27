"""Converts JAX functions, portable functions and SavedModels to LiteRT models (.tflite files)."""

from jax2tf_bridge.litert._convert import LiteRTSignature
from jax2tf_bridge.litert._save import LiteRTModel, save_litert

__all__ = ["LiteRTModel", "LiteRTSignature", "save_litert"]
