"""Weights as state dicts, and the files that hold them; neither JAX nor TensorFlow is needed."""

from jax2tf_bridge.weights._files import LeafInfo, WeightsFile
from jax2tf_bridge.weights._open import from_bytes, msgpack_restore, open_weights, read_weights
from jax2tf_bridge.weights._paths import flatten_state, unflatten_state
from jax2tf_bridge.weights._registered_types import is_serializable, register_serialization_state
from jax2tf_bridge.weights._state_dicts import current_path, from_state_dict, to_state_dict
from jax2tf_bridge.weights.msgpack._write import msgpack_serialize, to_bytes, write_weights

__all__ = [
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
