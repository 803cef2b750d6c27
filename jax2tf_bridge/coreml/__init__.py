"""Converts JAX functions, portable functions and SavedModels to Core ML packages."""

from jax2tf_bridge.coreml._save import CoreMLModel, save_coreml

__all__ = ["CoreMLModel", "save_coreml"]
