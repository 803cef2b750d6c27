"""Replaces weights that would hide the effect of padding in a trial."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import NARROW_FLOATS

_SCALE = 0.1


@contextlib.contextmanager
def randomize_degenerate_weights(weights: Sequence[tf.Variable], seed: int = 0) -> Iterator[bool]:
    """Replaces weights without a finite nonzero number by small random numbers, and restores them.

    A layer that is initialized to zero gives zeros even if it mixes rows; the weights of the next
    version do not.

    Yields:
      Whether there are such weights.
    """
    rng = np.random.default_rng(seed)
    before = [(variable, variable.read_value()) for variable in weights if _is_degenerate(variable)]
    try:
        for variable, _ in before:
            numbers = rng.standard_normal(variable.shape.as_list()) * _SCALE
            variable.assign(tf.cast(numbers, variable.dtype))
        yield bool(before)
    finally:
        for variable, value in before:
            variable.assign(value)


def _is_degenerate(variable: Any) -> bool:
    if not (variable.dtype.is_floating or variable.dtype.is_complex):
        return False
    if variable.dtype.name in NARROW_FLOATS:  # TensorFlow has no kernels for them
        return False
    value = variable.read_value()
    finite = tf.math.is_finite(tf.math.real(value))
    return not bool(tf.reduce_any(tf.logical_and(finite, tf.math.real(value) != 0)))
