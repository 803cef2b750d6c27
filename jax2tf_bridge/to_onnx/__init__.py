"""Writes ONNX models. Needs onnx; neither JAX nor TensorFlow."""

from jax2tf_bridge.to_onnx._convert import convert_function

__all__ = ["convert_function"]
