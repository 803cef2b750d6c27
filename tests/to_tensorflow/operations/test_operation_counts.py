"""Graphs have about as many operations as a person would write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf_bridge import convert
from tests.consumers.own_operations import foreign_operations, operation_counts, without_xla

_MAX_RATIO = 1.5
"""Maximum number of operations, as a multiple of those in the model that is written by hand."""

_CHECKS = Counter(Shape=1, Unpack=1, GreaterEqual=1, Assert=1)

Weights = dict[str, Any]


def _normal(*shape: int) -> Any:
    values = np.random.default_rng([*shape]).standard_normal(shape, np.float32)
    return values / np.float32(np.sqrt(np.prod(shape[:-1])))


def _traced(f: Callable[..., Any], x: Any) -> Any:
    signature = [tf.TensorSpec([None, *x.shape[1:]], x.dtype)]
    return tf.function(f, input_signature=signature, autograph=False).get_concrete_function()


def _converted(apply: Callable[..., Any], weights: Weights, x: Any) -> Any:
    """The JAX function in a graph with an open batch and weights in variables; its values agree."""
    batch = f"({', '.join(['b', *map(str, x.shape[1:])])})"
    f = convert(apply, polymorphic_shapes=[None, batch], target=without_xla())
    variables = {name: tf.Variable(value) for name, value in weights.items()}
    traced = _traced(lambda x: f(variables, x), x)
    expected = jax.jit(apply)(weights, x)
    np.testing.assert_allclose(traced(tf.constant(x)), expected, rtol=1e-4, atol=1e-4)
    assert foreign_operations(traced.graph) == []
    return traced


def _compare(
    apply: Callable[..., Any], by_hand: Callable[..., Any], weights: Weights, x: Any
) -> tuple[Counter[str], Counter[str]]:
    """Counts the operations of both graphs, after comparing what they compute.

    Without the check that the batch is not empty, which nobody writes by hand.
    """
    variables = {name: tf.Variable(value) for name, value in weights.items()}
    written = _traced(lambda x: by_hand(variables, x), x)
    made = _converted(apply, weights, x)
    given = tf.constant(x)
    np.testing.assert_allclose(written(given), made(given), rtol=1e-3, atol=1e-3)
    return operation_counts(made.graph) - _CHECKS, operation_counts(written.graph)


def test_a_multilayer_perceptron_is_written_as_by_hand() -> None:
    weights = {"w0": _normal(8, 16), "b0": _normal(16), "w1": _normal(16, 3), "b1": _normal(3)}

    def mlp(w: Weights, x: Any) -> Any:
        return jax.nn.relu(x @ w["w0"] + w["b0"]) @ w["w1"] + w["b1"]

    def by_hand(w: Weights, x: Any) -> Any:
        hidden = tf.nn.relu(tf.nn.bias_add(x @ w["w0"], w["b0"]))
        return tf.nn.bias_add(hidden @ w["w1"], w["b1"])

    made, written = _compare(mlp, by_hand, weights, _normal(4, 8))
    assert made == written == Counter({"MatMul": 2, "BiasAdd": 2, "Relu": 1})


def test_a_convolutional_net_is_written_as_by_hand() -> None:
    weights = {"c0": _normal(3, 3, 1, 4), "c1": _normal(3, 3, 4, 8), "d": _normal(32, 5)}

    def net(w: Weights, x: Any) -> Any:
        for i in range(2):
            x = lax.conv_general_dilated(
                x, w[f"c{i}"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x)
        return x.reshape(x.shape[0], -1) @ w["d"]

    def by_hand(w: Weights, x: Any) -> Any:
        for i in range(2):
            x = tf.nn.relu(tf.nn.conv2d(x, w[f"c{i}"], 2, "SAME"))
        return tf.reshape(x, [-1, 32]) @ w["d"]

    made, written = _compare(net, by_hand, weights, _normal(3, 8, 8, 1))
    assert made == written


def test_a_transformer_block_has_at_most_half_as_many_operations_again() -> None:
    width, heads, length = 8, 2, 5
    weights = {
        "qkv": _normal(width, 3 * width),
        "out": _normal(width, width),
        "up": _normal(width, 16),
        "down": _normal(16, width),
    }
    scale = np.float32(np.sqrt(width // heads))

    def norm(x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-6)

    def block(w: Weights, x: Any) -> Any:
        q, k, v = jnp.split((norm(x) @ w["qkv"]).reshape(-1, length, heads, 12), 3, axis=-1)
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / scale)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, v)
        x = x + mixed.reshape(-1, length, width) @ w["out"]
        return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]

    def tf_norm(x: Any) -> Any:
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean((x - mean) ** 2, -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-6)

    def by_hand(w: Weights, x: Any) -> Any:
        both = tf.reshape(dense(tf_norm(x), w["qkv"]), [-1, length, heads, 12])
        q, k, v = (tf.transpose(part, [0, 2, 1, 3]) for part in tf.split(both, 3, axis=-1))
        mixed = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / scale) @ v
        mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, length, width])
        x = x + dense(mixed, w["out"])
        return x + dense(tf.nn.gelu(dense(tf_norm(x), w["up"]), approximate=True), w["down"])

    def dense(x: Any, kernel: Any) -> Any:
        flat = tf.reshape(x, [-1, x.shape[-1]]) @ kernel
        return tf.reshape(flat, [-1, length, kernel.shape[-1]])

    made, written = _compare(block, by_hand, weights, _normal(3, length, width))
    assert made.total() <= _MAX_RATIO * written.total(), (made, written)


def test_a_model_of_texts_has_at_most_half_as_many_operations_again() -> None:
    weights = {
        **{"embedding": _normal(50, 8), "c": _normal(3, 8, 6), "cb": _normal(6)},
        **{"d": _normal(6, 3), "db": _normal(3)},
    }
    words = np.random.default_rng(0).integers(0, 50, (4, 7)).astype(np.int32)

    def net(w: Weights, x: Any) -> Any:
        y = lax.conv_general_dilated(
            w["embedding"][x], w["c"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
        return jax.nn.relu(y + w["cb"]).max(axis=1) @ w["d"] + w["db"]

    def by_hand(w: Weights, x: Any) -> Any:
        indices = tf.clip_by_value(tf.where(x < 0, x + 50, x), 0, 49)  # as NumPy and JAX do
        y = tf.nn.conv1d(tf.gather(w["embedding"], indices), w["c"], 1, "SAME")
        y = tf.reduce_max(tf.nn.relu(tf.nn.bias_add(y, w["cb"])), axis=1)
        return tf.nn.bias_add(y @ w["d"], w["db"])

    made, written = _compare(net, by_hand, weights, words)
    assert made.total() <= _MAX_RATIO * written.total(), (made, written)


def _count_static(f: Callable[..., Any], *arrays: Any) -> Counter[str]:
    """Counts the operations of a function of fixed sizes, after comparing its values."""
    specs = [tf.TensorSpec(array.shape, array.dtype) for array in arrays]
    converted = tf.function(convert(f, target=without_xla()), input_signature=specs)
    traced = converted.get_concrete_function()
    for actual, expected in zip(traced(*map(tf.constant, arrays)), f(*arrays), strict=True):
        np.testing.assert_array_equal(actual, expected)
    return operation_counts(traced.graph)


def test_caches_are_joined_and_taken_apart_without_operations() -> None:
    def update(x: Any, y: Any) -> Any:
        layers = jnp.stack([jnp.stack([x, y], axis=1), jnp.stack([y, x], axis=1)], axis=1)
        first, second = layers[:, 0], layers[:, 1]
        return first[:, 0] + 1, second[:, 0] * 2, layers[:, 1][:, 1] - 1

    assert _count_static(update, _normal(2, 3, 4), _normal(2, 3, 4) + 1) == Counter(
        {"AddV2": 1, "Mul": 1, "Sub": 1}
    )


def test_slices_of_joined_arrays_come_from_the_array_that_they_reach() -> None:
    def take(x: Any, y: Any) -> Any:
        joined = jnp.concatenate([x, y, x])
        every_other = lax.slice(joined, (5, 0), (8, 4), (2, 1))
        return joined[1:3], joined[3:5], every_other, joined[5:, 1:]

    x, y = _normal(3, 4), _normal(2, 4)
    counts = _count_static(take, x, y)
    assert counts["ConcatV2"] == 0
    assert counts["StridedSlice"] == 3
    both = _count_static(lambda x, y: [jnp.concatenate([x, y])[2:4]], x, y)
    assert both == Counter({"ConcatV2": 1, "StridedSlice": 1})
    assert _count_static(lambda x: [x.reshape(2, 6).T.reshape(3, 4)], x)["Reshape"] == 2
