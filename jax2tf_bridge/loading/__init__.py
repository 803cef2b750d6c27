"""Loads SavedModels as JAX functions. Never imports tensorflow."""

from jax2tf_bridge.errors import MissingDependencyError

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as e:
    if e.name != "jax":
        raise
    raise MissingDependencyError("JAX", "jax", "Loading a SavedModel as JAX functions") from e

from jax2tf_bridge.loading._arrays import make_typed_key as make_typed_key
from jax2tf_bridge.loading._functions import LoadedFunction, LoadedModel, LoadedSignature
from jax2tf_bridge.loading._load import load

__all__ = [
    "LoadedFunction",
    "LoadedModel",
    "LoadedSignature",
    "load",
]
