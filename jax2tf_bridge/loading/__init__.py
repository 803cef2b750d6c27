"""Loads SavedModels as JAX functions. Never imports tensorflow."""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("Loading a SavedModel as JAX functions"):
    import jax as _jax  # noqa: F401

from jax2tf_bridge.loading._arrays import make_input as make_input
from jax2tf_bridge.loading._functions import LoadedFunction, LoadedModel, LoadedSignature
from jax2tf_bridge.loading._load import load

__all__ = [
    "LoadedFunction",
    "LoadedModel",
    "LoadedSignature",
    "load",
]
