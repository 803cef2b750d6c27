"""`jax2tf-bridge retarget`: writes a function or a SavedModel for another TensorFlow release."""

from jax2tf_bridge.cli.retarget._command import COMMAND

__all__ = ["COMMAND"]
