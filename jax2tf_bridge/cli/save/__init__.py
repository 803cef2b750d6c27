"""`jax2tf-bridge save` and `publish`: write the function in a file as a SavedModel."""

from jax2tf_bridge.cli.save._command import PUBLISH, SAVE

__all__ = ["PUBLISH", "SAVE"]
