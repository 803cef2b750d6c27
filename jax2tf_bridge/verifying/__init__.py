"""Compares a SavedModel in TensorFlow with the JAX function that it came from; needs both."""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("verify"):
    import tensorflow as _tf  # noqa: F401

from jax2tf_bridge.loading import load as _load  # noqa: F401  # raises if JAX is missing
from jax2tf_bridge.verifying._locating import Location
from jax2tf_bridge.verifying._verification import Difference, Latency, Verification
from jax2tf_bridge.verifying._verify import check_runtime, choose_signature, verify

__all__ = [
    "Difference",
    "Latency",
    "Location",
    "Verification",
    "check_runtime",
    "choose_signature",
    "verify",
]
