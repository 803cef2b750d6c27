"""Replaces weights that would hide in a trial what a function does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.portable import NARROW_FLOATS

_SCALE = 0.1


@contextlib.contextmanager
def randomized_degenerate_weights(weights: Sequence[tf.Variable], seed: int = 0) -> Iterator[bool]:
    """Puts small random numbers for weights that are zero, or not finite, throughout.

    A head that begins at zero gives zeros whatever its rows do to each other; the weights of the
    next version do not. Afterwards all are as before.

    Yields:
      Whether there are such weights.
    """
    rng = np.random.default_rng(seed)
    before = [(variable, variable.read_value()) for variable in weights if _hides(variable)]
    try:
        for variable, _ in before:
            numbers = rng.standard_normal(variable.shape.as_list()) * _SCALE
            variable.assign(tf.cast(numbers, variable.dtype))
        yield bool(before)
    finally:
        for variable, value in before:
            variable.assign(value)


def _hides(variable: Any) -> bool:
    if not (variable.dtype.is_floating or variable.dtype.is_complex):
        return False
    if variable.dtype.name in NARROW_FLOATS:  # TensorFlow has no kernels for them
        return False
    value = variable.read_value()
    finite = tf.math.is_finite(tf.math.real(value))
    return not bool(tf.reduce_any(tf.logical_and(finite, tf.math.real(value) != 0)))
