"""dtype_of_val(): the TensorFlow dtype in which a converted function takes a value."""

from __future__ import annotations

from typing import Any

from jax2tf_bridge.errors import MissingDependencyError

try:
    import jax
    import tensorflow as tf
except ModuleNotFoundError as e:
    if e.name not in ("jax", "tensorflow"):
        raise
    missing = ("JAX", "jax") if e.name == "jax" else ("TensorFlow", "tensorflow-cpu")
    raise MissingDependencyError(*missing, "dtype_of_val") from e

from jax2tf_bridge.converting._arguments import array_of, number_kind
from jax2tf_bridge.errors import DTypeError
from jax2tf_bridge.from_jax.arguments import jax_dtype, portable_aval
from jax2tf_bridge.to_tensorflow import is_in_range, op_dtype


def dtype_of_val(val: Any) -> tf.DType:
    """Returns the TensorFlow dtype in which `convert` takes a value, by JAX's rules.

    Args:
      val: a number, or an array of TensorFlow, NumPy or JAX.

    Returns:
      That of the value, with 32 bits in the place of 64 unless jax_enable_x64 is set. A number of
      Python has JAX's default of its kind; a typed PRNG key is words of uint32, float0 is bool,
      and integers of 4 bits cross as 8.

    Raises:
      DTypeError: it is none of these, JAX or TensorFlow has no such dtype, or an integer of
        Python does not fit.

    >>> dtype_of_val(1), dtype_of_val(tf.constant(1.0, tf.float64))
    (tf.int32, tf.float32)
    """
    value = array_of(val)
    if value is None:
        raise DTypeError(
            "dtype_of_val takes a number or an array of TensorFlow, NumPy or JAX. "
            f"Got: {val!r} of type {type(val).__name__}. For a structure of them, map it over "
            "the leaves with tf.nest.map_structure."
        )
    if isinstance(value, tf.Tensor):
        taken = value.dtype.as_numpy_dtype
    elif hasattr(value, "dtype"):
        taken = value.dtype
    else:
        taken = jax.typeof(number_kind(value)()).dtype
    spec = jax.ShapeDtypeStruct((), jax_dtype(taken, "val"))
    dtype = op_dtype(portable_aval(spec), "val")
    if not is_in_range(value, dtype):
        raise DTypeError(
            f"{value} does not fit {dtype.name}. Set jax_enable_x64, or pass it as a float."
        )
    return dtype
