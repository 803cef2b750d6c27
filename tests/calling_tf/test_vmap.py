"""jax.vmap of TensorFlow functions: vectorized where TensorFlow can, else row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import export, to_tf
from jax2tf_bridge.calling_tf import call_tf

ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))


def rows(x: tf.Tensor, m: tf.Tensor) -> Any:
    return {"y": tf.linalg.matvec(m, tf.sin(x)), "first": x[0], "same": tf.constant(1.0)}


def jax_rows(x: Any, m: Any) -> Any:
    return {"y": m @ jnp.sin(x), "first": x[0], "same": jnp.float32(1)}


@pytest.mark.parametrize(("x_axis", "m_axis", "out_axis"), [(0, None, 0), (1, 2, 1), (None, 0, 0)])
def test_axes_are_those_of_jax(
    way: Callable[..., Any], x_axis: int | None, m_axis: int | None, out_axis: int
) -> None:
    x = ROWS[0] if x_axis is None else jnp.moveaxis(ROWS, 0, x_axis)
    square = jnp.arange(36.0).reshape(4, 3, 3)
    m = square[0] if m_axis is None else jnp.moveaxis(square, 0, m_axis)
    axes = {"y": out_axis, "first": 0, "same": 0}
    found = way(jax.vmap(call_tf(rows), (x_axis, m_axis), axes))(x, m)
    expected = jax.jit(jax.vmap(jax_rows, (x_axis, m_axis), axes))(x, m)
    structure: Any = jax.tree.structure(expected)
    assert structure == jax.tree.structure(found)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=name)


def test_vmap_of_vmap(way: Callable[..., Any]) -> None:
    f = call_tf(lambda a, b: a * b + tf.sin(a))
    found = way(jax.vmap(jax.vmap(f, (None, 0)), (0, None)))(ROWS[0], ROWS[1])
    expected = ROWS[0][:, None] * ROWS[1] + jnp.sin(ROWS[0])[:, None]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_gradients_and_vmap_in_either_order(way: Callable[..., Any]) -> None:
    weights = jnp.array([1.0, -2.0, 3.0])
    f = call_tf(lambda x, w: tf.reduce_sum(tf.sin(x) * w * w))

    def g(x: Any, w: Any) -> Any:
        return (jnp.sin(x) * w * w).sum()

    transforms: list[Any] = [
        lambda f: jax.vmap(jax.grad(f, argnums=1), (0, None)),
        lambda f: jax.grad(lambda x, w: jax.vmap(f, (0, None))(x, w).sum(), argnums=1),
        lambda f: jax.grad(
            lambda x, w: jax.vmap(jax.grad(f, argnums=1), (0, None))(x, w).sum(), argnums=1
        ),
    ]
    found = way(lambda rows, w: [transform(f)(rows, w) for transform in transforms])(ROWS, weights)
    expected = jax.jit(lambda rows, w: [t(g)(rows, w) for t in transforms])(ROWS, weights)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_second_derivatives_of_rows() -> None:
    def second(f: Any) -> Any:
        return jax.jit(jax.vmap(jax.jacrev(jax.jacrev(lambda x: f(x).sum()))))

    f = call_tf(lambda x: tf.sin(x) * tf.reduce_sum(x))
    g = lambda x: jnp.sin(x) * x.sum()  # noqa: E731
    np.testing.assert_allclose(second(f)(ROWS), second(g)(ROWS), rtol=1e-4, atol=1e-5)


def test_vmap_of_a_differentiated_scan() -> None:
    def loss(sine: Callable[..., Any], x: Any) -> Any:
        carry, sums = jax.lax.scan(lambda c, _: (sine(c) * 2, c.sum()), x, None, length=3)
        return carry.sum() + sums.sum()

    found = jax.vmap(jax.grad(lambda x: loss(call_tf(tf.sin), x)))(ROWS)
    expected = jax.jit(jax.vmap(jax.grad(lambda x: loss(jnp.sin, x))))(ROWS)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_tensorflow_cannot_vectorize_is_mapped(way: Callable[..., Any]) -> None:
    # XlaCallModule has no vectorized form.
    def both(f: Callable[..., Any]) -> Callable[..., Any]:
        gradient = jax.grad(lambda x: f(x).sum())
        return lambda x: (jax.vmap(f)(x), jax.vmap(gradient)(x))

    def g(x: Any) -> Any:
        return jnp.sin(x) * x.sum()

    f = call_tf(to_tf(export(g, platforms=["cpu"])(ROWS[0])))
    for ours, theirs in zip(way(both(f))(ROWS), jax.jit(both(g))(ROWS), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_functions_that_only_run_eagerly_are_mapped() -> None:
    calls = []

    def f(x: tf.Tensor) -> tf.Tensor:
        calls.append(x.numpy())
        return tf.constant(x.numpy() * 2)

    np.testing.assert_allclose(jax.vmap(call_tf(f))(ROWS), ROWS * 2)
    assert len(calls) == len(ROWS)


def branching(x: tf.Tensor) -> tf.Tensor:
    if tf.reduce_sum(x) > 0:
        return x * 2
    return x - 1


def looping(x: tf.Tensor) -> tf.Tensor:
    while tf.reduce_max(tf.abs(x)) > 0.1:
        x = tf.sin(x) / 2
    return x


def test_each_row_goes_its_own_way(way: Callable[..., Any]) -> None:
    for f in (branching, looping):
        expected = jnp.stack([call_tf(f)(row) for row in ROWS])
        np.testing.assert_allclose(way(jax.vmap(call_tf(f)))(ROWS), expected, rtol=1e-5)
    gradient = way(jax.vmap(jax.grad(lambda x: call_tf(branching)(x).sum())))(ROWS)
    assert set(np.unique(gradient)) == {1.0, 2.0}


def test_no_rows(way: Callable[..., Any]) -> None:
    found = way(jax.vmap(call_tf(lambda x: (tf.sin(x), tf.argmax(x)))))(jnp.ones((0, 3)))
    assert [(r.shape, r.dtype) for r in found] == [((0, 3), jnp.float32), ((0,), jnp.int32)]


def test_random_numbers_differ_from_row_to_row(way: Callable[..., Any]) -> None:
    found = way(jax.vmap(call_tf(lambda x: x * 0 + tf.random.uniform([3]))))(ROWS)
    assert len(np.unique(found)) > len(ROWS)


def test_side_effects_happen_once_a_row() -> None:
    total = tf.Variable(0.0)

    def f(x: tf.Tensor) -> tf.Tensor:
        total.assign_add(tf.reduce_sum(x))
        return x

    jax.vmap(call_tf(f))(ROWS)
    np.testing.assert_allclose(total.numpy(), ROWS.sum(), rtol=1e-5)
