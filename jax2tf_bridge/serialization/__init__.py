"""Portable functions as bytes and files: the .jaxfn format, and jax.export's own.

Nothing here needs JAX or TensorFlow.
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
