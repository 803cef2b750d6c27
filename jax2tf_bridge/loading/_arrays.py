"""Makes JAX arrays and keys from the contents of variables and inputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge._dtypes import KEYS, NEED_X64, WIDENED
from jax2tf_bridge.errors import DTypeError, FileFormatError
from jax2tf_bridge.portable import Aval


def make_jax_array(data: bytes, aval: Aval, name: str) -> jax.Array:
    """Makes a JAX array from the bytes of a variable.

    Args:
      data: the elements, as TensorFlow stores them.
      aval: the shape and dtype that the function takes, which may be 4-bit integers or typed keys.
      name: the name of the array in error messages.

    Raises:
      DTypeError: the installed JAX lacks the dtype, or needs jax_enable_x64 for it.
      FileFormatError: NumPy has no arrays of the shape.
    """
    if aval.op_dtype in NEED_X64 and not jax.config.read("jax_enable_x64"):
        raise DTypeError(
            f"{name} is {aval}, but 64-bit values are disabled in JAX: call "
            "jax.config.update('jax_enable_x64', True), or set JAX_ENABLE_X64=1, before load."
        )
    try:
        dtype = jnp.dtype(aval.op_dtype)
    except TypeError as e:
        raise DTypeError(
            f"{name} is {aval}, a dtype that JAX {jax.__version__} lacks. Load the SavedModel with "
            "a newer JAX, or with TensorFlow."
        ) from e
    try:
        array = np.frombuffer(data, dtype).reshape(aval.known_op_shape)
    except ValueError as e:
        raise FileFormatError(
            f"{name} is {aval}, and NumPy has no arrays of this shape: load the SavedModel with "
            "TensorFlow, or save it again with another shape."
        ) from e
    values: Any = jnp.asarray(array)
    if aval.is_key:
        values = jax.random.wrap_key_data(values, impl=KEYS[aval.dtype].implementation)
    if aval.dtype in WIDENED:
        values = values.astype(aval.dtype)
    assert isinstance(values, jax.Array)
    return values


def make_typed_key(value: Any, aval: Aval) -> Any:
    """Makes a typed key from the words of a key or from a seed; other values are returned as is."""
    if not aval.is_key:
        return value
    if jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key):
        return value
    words = jnp.asarray(value, jnp.uint32)
    if words.ndim == len(aval.shape):
        words = jnp.stack([jnp.zeros_like(words), words] * (KEYS[aval.dtype].words // 2), axis=-1)
    return jax.random.wrap_key_data(words, impl=KEYS[aval.dtype].implementation)
