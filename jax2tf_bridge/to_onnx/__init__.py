"""Writes ONNX models. Needs onnx; JAX for JAX functions only, and never TensorFlow."""

from jax2tf_bridge.to_onnx._save import OnnxModel, OnnxSignature, save_onnx

__all__ = ["OnnxModel", "OnnxSignature", "save_onnx"]
