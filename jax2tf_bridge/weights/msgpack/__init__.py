"""Reads and writes Flax's msgpack format."""

from jax2tf_bridge.weights.msgpack._arrays import byte_blocks, host_array, is_jax_array
from jax2tf_bridge.weights.msgpack._format import MAX_CHUNK_SIZE
from jax2tf_bridge.weights.msgpack._read import MsgpackContents
from jax2tf_bridge.weights.msgpack._write import msgpack_serialize, to_bytes, write_weights

__all__ = [
    "MAX_CHUNK_SIZE",
    "MsgpackContents",
    "byte_blocks",
    "host_array",
    "is_jax_array",
    "msgpack_serialize",
    "to_bytes",
    "write_weights",
]
