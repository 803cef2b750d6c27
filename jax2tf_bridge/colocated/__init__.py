"""Sends Python objects, such as functions, shardings and specs, to another process."""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("jax2tf_bridge.colocated"):
    import jax as _jax  # noqa: F401

from jax2tf_bridge.colocated._channel import TOKEN_SIZE, Channel, deserialize_specs, serialize_specs
from jax2tf_bridge.colocated._pickle_errors import find_importable_name as find_importable_name
from jax2tf_bridge.colocated._pickling import dumps as dumps
from jax2tf_bridge.colocated._pickling import loads as loads

__all__ = [
    "TOKEN_SIZE",
    "Channel",
    "deserialize_specs",
    "serialize_specs",
]
