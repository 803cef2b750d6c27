"""`jax2tf-bridge litert`."""

from jax2tf_bridge.cli.litert._command import COMMAND

__all__ = ["COMMAND"]
