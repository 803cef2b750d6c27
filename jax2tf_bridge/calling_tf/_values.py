"""Converts values between JAX and TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.export import is_symbolic_dim

from jax2tf_bridge.errors import DTypeError
from jax2tf_bridge.from_jax.arguments import is_key, is_narrow, portable_aval
from jax2tf_bridge.portable import Aval


def check_argument(leaf: Any, label: str, name: str) -> Any:
    """Converts an argument to a JAX array; tracers stay as they are.

    Raises:
      DTypeError: the argument is not an array or number, or TensorFlow lacks its dtype.
    """
    if tf.is_tensor(leaf) or isinstance(leaf, tf.Variable):
        raise DTypeError(
            f"The argument {label} of {name} is a TensorFlow value: {leaf!r:.200}. A function made "
            "by call_tf takes what JAX functions take: pass an array, as value.numpy()."
        )
    if isinstance(leaf, jax.Array) or getattr(leaf, "dtype", None) == jax.dtypes.float0:
        value = leaf
    else:
        try:
            if isinstance(leaf, (str, bytes)):
                raise TypeError("text")
            value = jnp.asarray(leaf)
        except (TypeError, ValueError) as e:
            raise DTypeError(
                f"The argument {label} of {name} must be an array or a number. Got: {leaf!r:.200} "
                f"of type {type(leaf).__name__}. Bind other values beforehand: "
                f"call_tf(functools.partial({name}, ...))."
            ) from e
    _check_dtype(value, label, name)
    return value


def _check_dtype(value: Any, label: str, name: str) -> None:
    """Raises DTypeError if TensorFlow lacks the dtype of `value`."""
    dtype = value.dtype
    if is_key(dtype):
        hint = "Pass its words: jax.random.key_data(key)."
    elif dtype == jax.dtypes.float0:
        hint = "It is the tangent of an integer, and has no values: leave it out."
    elif is_narrow(Aval((), np.dtype(dtype).name)):
        hint = "TensorFlow reads values of less than 8 bits wrongly: pass it as int8 or uint8."
    elif not _has_tensorflow_dtype(np.dtype(dtype).name):
        hint = "Convert it before, for instance with x.astype('float32')."
    else:
        return
    shown = "float0" if dtype == jax.dtypes.float0 else dtype
    raise DTypeError(
        f"The argument {label} of {name} has dtype {shown}, which TensorFlow {tf.__version__} does "
        f"not have. {hint}"
    )


def _has_tensorflow_dtype(name: str) -> bool:
    try:
        tf.as_dtype(name)
    except TypeError:
        return False
    return True


def make_tensor_spec(aval: Aval) -> tf.TensorSpec:
    """Makes a tf.TensorSpec from an aval; symbolic sizes become unknown."""
    sizes = [size if isinstance(size, int) else None for size in aval.shape]
    return tf.TensorSpec(sizes, tf.as_dtype(aval.dtype))


def get_aval(value: Any) -> Aval:
    """Returns the aval of a JAX array, or of a tensor or tf.TensorSpec of known shape."""
    if tf.is_tensor(value) or isinstance(value, tf.TensorSpec):
        return Aval(tuple(value.shape.as_list()), value.dtype.name)
    return portable_aval(value)


def to_eager_tensor(array: Any) -> tf.Tensor:
    """Converts an array to an eager tensor, with at most one copy if both are on the host."""
    return tf.convert_to_tensor(np.asarray(array))


def to_jax_array(tensor: tf.Tensor) -> jax.Array:
    """Converts an eager tensor to a JAX array."""
    return jnp.asarray(tensor.numpy())


def uses_64_bits() -> bool:
    """Returns whether jax_enable_x64 is on."""
    return bool(canonical_dtype(tf.float64) == tf.float64)


def canonical_dtype(dtype: tf.DType) -> tf.DType:
    """Returns JAX's dtype for `dtype`; 64-bit dtypes become 32-bit without jax_enable_x64.

    Raises:
      TypeError: JAX has no such dtype.
    """
    if dtype in (tf.string, tf.resource, tf.variant) or dtype.is_quantized:
        raise TypeError(dtype)
    return tf.as_dtype(jax.dtypes.canonicalize_dtype(dtype.as_numpy_dtype))


def make_jax_aval(shape: Sequence[Any], dtype: str) -> Any:
    """Makes a JAX abstract value; sizes may be JAX's symbolic dimensions."""
    zero = np.zeros((), tf.as_dtype(dtype).as_numpy_dtype)
    sizes = tuple(1 if is_symbolic_dim(size) else size for size in shape)
    return jax.typeof(np.broadcast_to(zero, sizes)).update(shape=tuple(shape))
