"""`jax2tf-bridge verify`: compares a SavedModel with the JAX function that it came from."""

from jax2tf_bridge.cli.verify._command import COMMAND

__all__ = ["COMMAND"]
