"""Conversions between dtype names in portable functions and TensorFlow dtypes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge.errors import DTypeError
from jax2tf_bridge.portable import Aval

_CONVERT = "Convert it inside the JAX function, for instance with x.astype('float32')."


def op_dtype(aval: Aval, path: str) -> tf.DType:
    """Returns the TF dtype in which a value of type `aval` is passed to the op.

    Raises:
      DTypeError: the installed TF lacks the dtype, or cannot pass it to XLA. The message names the
        value by `path`.
    """
    row = find_dtype(aval.dtype)
    if row is not None and not row.is_accepted_by_op:
        raise DTypeError(
            f"{path} has dtype {aval.dtype}, which TensorFlow {tf.__version__} cannot pass to XLA. "
            f"{_CONVERT}"
        )
    try:
        return tf.as_dtype(aval.op_dtype)
    except TypeError as e:
        raise DTypeError(
            f"{path} has dtype {aval.dtype}, which TensorFlow {tf.__version__} does not have. "
            f"{_CONVERT}"
        ) from e


def op_spec(aval: Aval, path: str) -> tf.TensorSpec:
    """Returns the type in which a value is passed to the op; symbolic sizes become unknown.

    Raises:
      DTypeError: as in `op_dtype`.
    """
    shape = [size if isinstance(size, int) else None for size in aval.op_shape]
    return tf.TensorSpec(shape, op_dtype(aval, path))


def static_shape(value: Any) -> tuple[int | None, ...]:
    """Returns a tensor's shape, with None for each unknown size.

    Raises:
      ValueError: the rank is unknown.
    """
    return tuple(value.shape.as_list())


def can_have_shape(tensor: tf.Tensor, aval: Aval) -> bool:
    """Returns whether the known part of a tensor's shape agrees with the shape of `aval`."""
    if tensor.shape.rank is None:
        return True  # checked at run time
    shape = static_shape(tensor)
    return len(shape) == len(aval.op_shape) and all(
        size is None or not isinstance(d, int) or size == d
        for size, d in zip(shape, aval.op_shape, strict=True)
    )


def is_in_range(value: object, dtype: tf.DType) -> bool:
    """Returns whether an integer is in the dtype's range; TF may wrap larger integers."""
    if isinstance(value, bool) or not isinstance(value, int) or not dtype.is_integer:
        return True
    return bool(dtype.min <= value <= dtype.max)


def cast_if_needed(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Casts the tensor to `dtype` unless it has that dtype."""
    return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)
