"""Makes JAX arrays and keys from the contents of variables and inputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge._dtypes import KEYS, NEED_X64, WIDENED
from jax2tf_bridge.errors import DTypeError, FileFormatError, ShapeError
from jax2tf_bridge.portable import Aval, can_hold_number
from jax2tf_bridge.saved_model import TensorSpec


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


def make_input(value: Any, aval: Aval, name: str) -> Any:
    """Makes the array that a function takes from an input of its signature.

    Args:
      value: an array, numbers or lists of numbers; for a typed key also its words, or a seed.
      aval: the shape and dtype that the function takes.
      name: the name of the input, for messages.

    Raises:
      DTypeError: the dtype cannot hold the value.
      ShapeError: the shape is that of neither a key, nor its words, nor a seed.
    """
    if not aval.is_key:
        return convert_numbers(value, name, aval)
    if jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key):
        return value
    row = KEYS[aval.dtype]
    expected = f"a key, its {row.words} words, or a seed from 0 to {2**32 - 1}"
    words = jnp.asarray(_convert_numbers(value, name, "uint32", expected))
    if not jnp.issubdtype(words.dtype, jnp.integer):
        raise DTypeError(f"The input {name} must be {expected}. Got: an array of {words.dtype}.")
    words = words.astype(jnp.uint32)
    if words.ndim == len(aval.shape):
        words = jnp.stack([jnp.zeros_like(words), words] * (row.words // 2), axis=-1)
    elif words.shape[-1:] != (row.words,):
        raise ShapeError(f"The input {name} must be {expected}. Got: the shape {words.shape}.")
    return jax.random.wrap_key_data(words, impl=row.implementation)


def convert_numbers(value: Any, name: str, kind: Aval | TensorSpec) -> Any:
    """Converts Python numbers and lists to the dtype of an input, as TensorFlow does.

    Arrays are returned as they are.

    Raises:
      DTypeError: the dtype cannot hold the value.
    """
    return _convert_numbers(value, name, kind.dtype, f"an array or numbers for {kind}")


def _convert_numbers(value: Any, name: str, dtype: str, expected: str) -> Any:
    is_of_numpy = isinstance(value, (np.ndarray, np.generic))
    if hasattr(value, "dtype") and not (is_of_numpy and value.dtype.kind in "OSUMm"):
        return value
    try:
        array = np.asarray(value)
        ends = (array.min(), array.max()) if array.size else ()
        if array.dtype.kind in "biufc" and all(can_hold_number(e.item(), dtype) for e in ends):
            return jnp.asarray(array, dtype)
    except (TypeError, ValueError):  # a text, an irregular list, or a dtype that JAX lacks
        pass
    raise DTypeError(
        f"The input {name} must be {expected}. Got: {value!r:.200} of type {type(value).__name__}."
    )
