"""Runs SavedModels in other TensorFlow releases. Imports neither jax nor tensorflow."""

from jax2tf_bridge.serve_checking._serve_check import ServeCheck, serve_check
from jax2tf_bridge.serve_checking._serve_check import run_serve_check as run_serve_check

__all__ = [
    "ServeCheck",
    "serve_check",
]
