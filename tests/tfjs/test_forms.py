"""Functions that replace operations of TensorFlow.js give what TensorFlow's operations give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

# Private: no public function runs a single kernel.
from jax2tf_bridge.tfjs import _forms


@pytest.mark.parametrize("dtype", [tf.int32, tf.bool])
@pytest.mark.parametrize(
    ("begin", "end", "strides", "masks"),
    [
        ([0, 0], [4, 6], [1, 2], (0, 0)),
        ([0, 1], [0, 5], [-1, 3], (1, 1)),
        ([1, 0], [3, 0], [1, -2], (2, 2)),
        ([0, 5], [0, 1], [2, -3], (1, 1)),
    ],
)
def test_slices(begin: Any, end: Any, strides: Any, masks: tuple[int, int], dtype: Any) -> None:
    x = tf.cast(tf.reshape(tf.range(24), [4, 6]) % 5, dtype)
    tensors = [tf.constant(each) for each in (begin, end, strides)]
    found = _forms.slice_by_steps(
        x, *tensors, strides=strides, begin_mask=masks[0], end_mask=masks[1]
    )
    np.testing.assert_array_equal(found, tf.strided_slice(x, *tensors, *masks))


def test_bools_are_selected() -> None:
    flags = [tf.constant(each) for each in np.indices((2, 2, 2)).reshape(3, -1).astype(bool)]
    np.testing.assert_array_equal(_forms.select_bools(*flags), tf.where(*flags))
    row = tf.reshape(flags[0], [2, 4])
    found = _forms.select_bools(row, tf.constant(True), flags[1][:4])
    np.testing.assert_array_equal(found, tf.where(row, tf.constant(True), flags[1][:4]))


def test_floats_saturate() -> None:
    x = tf.constant([-np.inf, -3e9, -2.5, 0.5, 2.0**31 - 128], tf.float32)
    expected = [-(2**31), -(2**31), -2, 0, 2**31 - 128]
    np.testing.assert_array_equal(_forms.saturate(x), expected)
