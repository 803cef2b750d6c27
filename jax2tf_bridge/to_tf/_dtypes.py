"""Dtypes by their name in the portable function, and TensorFlow's."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import DTypeError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._dtypes import WIDENED, find_dtype

_CONVERT = "Convert it inside the JAX function, for instance with x.astype('float32')."


def op_dtype(aval: Aval, path: str) -> tf.DType:
    """Returns the TF dtype in which `aval` is passed to the op.

    Raises:
      DTypeError: the installed TF has none, or none that XLA takes; `path` says whose it is.
    """
    row = find_dtype(aval.dtype)
    if row is not None and not row.crosses:
        raise DTypeError(
            f"{path} has dtype {aval.dtype}, which TensorFlow {tf.__version__} cannot hand to XLA. "
            f"{_CONVERT}"
        )
    try:
        return tf.as_dtype(aval.op_dtype)
    except TypeError as e:
        raise DTypeError(
            f"{path} has dtype {aval.dtype}, which TensorFlow {tf.__version__} does not have. "
            f"{_CONVERT}"
        ) from e


def static_shape(value: Any) -> tuple[int | None, ...]:
    """Returns a tensor's shape as far as it is known; of an unknown rank nothing can be said.

    Raises:
      ValueError: the rank is not known.
    """
    return tuple(value.shape.as_list())


def fits_shape(tensor: tf.Tensor, aval: Aval) -> bool:
    """Tells whether a tensor can have the shape of `aval`, as far as its own is known."""
    if tensor.shape.rank is None:
        return True  # looked at when it runs
    shape = static_shape(tensor)
    return len(shape) == len(aval.op_shape) and all(
        size is None or not isinstance(d, int) or size == d
        for size, d in zip(shape, aval.op_shape, strict=True)
    )


def fits(value: object, dtype: tf.DType) -> bool:
    """Tells whether the dtype holds a number; TF may wrap an integer that is too large."""
    if isinstance(value, bool) or not isinstance(value, int) or not dtype.is_integer:
        return True
    return bool(dtype.min <= value <= dtype.max)


def fits_dtype(leaf: Any, dtype: str) -> bool:
    """Tells whether an array or number is taken for one of a dtype without being asked.

    As JAX and `convert` take it: 64 bits for 32; and 8 bits hold what JAX has in fewer.
    """
    given = dtype_name(leaf)
    if given is None:
        return number_fits(leaf, dtype)
    return can_become(given, dtype) or WIDENED.get(given) == dtype


def dtype_name(leaf: Any) -> str | None:
    """Returns the dtype's name as JAX calls it; None for a number of Python, which has none."""
    if isinstance(leaf, (bool, int, float, complex)):
        return None
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    return str(getattr(dtype, "name", dtype))


def number_fits(number: complex, expected: str) -> bool:
    """Tells whether a number of Python keeps its value as an array of a dtype, up to rounding."""
    row = find_dtype(expected)
    if row is not None and row.is_integer:
        is_signed = row.kind == "int"
        bits = row.bits - is_signed
        least = -(1 << bits) if is_signed else 0
        return isinstance(number, int) and least <= number < 1 << bits
    if expected == "bool":
        return isinstance(number, bool)
    return not isinstance(number, complex) or (row is not None and row.kind == "complex")


def cast_if_needed(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Casts the tensor to a dtype that it is taken for."""
    return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)


def can_become(given: str, expected: str) -> bool:
    """Tells whether JAX takes the one for the other without being asked: 64 bits for 32."""
    row = find_dtype(given)
    return given == expected or (row is not None and row.without_x64 == expected)
