"""Reads and writes Flax's msgpack format."""

from jax2tf_bridge.weights.msgpack._arrays import byte_blocks as byte_blocks
from jax2tf_bridge.weights.msgpack._arrays import host_array as host_array
from jax2tf_bridge.weights.msgpack._arrays import is_jax_array as is_jax_array
from jax2tf_bridge.weights.msgpack._format import MAX_CHUNK_SIZE as MAX_CHUNK_SIZE
from jax2tf_bridge.weights.msgpack._read import MsgpackContents as MsgpackContents
from jax2tf_bridge.weights.msgpack._write import msgpack_serialize as msgpack_serialize
from jax2tf_bridge.weights.msgpack._write import to_bytes as to_bytes
from jax2tf_bridge.weights.msgpack._write import write_weights as write_weights
