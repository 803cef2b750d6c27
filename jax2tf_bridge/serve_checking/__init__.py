"""Runs SavedModels in other TensorFlow releases, and under load in TensorFlow Serving.

Imports neither jax nor tensorflow; a load test imports TensorFlow when it begins.
"""

from jax2tf_bridge.serve_checking._serve_check import ServeCheck, serve_check
from jax2tf_bridge.serve_checking._serve_check import run_serve_check as run_serve_check
from jax2tf_bridge.serve_checking.load import DEFAULT_CALLERS as DEFAULT_CALLERS
from jax2tf_bridge.serve_checking.load import DEFAULT_SECONDS as DEFAULT_SECONDS
from jax2tf_bridge.serve_checking.load import MAX_SIZES as MAX_SIZES
from jax2tf_bridge.serve_checking.load import SERVER_VARIABLE as SERVER_VARIABLE
from jax2tf_bridge.serve_checking.load import BatchCount, BucketLoad, LoadReport, measure_load
from jax2tf_bridge.serve_checking.load import LoadOptions as LoadOptions
from jax2tf_bridge.serve_checking.load import ServerCommand as ServerCommand
from jax2tf_bridge.serve_checking.load import find_free_ports as find_free_ports
from jax2tf_bridge.serve_checking.load import find_server as find_server
from jax2tf_bridge.serve_checking.load import run_measure_load as run_measure_load
from jax2tf_bridge.serve_checking.load import start_server as start_server

__all__ = [
    "BatchCount",
    "BucketLoad",
    "LoadReport",
    "ServeCheck",
    "measure_load",
    "serve_check",
]
