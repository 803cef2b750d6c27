"""Dtypes by their name in the record, and TensorFlow's."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from jax2tf_bridge._errors import DTypeError
from jax2tf_bridge._portable import Aval


def op_dtype(aval: Aval, path: str) -> tf.DType:
    """The TF dtype in which `aval` crosses the op.

    Raises:
      DTypeError: the installed TF has none; `path` says whose it is.
    """
    try:
        return tf.as_dtype(aval.op_dtype)
    except TypeError as e:
        raise DTypeError(
            f"{path} has dtype {aval.dtype}, which TensorFlow {tf.__version__} does not have. "
            "Convert it inside the JAX function, for instance with x.astype('float32')."
        ) from e


def static_shape(value: Any) -> tuple[int | None, ...]:
    """The shape of a tensor as far as it is known; of an unknown rank nothing can be said.

    Raises:
      ValueError: the rank is not known.
    """
    return tuple(value.shape.as_list())


def fits(value: object, dtype: tf.DType) -> bool:
    """Whether a number is no integer too large for the dtype: TF may wrap it without a word."""
    if isinstance(value, bool) or not isinstance(value, int) or not dtype.is_integer:
        return True
    return bool(dtype.min <= value <= dtype.max)
