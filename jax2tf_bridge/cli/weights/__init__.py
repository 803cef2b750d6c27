"""`jax2tf-bridge weights`."""

from jax2tf_bridge.cli.weights._command import COMMAND

__all__ = ["COMMAND"]
