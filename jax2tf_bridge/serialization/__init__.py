"""Reads and writes portable functions, in the .jaxfn format and in the format of jax.export.

This package needs neither JAX nor TensorFlow.
"""

from jax2tf_bridge.serialization._files import (
    deserialize,
    read_function,
    serialize,
    write_function,
)
from jax2tf_bridge.serialization._flatbuffer import Field as Field
from jax2tf_bridge.serialization._flatbuffer import FlatBufferReader as FlatBufferReader
from jax2tf_bridge.serialization._flatbuffer import FlatBufferTable as FlatBufferTable
from jax2tf_bridge.serialization._jax_registrations import (
    find_jax_export_name as find_jax_export_name,
)
from jax2tf_bridge.serialization._jax_registrations import make_treedef as make_treedef
from jax2tf_bridge.serialization._node_data import shortest_public_name as shortest_public_name
from jax2tf_bridge.serialization._protobuf import BYTES as BYTES
from jax2tf_bridge.serialization._protobuf import FIXED32 as FIXED32
from jax2tf_bridge.serialization._protobuf import VARINT as VARINT
from jax2tf_bridge.serialization._protobuf import ProtoField as ProtoField
from jax2tf_bridge.serialization._protobuf import ProtoMessage as ProtoMessage
from jax2tf_bridge.serialization._protobuf import bytes_field as bytes_field
from jax2tf_bridge.serialization._protobuf import tag as tag
from jax2tf_bridge.serialization._protobuf import varint as varint
from jax2tf_bridge.serialization._protobuf import varint_field as varint_field
from jax2tf_bridge.serialization._registry import find_from_children as find_from_children
from jax2tf_bridge.serialization._registry import find_serialized_name as find_serialized_name
from jax2tf_bridge.serialization._registry import forward_registrations as forward_registrations
from jax2tf_bridge.serialization._registry import has_any_from_children as has_any_from_children
from jax2tf_bridge.serialization._registry import prefer_from_children as prefer_from_children
from jax2tf_bridge.serialization._registry import (
    register_namedtuple_serialization,
    register_pytree_node_serialization,
)
from jax2tf_bridge.serialization._stored_types import add_codecs as add_codecs
from jax2tf_bridge.serialization._stored_types import (
    format_registration_call as format_registration_call,
)
from jax2tf_bridge.serialization._vjp_chain import collect_vjps as collect_vjps

__all__ = [
    "deserialize",
    "read_function",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
    "serialize",
    "write_function",
]
