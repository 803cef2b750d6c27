"""Compares a SavedModel in TensorFlow with the JAX function that it came from; needs both."""

from jax2tf_bridge.verifying._comparison import Latency, Pair
from jax2tf_bridge.verifying._containers import KnownTypes
from jax2tf_bridge.verifying._differences import Difference, sizes_text

__all__ = ["Difference", "KnownTypes", "Latency", "Pair", "sizes_text"]
