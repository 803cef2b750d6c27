"""State dicts and weights files: the functions of flax.serialization, and more for files.

This package needs neither JAX, Flax nor TensorFlow. docs/weights.md is its guide.

>>> from jax2tf_bridge import weights
>>> params = {"dense": {"kernel": [1.5, 2.5]}, "step": 7}
>>> weights.to_state_dict(params)
{'dense': {'kernel': {'0': 1.5, '1': 2.5}}, 'step': 7}
>>> weights.flatten_state(params)
{'dense/kernel/0': 1.5, 'dense/kernel/1': 2.5, 'step': 7}
>>> data = weights.to_bytes(params)  # the bytes of flax.serialization.to_bytes
>>> weights.from_bytes(params, data) == params
True
"""

from jax2tf_bridge.weights._files import (
    WeightsFile,
    from_bytes,
    msgpack_restore,
    open_weights,
    read_weights,
)
from jax2tf_bridge.weights._paths import flatten_state, unflatten_state
from jax2tf_bridge.weights._paths import is_flat as is_flat
from jax2tf_bridge.weights._paths import join_path as join_path
from jax2tf_bridge.weights._paths import split_path as split_path
from jax2tf_bridge.weights._registered_types import is_serializable, register_serialization_state
from jax2tf_bridge.weights._sources import guess_format as guess_format
from jax2tf_bridge.weights._state_dicts import current_path, from_state_dict, to_state_dict
from jax2tf_bridge.weights._stored import LeafInfo
from jax2tf_bridge.weights.msgpack import MAX_CHUNK_SIZE, msgpack_serialize, to_bytes, write_weights

__all__ = [
    "MAX_CHUNK_SIZE",
    "LeafInfo",
    "WeightsFile",
    "current_path",
    "flatten_state",
    "from_bytes",
    "from_state_dict",
    "is_serializable",
    "msgpack_restore",
    "msgpack_serialize",
    "open_weights",
    "read_weights",
    "register_serialization_state",
    "to_bytes",
    "to_state_dict",
    "unflatten_state",
    "write_weights",
]
