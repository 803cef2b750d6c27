"""`jax2tf-bridge inspect`: tells what is in a file or a SavedModel, as text, JSON or a page."""

from jax2tf_bridge.cli.inspect._command import COMMAND

__all__ = ["COMMAND"]
