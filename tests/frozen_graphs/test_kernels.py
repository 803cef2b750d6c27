"""Kernels for runtimes with int32 alone give what TensorFlow's own operations give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

# Private: no public function runs a single kernel.
from jax2tf_bridge.frozen_graphs import _forms

EDGES = np.array([0, 1, 2, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1], np.uint32)
NUMBERS = np.concatenate([EDGES, np.random.default_rng(0).integers(0, 2**32, 90, np.uint32)])
OTHERS = np.roll(NUMBERS, 3)
BINARY: dict[str, Callable[..., Any]] = {
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
@pytest.mark.parametrize("operation", BINARY)
def test_bits(operation: str, dtype: Any) -> None:
    x, y = NUMBERS.view(dtype), OTHERS.view(dtype)
    for other in (y, y[5]):
        found = _forms.BITS[operation](tf.constant(x), tf.constant(other))
        np.testing.assert_array_equal(found, BINARY[operation](x, other))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_shifts_and_inversion(dtype: Any) -> None:
    x = tf.constant(NUMBERS.view(dtype))
    np.testing.assert_array_equal(_forms.BITS["Invert"](x), ~NUMBERS.view(dtype))
    places = np.arange(32, dtype=dtype)[:, None]
    for operation, expected in (("LeftShift", np.left_shift), ("RightShift", np.right_shift)):
        found = _forms.BITS[operation](x, tf.constant(places))
        np.testing.assert_array_equal(found, expected(NUMBERS.view(dtype), places))


def test_unsigned_integers() -> None:
    x, y = tf.constant(NUMBERS), tf.constant(OTHERS)
    for operation, expected in {
        "Greater": np.greater,
        "GreaterEqual": np.greater_equal,
        "Less": np.less,
        "LessEqual": np.less_equal,
        "Maximum": np.maximum,
        "Minimum": np.minimum,
        "Mul": np.multiply,
    }.items():
        found = _forms.UNSIGNED[operation](x, y)
        np.testing.assert_array_equal(found, expected(NUMBERS, OTHERS), operation)
    np.testing.assert_array_equal(_forms.unsigned_to_float(x), NUMBERS.astype(np.float32))
    floats = NUMBERS.astype(np.float32)
    floats = floats[floats < 2**32]
    found = _forms.float_to_unsigned(tf.constant(floats))
    np.testing.assert_array_equal(found, floats.astype(np.uint32))


def list_operations(f: Callable[..., Any]) -> list[str]:
    """Lists the operations of a function of two vectors of int32, with lacking ones replaced."""
    vector = tf.TensorSpec([None], tf.int32)
    graph = tf.function(f).get_concrete_function(vector, vector).graph.as_graph_def()
    _forms.replace_lacking(graph, lambda node, makers: None)
    return [node.op for node in graph.node]


def test_products_of_more_than_53_bits() -> None:
    """JavaScript rounds them; products with small numbers have fewer bits, and stay."""
    for product in (tf.multiply, lambda x, _: tf.square(x), lambda x, _: x * 1103515245):
        assert not {"Mul", "Square"} & {*list_operations(product)}
    for product in (
        lambda x, _: x * [[3], [-(2**21)]],
        lambda x, _: x * tf.shape(x)[0],
        lambda x, y: x * tf.cast(tf.cast(y, tf.int16), tf.int32),
        lambda x, y: x * tf.expand_dims(tf.argmax(y, output_type=tf.int32), 0),
    ):
        assert "Mul" in list_operations(product)
    x, y = NUMBERS.view(np.int32), OTHERS.view(np.int32)
    product, square = _forms.WIDE_PRODUCTS["Mul"], _forms.WIDE_PRODUCTS["Square"]
    np.testing.assert_array_equal(product(tf.constant(x), tf.constant(y)), x * y)
    np.testing.assert_array_equal(square(tf.constant(x)), x * x)


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint8, tf.int16, tf.uint16])
def test_narrow_integers_wrap(dtype: Any) -> None:
    numbers = np.arange(-70000, 70000, 37, dtype=np.int32)
    found = _forms.wrap(tf.constant(numbers), dtype)
    np.testing.assert_array_equal(found, numbers.astype(dtype.as_numpy_dtype))


def test_products_of_bytes_are_exact() -> None:
    random = np.random.default_rng(0)
    x, y = (random.integers(-128, 128, shape).astype(np.int32) for shape in ((3, 5000), (5000, 2)))
    found = _forms.multiply_bytes(tf.constant(x), tf.constant(y), product=tf.matmul)
    np.testing.assert_array_equal(found, x @ y)


def test_division_of_integers() -> None:
    """Tests quotients of 31 bits, where float32 is wrong by hundreds."""
    random = np.random.default_rng(0)
    x = random.integers(-(2**31), 2**31, 5000).astype(np.int32)
    y = (random.integers(-(2**31), 2**31, 5000) >> random.integers(0, 31, 5000)).astype(np.int32)
    x[:4], y[:4] = [-(2**31), 2**31 - 1, -7, 7], [1, 1, 3, -3]
    x, y = x[y != 0], y[y != 0]
    wide = [each.astype(np.int64) for each in (x, y)]
    rest = np.fmod(*wide)
    quotient = (wide[0] - rest) // wide[1]
    is_in_range = quotient < 2**31  # -2**31 divided by -1 is not
    x, y, rest, quotient = (each[is_in_range] for each in (x, y, rest, quotient))
    operands = tf.constant(x), tf.constant(y)
    np.testing.assert_array_equal(_forms.truncated_quotient(*operands), quotient)
    np.testing.assert_array_equal(_forms.truncated_remainder(*operands), rest)


def test_remainder_of_floats() -> None:
    random = np.random.default_rng(0)
    x, y = (random.normal(0, 100, 500).astype(np.float32) for _ in range(2))
    found = _forms.truncated_remainder(tf.constant(x), tf.constant(y))
    np.testing.assert_array_equal(found, np.fmod(x, y))


@pytest.mark.parametrize("batch_dims", [1, 2])
def test_gather_in_a_batch(batch_dims: int) -> None:
    x = tf.constant(np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5))
    rows = x.shape[batch_dims]
    shape = (*x.shape[:batch_dims], 6)
    indices = tf.constant(np.random.default_rng(0).integers(0, rows, shape).astype(np.int32))
    found = _forms.gather_batch(x, indices, tf.constant(batch_dims), batch_dims=batch_dims)
    expected = tf.gather(x, indices, axis=batch_dims, batch_dims=batch_dims)
    np.testing.assert_array_equal(found, expected)


def test_scatters() -> None:
    x, indices = tf.zeros([4, 2]), tf.constant([[1], [3], [1]])
    updates = tf.constant([[1.0, 2], [3, 4], [5, 6]])
    expected = tf.tensor_scatter_nd_add(x, indices, updates)
    np.testing.assert_array_equal(_forms.scatter_add(x, indices, updates), expected)
    for dtype in (tf.bool, tf.int32, tf.float32):
        data = tf.cast(tf.constant([0, 1, 1, 0]), dtype)
        places, values = tf.constant([[0], [3]]), tf.cast(tf.constant([1, 1]), dtype)
        found = _forms.scatter_update(data, places, values)
        np.testing.assert_array_equal(found, tf.tensor_scatter_nd_update(data, places, values))
