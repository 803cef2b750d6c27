"""`jax2tf-bridge serve-check`: runs a model in other TensorFlow releases."""

from jax2tf_bridge.cli.serve_check._command import COMMAND

__all__ = ["COMMAND"]
