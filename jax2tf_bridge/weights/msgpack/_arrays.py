"""Elements of arrays as bytes: NumPy's, JAX's, and those of TensorFlow's variables.

JAX and TensorFlow are not imported here: their objects exist only if they are imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jax2tf_bridge.weights._paths import is_flat, unflatten_state

_PIECE_BYTES = 2**22
"""Maximum number of bytes that are copied at once."""

_MAX_DEPTH = 64
"""Maximum nesting depth of the search; objects that contain themselves exceed it."""


def is_jax_array(value: object) -> bool:
    """Returns whether a value is a jax.Array, without importing JAX."""
    array = getattr(sys.modules.get("jax"), "Array", None)
    return array is not None and isinstance(value, array)


def host_array(array: Any) -> np.ndarray[Any, Any]:
    """Returns a NumPy array with the same elements; a copy only for JAX arrays on other devices.

    A JAX array caches its own copy on the host, so converting a whole tree would fill the host's
    memory. Copies of its shards are not cached, so these are used.
    """
    if isinstance(array, np.ndarray):
        return np.asarray(array)
    devices = array.devices()
    if len(devices) == 1:
        (device,) = devices
        return np.asarray(array) if device.platform == "cpu" else _copy_to_cpu(array)
    shards = array.addressable_shards
    if array.is_fully_replicated:
        return _copy_to_cpu(shards[0].data)
    whole = np.empty(array.shape, array.dtype)
    for shard in shards:
        if shard.replica_id == 0:
            whole[shard.index] = _copy_to_cpu(shard.data)
    return whole


def _copy_to_cpu(array: Any) -> np.ndarray[Any, Any]:
    """Returns the elements of an array on one device."""
    jax: Any = sys.modules["jax"]
    (device,) = array.devices()
    if device.platform != "cpu":
        try:
            cpu = jax.local_devices(backend="cpu")[0]
        except RuntimeError:
            pass  # JAX runs without a CPU platform, so the array caches its copy
        else:
            array = jax.device_put(array, cpu)
    return np.asarray(array)


def byte_blocks(
    array: np.ndarray[Any, Any], dtype: np.dtype[Any] | None = None
) -> Iterator[memoryview]:
    """Yields the elements in row-major order, little-endian: one view, or copies of pieces.

    Args:
      array: the array.
      dtype: the dtype to cast to; by default the elements are not cast.
    """
    little = (dtype or array.dtype).newbyteorder("<")
    if array.flags.c_contiguous and array.dtype == little:
        yield _bytes_of(array)
    else:
        yield from _copy_pieces(array, little)


def _copy_pieces(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Iterator[memoryview]:
    if array.nbytes <= _PIECE_BYTES:
        yield _bytes_of(array.astype(dtype, order="C"))
        return
    row = array.nbytes // len(array)
    if row > _PIECE_BYTES:
        for part in array:
            yield from _copy_pieces(part, dtype)
        return
    count = _PIECE_BYTES // row
    for start in range(0, len(array), count):
        yield _bytes_of(array[start : start + count].astype(dtype, order="C"))


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    # The view is of bytes, because the buffer protocol does not support ml_dtypes.
    return array.reshape(-1).view(np.uint8).data


def replace_tensors(tree: Any) -> Any:
    """Replaces variables and tensors by arrays, and TensorFlow's containers by Python's.

    Arrays share the memory of TensorFlow's variables on the CPU. A flat mapping from paths to
    variables, such as `params` of a loaded model or of a KerasLayer, becomes nested. A mapping of
    other values stays flat, because Flax does not interpret a "/" in a key.
    """
    tf = sys.modules.get("tensorflow")
    if not hasattr(tf, "Variable") or not hasattr(tf, "Tensor"):
        return tree
    plain = _replace_below(tree, tf, 0)
    is_flat_state = isinstance(plain, dict) and is_flat(plain)
    if is_flat_state and any(_is_tensor(value, tf) for value in tree.values()):
        return unflatten_state(plain)
    return plain


def _is_tensor(value: object, tf: Any) -> bool:
    """Returns whether a value is a variable or tensor, also of Keras."""
    variable = getattr(sys.modules.get("keras"), "Variable", tf.Variable)
    return isinstance(value, (tf.Variable, tf.Tensor, variable))


def _replace_below(value: Any, tf: Any, depth: int) -> Any:
    if _is_tensor(value, tf):
        return np.asarray(tf.convert_to_tensor(value))
    kind = type(value)
    # TensorFlow wraps dicts, lists and tuples in tf.Module and loaded objects.
    is_wrapper = kind.__module__.startswith("tensorflow.")
    if depth > _MAX_DEPTH:
        return value
    if kind is dict or (is_wrapper and isinstance(value, Mapping)):
        return {key: _replace_below(child, tf, depth + 1) for key, child in value.items()}
    if kind is list or (is_wrapper and isinstance(value, list)):
        return [_replace_below(child, tf, depth + 1) for child in value]
    if kind is tuple or (is_wrapper and isinstance(value, tuple)):
        return tuple(_replace_below(child, tf, depth + 1) for child in value)
    return value
