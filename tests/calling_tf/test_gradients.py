"""TensorFlow's gradients in JAX: any order, eager and compiled, and errors where there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert
from jax2tf_bridge.calling_tf import call_tf
from jax2tf_bridge.errors import GradientError

X = jnp.array([0.5, 2.0])


def tf_cubic(x: tf.Tensor) -> tf.Tensor:
    return tf.sin(x) * x * x


def cubic(x: Any) -> Any:
    return jnp.sin(x) * x * x


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields what led to an error; JAX puts a stack trace of its own in between."""
    cause = error.__cause__ or error.__context__
    if cause is not None:
        yield cause
        yield from causes(cause)


def nested(f: Callable[..., Any], order: int) -> Callable[..., Any]:
    for _ in range(order):
        f = jax.grad(lambda x, f=f: f(x).sum())
    return f


@pytest.mark.parametrize(
    "function", [tf_cubic, tf.function(tf_cubic)], ids=["plain", "tf.function"]
)
def test_gradients_of_any_order(way: Callable[..., Any], function: Any) -> None:
    # The third order is slow in eager mode, and computed like the second.
    highest = 3 if way is jax.jit else 2

    def orders(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: [nested(f, order)(x) for order in range(1, highest + 1)]

    found = way(orders(call_tf(function)))(X)
    for ours, theirs in zip(found, jax.jit(orders(cubic))(X), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_jacrev_of_jacrev(way: Callable[..., Any]) -> None:
    def orders(f: Callable[..., Any]) -> Callable[..., Any]:
        # The second is slow in eager mode, and test_vmap.py tests its parts.
        found = [jax.jacrev(f), jax.jacrev(jax.jacrev(f))]
        return lambda x: [g(x) for g in (found if way is jax.jit else found[:1])]

    f = call_tf(lambda x: tf.stack([tf.reduce_prod(x), tf.reduce_sum(tf.sin(x))]))
    g = lambda x: jnp.stack([jnp.prod(x), jnp.sum(jnp.sin(x))])  # noqa: E731
    for ours, theirs in zip(way(orders(f))(X), jax.jit(orders(g))(X), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_complex_gradients_follow_jax(way: Callable[..., Any]) -> None:
    z = jnp.array([1 + 2j, -0.5 + 1j])
    found = way(jax.grad(lambda z: jnp.abs(call_tf(lambda z: z * z * (1 + 2j))(z)).sum()))(z)
    expected = jax.jit(jax.grad(lambda z: jnp.abs(z * z * (1 + 2j)).sum()))(z)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_integers_have_no_gradient_and_do_not_disturb(way: Callable[..., Any]) -> None:
    def f(x: tf.Tensor, n: tf.Tensor) -> Any:
        return {"n": n + 1, "y": x * tf.cast(n, tf.float32)}

    def loss(x: Any, n: Any) -> Any:
        return call_tf(f)(x, n)["y"].sum()

    np.testing.assert_allclose(way(jax.grad(loss))(X, 3), [3, 3])
    _, integer = way(jax.grad(loss, argnums=(0, 1), allow_int=True))(X, 3)
    assert integer.dtype == jax.dtypes.float0


def test_unused_arguments_and_results(way: Callable[..., Any]) -> None:
    f = call_tf(lambda a, b: (a * 2, tf.stop_gradient(a), b))
    gradient = way(jax.grad(lambda a, b: f(a, b)[1].sum() + f(a, b)[0].sum(), argnums=(0, 1)))
    a, b = gradient(X, X)
    assert a.tolist() == [2, 2]
    assert b.tolist() == [0, 0]


def test_the_same_array_for_two_arguments(way: Callable[..., Any]) -> None:
    f = call_tf(lambda a, b: a * b * b)
    a, b = way(jax.grad(lambda a, b: f(a, b).sum(), argnums=(0, 1)))(X, X)
    np.testing.assert_allclose(a, X * X)
    np.testing.assert_allclose(b, 2 * X * X)


def test_sparse_gradients_become_dense(way: Callable[..., Any]) -> None:
    f = call_tf(lambda w, i: tf.gather(w, i))
    found = way(jax.grad(lambda w: f(w, jnp.array([0, 0, 1])).sum()))(X)
    assert found.tolist() == [2, 1]


def test_custom_gradients_of_tensorflow_count(way: Callable[..., Any]) -> None:
    @tf.custom_gradient
    def f(x: tf.Tensor) -> Any:
        return x, lambda dy: dy * 7

    assert way(jax.grad(lambda x: call_tf(f)(x).sum()))(X).tolist() == [7, 7]


def test_gradients_in_bfloat16_and_x64() -> None:
    f = jax.jit(jax.grad(lambda x: call_tf(tf.square)(x).sum()))
    low = f(X.astype(jnp.bfloat16))
    assert low.dtype == jnp.bfloat16
    assert low.tolist() == [1, 4]
    with jax.enable_x64(True):
        high = f(jnp.array([0.5, 1e-9]))
        assert high.dtype == jnp.float64
        assert high.tolist() == [1, 2e-9]


def test_gradients_through_scan_and_cond() -> None:
    tf_sine = call_tf(tf.sin)

    def loss(sine: Callable[..., Any], x: Any) -> Any:
        carry, sums = jax.lax.scan(lambda c, _: (sine(c) * 2, c.sum()), x, None, length=3)
        return jax.lax.cond(x.sum() > 0, sine, lambda x: x, carry).sum() + sums.sum()

    for x in (X, -X):
        found = jax.grad(lambda x: loss(tf_sine, x))(x)
        np.testing.assert_allclose(
            found, jax.jit(jax.grad(lambda x: loss(jnp.sin, x)))(x), rtol=1e-5
        )


def test_gradients_under_checkpoint() -> None:
    f = jax.checkpoint(lambda x: call_tf(tf_cubic)(x).sum())
    np.testing.assert_allclose(jax.jit(jax.grad(f))(X), nested(cubic, 1)(X), rtol=1e-5)


def test_eager_gradients_of_what_xla_cannot_compile() -> None:
    def f(x: tf.Tensor) -> tf.Tensor:
        assert tf.executing_eagerly()
        return tf.boolean_mask(x, x > 1) ** 2

    assert jax.grad(lambda x: call_tf(f)(x).sum())(X).tolist() == [0, 4]


def test_only_what_is_asked_for_is_differentiated() -> None:
    def f(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return x * 2 + tf.raw_ops.PreventGradient(input=y, message="not by y")

    assert jax.grad(lambda x: call_tf(f)(x, X).sum())(X).tolist() == [2, 2]


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f: jax.jvp(f, (X,), (X,)),
        lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(X),
        lambda f: jax.jacfwd(f)(X),
        lambda f: jax.hessian(lambda x: f(x).sum())(X),
        lambda f: jax.linearize(f, X)[1](X),
        lambda f: jax.vmap(lambda x: jax.jvp(f, (x,), (x,))[1])(X),
    ],
    ids=["jvp", "jit", "jacfwd", "hessian", "linearize", "vmap"],
)
def test_forward_mode_is_an_error_that_says_so(derivative: Callable[..., Any]) -> None:
    with pytest.raises(
        GradientError,
        match=r"tf_cubic has no forward-mode derivative .*reverse mode only\. Use jax\.grad",
    ):
        derivative(call_tf(tf_cubic))


def frozen(x: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.PreventGradient(input=x, message="weights are frozen")


def contrast(x: tf.Tensor) -> tf.Tensor:
    image = tf.ones([2, 2, 3]) * x[0]
    return tf.raw_ops.AdjustContrastv2(images=image, contrast_factor=2.0)


def test_missing_gradient_names_the_operation(way: Callable[..., Any]) -> None:
    with pytest.raises(GradientError, match="function frozen has no gradient: weights are frozen"):
        way(jax.grad(lambda x: call_tf(frozen)(x).sum()))(X)
    with pytest.raises(
        GradientError,
        match=r"function contrast has no gradient: TensorFlow defines none for the operation "
        r"AdjustContrastv2\. Stop the gradient before it",
    ) as caught:
        way(jax.grad(lambda x: call_tf(contrast)(x).sum()))(X)
    assert any(type(cause) is LookupError for cause in causes(caught.value))


@pytest.mark.parametrize("fresh", [False, True], ids=["where it was saved", "elsewhere"])
def test_models_saved_without_gradients_say_so(tmp_path: Path, fresh: bool) -> None:
    module = tf.Module()
    module.f = tf.function(convert(jnp.sin), input_signature=[tf.TensorSpec((2,))])
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(tmp_path), options=options)
    if fresh:
        # TensorFlow has no gradient under this name, as in a process that made none.
        graph = tmp_path / "saved_model.pb"
        graph.write_bytes(re.sub(rb"(?<=CustomGradient-)\d", b"x", graph.read_bytes()))
    f = call_tf(tf.saved_model.load(str(tmp_path)).f)
    for way in (lambda f: f, jax.jit):
        np.testing.assert_allclose(way(f)(X), np.sin(X), rtol=1e-5)
        with pytest.raises(
            GradientError,
            match=r"SavedModel was saved without the gradients .* jax2tf_bridge\.save\(\.\.\., "
            r"vjp_order=1\), or by .*SaveOptions\(experimental_custom_gradients=True\)",
        ) as caught:
            way(jax.grad(lambda x: f(x).sum()))(X)
        assert "out of scope" not in str(caught.value)
        assert isinstance(caught.value, TypeError)  # as TensorFlow's
