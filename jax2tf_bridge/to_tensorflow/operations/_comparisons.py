"""Comparisons of all dtypes, by StableHLO's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import tensorflow as tf

from jax2tf_bridge.to_tensorflow.operations._floats import total_order_key

_FUNCTIONS: Mapping[str, Callable[..., tf.Tensor]] = MappingProxyType(
    {
        "EQ": tf.equal,
        "NE": tf.not_equal,
        "LT": tf.less,
        "LE": tf.less_equal,
        "GT": tf.greater,
        "GE": tf.greater_equal,
    }
)
# TensorFlow cannot order bools; false comes before true.
_OF_FLAGS: Mapping[str, Callable[..., tf.Tensor]] = MappingProxyType(
    {
        "LT": lambda x, y: tf.logical_and(tf.logical_not(x), y),
        "LE": lambda x, y: tf.logical_or(tf.logical_not(x), y),
        "GT": lambda x, y: tf.logical_and(x, tf.logical_not(y)),
        "GE": lambda x, y: tf.logical_or(x, tf.logical_not(y)),
    }
)


def compare(direction: str, x: tf.Tensor, y: tf.Tensor, *, total_order: bool) -> tf.Tensor:
    """Compares elements.

    Args:
      direction: "EQ", "NE", "LT", "LE", "GT" or "GE".
      x: the left side.
      y: the right side.
      total_order: whether floats have the order -NaN < -inf < ... < -0 < 0 < ... < inf < NaN.
    """
    if total_order and x.dtype.is_floating:
        x, y = total_order_key(x), total_order_key(y)
    of_flags = _OF_FLAGS.get(direction) if x.dtype == tf.bool else None
    return (of_flags or _FUNCTIONS[direction])(x, y)
