"""Gradients of functions with captured arrays inside branches and loops of TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature, Target, convert, save

RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((40, 40)).astype(np.float32) / 6
X = RNG.standard_normal((4, 40)).astype(np.float32)
W = RNG.standard_normal(40).astype(np.float32)


def layer(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ jnp.asarray(MATRIX)) * w


@jax.custom_vjp
def strange(w: Any, x: Any) -> Any:
    return x * w


def _forward(w: Any, x: Any) -> Any:
    return x * w, x


def _backward(x: Any, g: Any) -> Any:
    return (g * x).sum(0), g @ jnp.asarray(MATRIX)


strange.defvjp(_forward, _backward)


def branch(step: Any, x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > -1e9, lambda: step(step(x)), lambda: x)


def nested(step: Any, x: Any) -> Any:
    yes = tf.reduce_sum(x) > -1e9
    return tf.cond(yes, lambda: tf.cond(yes, lambda: step(step(x)), lambda: x), lambda: x)


def loop(step: Any, x: Any) -> Any:
    _, result = tf.while_loop(
        lambda i, x: i < 2,
        lambda i, x: (i + 1, tf.ensure_shape(step(x), X.shape)),
        [0, x],
        maximum_iterations=2,
    )
    return result


AROUND = (branch, nested, loop)
# Each kind with each function, and each with compilation.
CASES = [
    (layer, "converted", False),
    (layer, "saved", True),
    (strange, "converted", True),
    (strange, "saved", False),
]
OTHER_CASES = [(function, kind, not jit_compile) for function, kind, jit_compile in CASES]
# With XLA and without: each kind and each function with both.
_FAST = [(*case, xla) for case, xla in zip(CASES, (True, False, False, True), strict=True)]
_SLOW = [(*case, not xla) for *case, xla in _FAST]
_COMPLETE = [(*case, xla) for case in OTHER_CASES for xla in (True, False)]


@pytest.mark.costly
@pytest.mark.parametrize(
    ("function", "kind", "jit_compile", "xla"),
    [
        *_FAST,
        *(pytest.param(*case, marks=pytest.mark.slow) for case in _SLOW),
        *(pytest.param(*case, marks=pytest.mark.complete) for case in _COMPLETE),
    ],
)
def test_gradients(function: Any, kind: str, jit_compile: bool, xla: bool, tmp_path: Path) -> None:
    target = None if xla else Target.widest(xla=False)
    if kind == "converted":
        weight: Any = tf.Variable(W)
        converted = convert(function, target=target)

        def step(x: Any) -> Any:
            return converted(weight, x)
    else:
        signature = Signature(function, args=[X])
        save(tmp_path / "m", signature, params=W, platforms=["cpu"], target=target)
        loaded = tf.saved_model.load(tmp_path / "m")
        (weight,), step = loaded.trainable_variables, loaded.serving_default

    @tf.function(jit_compile=jit_compile, autograph=False)
    def gradients(x: Any) -> Any:
        found = []
        for around in AROUND:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(around(step, x))
            found.append(tape.gradient(loss, weight))
        return found

    expected = jax.grad(lambda w: function(w, function(w, X)).sum())(W)
    for around, gradient in zip(AROUND, gradients(X), strict=True):
        np.testing.assert_allclose(
            gradient, expected, rtol=1e-4, atol=1e-4, err_msg=around.__name__
        )


@pytest.mark.costly
@pytest.mark.parametrize(
    ("function", "xla"),
    [
        (strange, True),
        (layer, False),
        pytest.param(layer, True, marks=pytest.mark.slow),
        pytest.param(strange, False, marks=pytest.mark.slow),
    ],
)
def test_second_order_in_a_branch(function: Any, xla: bool, tmp_path: Path) -> None:
    target = None if xla else Target.widest(xla=False)
    signature = Signature(function, args=[X])
    save(tmp_path / "m", signature, params=W, vjp_order=2, platforms=["cpu"], target=target)
    loaded = tf.saved_model.load(tmp_path / "m")

    @tf.function(autograph=False)
    def gradient(x: Any) -> Any:
        def of_gradient() -> Any:
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = tf.reduce_sum(loaded.serving_default(x))
                first = tf.reduce_sum(inner.gradient(y, x) ** 2)
            return outer.gradient(first, x)

        return tf.cond(tf.reduce_sum(x) > -1e9, of_gradient, lambda: x)

    expected = jax.grad(lambda x: (jax.grad(lambda x: function(W, x).sum())(x) ** 2).sum())(X)
    np.testing.assert_allclose(gradient(tf.constant(X)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("in_graph", [False, True])
def test_sparse_cotangents(in_graph: bool) -> None:
    sine = convert(jnp.sin)

    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.gather(sine(x), [1, 1]))
        return tape.gradient(y, x)

    call = tf.function(gradient, autograph=False) if in_graph else gradient
    expected = np.zeros_like(X)
    expected[1] = 2 * np.cos(X[1])
    np.testing.assert_allclose(call(tf.constant(X)), expected, rtol=1e-6)
