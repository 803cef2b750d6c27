"""Reads the warm-up files of models that tests saved."""

# Private: only the process that precompiles a model reads its file.
from jax2tf_bridge.saving.serving._warm_up import read_warm_up_requests as read_warm_up_requests
