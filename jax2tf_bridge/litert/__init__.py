"""Models for LiteRT (.tflite files), of JAX functions, portable functions and SavedModels."""

from jax2tf_bridge.litert._report import LiteRTModel, LiteRTSignature
from jax2tf_bridge.litert._save import save_litert

__all__ = ["LiteRTModel", "LiteRTSignature", "save_litert"]
