"""Softmax is one operation, also where users write it themselves; what is only like it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import convert
from tests.consumers.own_operations import operation_counts, without_xla

X = np.random.default_rng(0).standard_normal((3, 4, 5), np.float32)
X[0, 0, 1] = X[1, 2, :4] = -np.inf

Functions = dict[str, Callable[..., Any]]


def _exp(x: Any) -> Any:
    return jnp.exp(x - jnp.max(x, -1, keepdims=True))


def _sum(x: Any) -> Any:
    return jnp.sum(x, -1, keepdims=True)


def _by_hand(x: Any) -> Any:
    exponentials = _exp(x)
    return exponentials / _sum(exponentials)


def _traced(functions: Functions, x: Any) -> Any:
    """Computes all of them in one graph with open sizes, which is compared with JAX."""

    def results(x: Any) -> dict[str, Any]:
        return {name: f(x) for name, f in functions.items()}

    f = convert(results, polymorphic_shapes="(a, b, c)", target=without_xla())
    signature = [tf.TensorSpec([None, None, None], x.dtype)]
    traced = tf.function(f, input_signature=signature, autograph=False).get_concrete_function()
    expected = results(x)
    for name, found in traced(tf.constant(x)).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    return traced


def test_it_is_one_operation() -> None:
    softmax: Functions = {
        "jax": jax.nn.softmax,
        "by hand": _by_hand,
        "in a loop": lambda x: lax.fori_loop(0, 2, lambda _, y: _by_hand(y), x),
        "its greatest is a constant": lambda x: (lambda e: e / _sum(e))(
            jnp.exp(x - lax.stop_gradient(jnp.max(x, -1, keepdims=True)))
        ),
    }
    counts = operation_counts(_traced(softmax, X).graph)
    assert counts["Softmax"] == 4
    assert not counts.keys() & {"Exp", "Sub", "Max", "Sum", "RealDiv"}
    counts = operation_counts(_traced({"jax": jax.nn.log_softmax}, X).graph)
    assert counts["LogSoftmax"] == 1
    assert not counts.keys() & {"Exp", "Sub", "Max", "Sum", "Log"}


@pytest.mark.costly
def test_what_is_like_it_is_not() -> None:
    def greatest_of(y: Any, x: Any) -> Any:
        e = jnp.exp(x - jnp.max(y, -1, keepdims=True))
        return e / _sum(e)

    def and_its_exponentials(x: Any) -> tuple[Any, Any]:
        e = _exp(x)
        return e / _sum(e), e

    def least(x: Any) -> Any:
        e = jnp.exp(x - jnp.min(x, -1, keepdims=True))
        return e / _sum(e)

    def with_an_initial_number(x: Any) -> Any:
        e = jnp.exp(x - jnp.max(x, -1, keepdims=True, initial=3.0))
        return e / _sum(e)

    others: Functions = {
        "another axis": lambda x: jax.nn.softmax(x, axis=1),
        "two axes": lambda x: jax.nn.softmax(x, axis=(1, 2)),
        "the greatest of another": lambda x: greatest_of(x + 1, x),
        "doubled": lambda x: 2 * _exp(x) / _sum(_exp(x)),
        "its exponentials are a result": and_its_exponentials,
        "one beside them": lambda x: (lambda e: e / (1 + _sum(e)))(_exp(x)),
        "the other way round": lambda x: (lambda e: _sum(e) / (e + 1))(_exp(x)),
        "not shifted": lambda x: (lambda e: e / _sum(e))(jnp.exp(x)),
        "the least": least,
        "an initial number": with_an_initial_number,
        "a logarithm": lambda x: x - jnp.log(_sum(jnp.exp(x))),
        "an average": lambda x: (lambda e: e / jnp.mean(e, -1, keepdims=True))(_exp(x)),
        "half as exact": lambda x: jax.nn.softmax(x.astype(jnp.bfloat16)).astype(jnp.float32),
        "five axes": lambda x: jax.nn.softmax(x[None, None]),
        "sums of others": lambda x: _exp(x) / _sum(_exp(x) * 1.5),
    }
    counts = operation_counts(_traced(others, np.abs(np.where(np.isinf(X), 1, X))).graph)
    assert not counts.keys() & {"Softmax", "LogSoftmax"}


@pytest.mark.costly
def test_its_gradients_are_those_of_jax() -> None:
    def total(x: Any) -> Any:
        return jnp.sum((_by_hand(x) + jax.nn.log_softmax(x)) ** 2 * jnp.arange(5.0))

    x = np.where(np.isinf(X), 1, X)
    f = convert(total, polymorphic_shapes="(a, b, 5)", target=without_xla())
    variable = tf.Variable(x)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            value = f(variable)
        first = tape.gradient(value, variable)
        weighted = tf.reduce_sum(first**2)
    np.testing.assert_allclose(first, jax.grad(total)(x), rtol=1e-4, atol=1e-4)
    second = jax.grad(lambda x: jnp.sum(jax.grad(total)(x) ** 2))(x)
    np.testing.assert_allclose(outer.gradient(weighted, variable), second, rtol=1e-3, atol=1e-3)


def test_a_row_that_has_no_numbers_has_none() -> None:
    x = np.zeros((1, 3, 4), np.float32)
    x[0, 0], x[0, 1, 2], x[0, 2, 1] = -np.inf, np.nan, np.inf
    f = convert(lambda x: (jax.nn.softmax(x), jax.nn.log_softmax(x)), target=without_xla())
    for found in f(x):
        assert np.isnan(found).any(-1).all()
