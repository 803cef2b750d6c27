"""Converts JAX functions, portable functions and SavedModels to LiteRT models (.tflite files)."""

from jax2tf_bridge.litert._report import LiteRTModel, LiteRTSignature
from jax2tf_bridge.litert._save import save_litert

__all__ = ["LiteRTModel", "LiteRTSignature", "save_litert"]
