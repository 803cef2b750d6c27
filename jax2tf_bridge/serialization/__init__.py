"""Reads and writes portable functions, in the .jaxfn format and in the format of jax.export.

This package needs neither JAX nor TensorFlow.
"""

from jax2tf_bridge.serialization._files import (
    deserialize,
    read_function,
    serialize,
    write_function,
)
from jax2tf_bridge.serialization._registry import (
    register_namedtuple_serialization,
    register_pytree_node_serialization,
)

__all__ = [
    "deserialize",
    "read_function",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
    "serialize",
    "write_function",
]
