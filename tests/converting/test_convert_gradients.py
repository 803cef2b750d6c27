"""Gradients of converted functions, to any order, against jax.grad."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert
from jax2tf_bridge.errors import GradientError

X = np.array([0.3, 0.7, 1.1], np.float32)


@jax.custom_vjp
def reversed_sign(x: Any) -> Any:
    return jnp.sin(x)


reversed_sign.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (-g * jnp.cos(x),))


@jax.custom_jvp
def tripled(x: Any) -> Any:
    return jnp.sin(x)


tripled.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 3 * tangents[0] * primals[0]))

FUNCTIONS: dict[str, Any] = {
    "plain": lambda x: jnp.sin(x) * x**3,
    "custom_vjp": lambda x: reversed_sign(x) * x,
    "custom_jvp": lambda x: tripled(x) * x,
    "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * 2, None), x, None, 3)[0],
    "remat": jax.checkpoint(lambda x: jnp.exp(jnp.sin(x))),
}


def nested_tapes(f: Any, x: tf.Tensor, order: int) -> tf.Tensor:
    if order == 0:
        return f(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = nested_tapes(f, x, order - 1)
    return tape.gradient(y, x)


def tf_gradients(f: Any, x: tf.Tensor, order: int) -> tf.Tensor:
    y = f(x)
    for _ in range(order):
        (y,) = tf.gradients(y, [x])
    return y


def chained_gradients(f: Any, x: tf.Tensor, order: int) -> list[tf.Tensor]:
    """Computes the value and its gradients to that order, each from the one before."""
    found = [f(x)]
    for _ in range(order):
        found += tf.gradients(found[-1], [x])
    return found


def all_orders(f: Any, x: tf.Tensor, order: int) -> list[tf.Tensor]:
    """The value and its gradients to that order, by nested tapes."""
    if order == 0:
        return [f(x)]
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = all_orders(f, x, order - 1)
    return [*found, tape.gradient(found[-1], x)]


@functools.cache
def expected_to_an_order(name: str, order: int) -> list[Any]:
    orders = [FUNCTIONS[name]]
    for _ in range(order):
        orders.append(jax.grad(lambda x, g=orders[-1]: jnp.sum(g(x))))
    found: list[Any] = jax.jit(lambda x: [f(x) for f in orders])(X)
    return found


# Each function once in a graph, to the second order, and one function in each way, to the third.
MODES = ("tape in graph", "eager", "tf.gradients", "outside of a graph")
WAYS = [
    *(("plain", mode, 3) for mode in MODES),
    *((name, "tape in graph", 2) for name in FUNCTIONS if name != "plain"),
]
OTHER_WAYS = [(name, mode, 3) for name in FUNCTIONS for mode in MODES if name != "plain"]


@pytest.mark.parametrize(
    ("name", "mode", "order"),
    [*WAYS, *(pytest.param(*way, marks=pytest.mark.complete) for way in OTHER_WAYS)],
)
def test_to_the_third_order(name: str, mode: str, order: int) -> None:
    f = convert(FUNCTIONS[name], polymorphic_shapes="(b,)", native_serialization_platforms=["cpu"])
    found: Any
    if mode == "eager":
        found = all_orders(f, tf.constant(X), order)
    elif mode == "tape in graph":
        found = tf.function(lambda x: all_orders(f, x, order), autograph=False)(X)
    elif mode == "tf.gradients":
        found = tf.function(lambda x: chained_gradients(f, x, order), autograph=False)(X)
    else:
        found = all_orders(tf.function(f, autograph=False), tf.constant(X), order)
    for ours, expected in zip(found, expected_to_an_order(name, order), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_within_compiled_functions(jit_compile: bool) -> None:
    f = convert(FUNCTIONS["plain"])
    g = tf.function(lambda x: nested_tapes(f, x, 1), autograph=False, jit_compile=jit_compile)
    expected = jax.grad(lambda x: jnp.sum(FUNCTIONS["plain"](x)))(X)
    np.testing.assert_allclose(g(X), expected, rtol=1e-5)


def test_pytrees_keywords_integers_and_unused_arguments() -> None:
    def f(params: Any, n: Any, unused: Any, *, scale: Any) -> Any:
        return {"y": params["w"] * n * scale["s"], "n": n + 1, "none": None}

    w, n, unused, s = tf.constant(X), tf.constant([1, 2, 3]), tf.constant(5.0), tf.constant(2.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([w, unused, s])
        out = convert(f)({"w": w}, n, unused, scale={"s": s})
        loss = tf.reduce_sum(out["y"])
    dw, dn, d_unused, ds = tape.gradient(loss, [w, n, unused, s])
    np.testing.assert_allclose(dw, [2, 4, 6])
    assert dn is None
    np.testing.assert_allclose(d_unused, 0)
    np.testing.assert_allclose(ds, np.sum(X * [1, 2, 3]), rtol=1e-6)
    # Persistent: once more.
    np.testing.assert_allclose(tape.gradient(out["y"], w), [2, 4, 6])
    zero = tape.gradient(out["y"], n, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    np.testing.assert_array_equal(zero, [0, 0, 0])


def test_function_of_integers_only() -> None:
    n = tf.constant([1, 2])
    v = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(v)
        y = tf.cast(convert(lambda n: n * 2)(n), tf.float32) * v
    np.testing.assert_allclose(tape.gradient(y, v), 6)


def test_some_results_are_not_used() -> None:
    f = convert(lambda x: (jnp.sin(x), jnp.cos(x), jnp.argsort(x)))
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        _, y, _ = f(x)
    np.testing.assert_allclose(tape.gradient(y, x), -np.sin(X), rtol=1e-5)


def test_variables() -> None:
    v = tf.Variable(X)
    with tf.GradientTape() as tape:
        y = convert(jnp.sin)(v)
    np.testing.assert_allclose(tape.gradient(y, v), np.cos(X), rtol=1e-5)


def test_bfloat16() -> None:
    x = tf.cast(tf.constant(X), tf.bfloat16)
    gradient = nested_tapes(convert(lambda x: x * x), x, 1)
    assert gradient.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(gradient, tf.float32), 2 * X, rtol=2e-2)


def test_complex() -> None:
    """TensorFlow's convention, so that a chain through TensorFlow's own ops is right.

    It is the conjugate of JAX's.
    """
    x = tf.constant(X, tf.complex64) * (1 + 2j)

    def inner(x: Any) -> Any:
        return x * x * (2 - 1j)

    def loss_in_jax(x: Any) -> Any:
        y = inner(x * (1 + 1j))
        return jnp.sum(jnp.real(y * y * jnp.conj(y)))

    def gradients(middle: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as second:
            second.watch(x)
            with tf.GradientTape() as first:
                first.watch(x)
                y = middle(x * (1 + 1j))
                loss = tf.reduce_sum(tf.math.real(y * y * tf.math.conj(y)))
            gradient = first.gradient(loss, x)
            size = tf.reduce_sum(tf.math.real(gradient * tf.math.conj(gradient)))
        return gradient, second.gradient(size, x)

    for ours, theirs in zip(gradients(convert(inner)), gradients(inner), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    by_jax = jax.grad(loss_in_jax)(x.numpy())
    np.testing.assert_allclose(gradients(convert(inner))[0], np.conj(by_jax), rtol=1e-4)


@pytest.mark.parametrize("experimental_use_pfor", [True, False])
def test_jacobian(experimental_use_pfor: bool) -> None:
    def f(x: Any) -> Any:
        return jnp.cumsum(jnp.sin(x))

    x = tf.constant(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = convert(f)(x)
    found = tape.jacobian(y, x, experimental_use_pfor=experimental_use_pfor)
    np.testing.assert_allclose(found, jax.jacobian(f)(X), rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_static_loop_of_gradients(shape: Any) -> None:
    """A gradient descent as a user writes it, in one graph."""
    f = convert(lambda x: jnp.sum((x - 1) ** 2))

    @tf.function
    def descend(x: Any) -> Any:
        for _ in range(20):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = f(x)
            x = x - 0.25 * tape.gradient(loss, x)
        return x

    np.testing.assert_allclose(descend(tf.zeros(shape)), np.ones(shape), atol=1e-3)


def until_large(x: Any) -> Any:
    return jax.lax.while_loop(lambda v: jnp.all(v < 10), lambda v: v * 2, x)


REFUSED: dict[str, Any] = {
    "with_gradient=False": (convert(jnp.sin, with_gradient=False), "sin .*with_gradient=False"),
    "while_loop": (convert(until_large), "Reverse-mode differentiation does not work for lax.wh"),
}


@pytest.mark.parametrize(("f", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_no_gradient_is_an_error_only_when_it_is_asked_for(f: Any, reason: str) -> None:
    x = tf.constant(X)
    f(x)
    in_graph = tf.function(f, autograph=False)
    in_graph(x)
    for call in (f, in_graph):
        with pytest.raises(LookupError, match=reason):
            nested_tapes(call, x, 1)
    for gradient in (nested_tapes, tf_gradients):
        asking = tf.function(lambda x, g=gradient: g(f, x, 1), autograph=False)
        with pytest.raises(LookupError, match=reason):
            asking(x)
    # Not asked for: beside another function that has one.
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * tf.stop_gradient(f(x))
    assert tape.gradient(y, x) is not None


def test_reason_is_an_error_of_ours_in_eager_mode() -> None:
    with pytest.raises(GradientError, match="until_large has no gradient: Reverse-mode"):
        nested_tapes(convert(until_large), tf.constant(X), 1)


def test_differentiable_loops_of_unknown_length_inside() -> None:
    """A loop over values that need no derivative does not stand in the way of one."""

    def f(x: Any) -> Any:
        steps = jax.lax.while_loop(lambda n: n < 5, lambda n: n + 2, jnp.int32(0))
        return x * steps

    g = tf.function(convert(f), autograph=False)
    np.testing.assert_allclose(nested_tapes(g, tf.constant(X), 1), [6, 6, 6])


def test_gradient_outside_of_the_context_that_it_was_converted_in() -> None:
    x = tf.constant([1.0, 2.0], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with jax.enable_x64(True):
            y = convert(lambda x: x**3)(x)
    gradient = tape.gradient(y, x)
    assert gradient.dtype == tf.float64
    np.testing.assert_allclose(gradient, [3.0, 12.0], rtol=1e-12)


def test_forward_mode_is_computed_from_the_gradient() -> None:
    function = convert(lambda x: jnp.sin(x) * x)
    x, tangent = tf.constant([1.0, 2.0]), tf.constant([1.0, 3.0])
    expected = jax.jvp(lambda x: jnp.sin(x) * x, (x.numpy(),), (tangent.numpy(),))[1]
    for call in (function, tf.function(function)):
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            result = call(x)
        np.testing.assert_allclose(accumulator.jvp(result), expected, rtol=1e-6)
