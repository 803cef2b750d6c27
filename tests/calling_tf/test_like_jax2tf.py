"""call_tf gives what jax2tf's gives: results, gradients, and structures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.calling_tf import call_tf

X = jnp.asarray(np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2))
VARIABLE = tf.Variable([[1.0, 2.0]])


def _custom(x: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def f(x: tf.Tensor) -> Any:
        return x * 2, lambda g: g * 7

    return f(x)


def _structure(x: tf.Tensor) -> Any:
    return {"b": (tf.reduce_sum(x), [x * 2]), "a": tf.cast(x > 0, tf.int32)}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sine": tf.sin,
    "variable": lambda x: x * VARIABLE,
    "matmul": lambda x: tf.matmul(x, x, transpose_b=True),
    "gather": lambda x: tf.gather(x, [2, 0, 0]),
    "custom_gradient": _custom,
    "stop_gradient": lambda x: tf.stop_gradient(x) * x,
    "structure": _structure,
    "integers": lambda x: tf.argmax(x, axis=1, output_type=tf.int32),
    "wide": lambda x: tf.cast(x, tf.float64),
    "complex": lambda x: tf.math.real(tf.signal.fft(tf.cast(x, tf.complex64))),
    "loop": lambda x: tf.while_loop(
        lambda i, _: i < 3, lambda i, x: [i + 1, x * x], [0, x], maximum_iterations=3
    )[1],
    "dense": tf.function(lambda x: tf.nn.softmax(tf.nn.relu(x) @ tf.ones((2, 4)))),
}


def _sum(tree: Any) -> Any:
    leaves = jax.tree_util.tree_leaves(tree)
    inexact = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return sum((leaf * jnp.arange(1, leaf.size + 1).reshape(leaf.shape)).sum() for leaf in inexact)


def _equal(found: Any, expected: Any) -> None:
    structure: Any = jax.tree_util.tree_structure(found)
    assert structure == jax.tree_util.tree_structure(expected)
    leaves = jax.tree_util.tree_leaves
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(lambda f: f, marks=pytest.mark.complete),
        pytest.param(jax.jit, marks=pytest.mark.slow),
    ],
    ids=["eager", "jit"],
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_jax2tf(name: str, way: Callable[..., Any]) -> None:
    jax2tf = pytest.importorskip("jax.experimental.jax2tf", reason="this JAX has no jax2tf")
    ours, theirs = call_tf(FUNCTIONS[name]), jax2tf.call_tf(FUNCTIONS[name])
    expected = way(theirs)(X)
    _equal(way(ours)(X), expected)
    if any(jnp.issubdtype(v.dtype, jnp.inexact) for v in jax.tree_util.tree_leaves(expected)):
        _equal(
            way(jax.grad(lambda x: _sum(ours(x))))(X), way(jax.grad(lambda x: _sum(theirs(x))))(X)
        )
