"""TensorFlow's gradients of its own operations agree with JAX's, or the VJP is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import (
    Target,
    deserialize,
    export,
    from_stablehlo,
    save,
    serialize,
    to_tf,
)

# Private: the table is compared with what the tests try.
from jax2tf_bridge.from_jax.lowering._differentiable import (
    _SAME_GRADIENT_IN_TENSORFLOW,
    has_jax_gradient_in_tensorflow,
)

_WITHOUT_XLA = Target.widest(xla=False)
_X = np.array([[0.5, -1.25, 2.0, 0.75], [1.5, 0.25, -0.5, 3.0], [2.5, 1.0, 0.125, -2.0]], "f4")
_W = np.linspace(-1, 1, 8, dtype="f4").reshape(4, 2)
_IMAGE = np.linspace(-1, 2, 60, dtype="f4").reshape(1, 5, 6, 2)
_KERNEL = np.linspace(-1, 1, 36, dtype="f4").reshape(3, 3, 2, 2)

# Together they have every primitive of the list; each is one export, for two orders of gradients.
_AGREE: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x: (-x + 3 * x * x - x / (x * x + 1)) ** 3 + jnp.square(x),
    "functions": lambda x: jnp.exp(x) + jnp.tanh(x) + lax.logistic(x) + jnp.sin(x) * jnp.cos(x),
    "more_functions": lambda x: jnp.exp2(x) + jnp.expm1(x) + lax.erf(x),
    "of_positive": lambda x: jnp.log(x * x) + jnp.log1p(x * x) + lax.rsqrt(x * x),
    "padding": lambda x: jnp.pad(x, 1, constant_values=x[0, 0]) ** 2,
    "complex": lambda x: jnp.abs(
        1 / lax.complex(0 * x, x) + jnp.expm1(lax.complex(x, 0 * x)) + jnp.conj(x + 1j).imag
    ),
    "abs": lambda x: jnp.abs(x) * x,
    "sums": lambda x: jnp.sum(x, 0) * jnp.max(x, 0) + jnp.cumsum(x, 0),
    "axes": lambda x: jnp.concatenate([x.T[::-1], jnp.pad(x, ((0, 1), (0, 0)))[:, 1:]], 1) ** 2,
    "shapes": lambda x: jnp.expand_dims(jnp.broadcast_to(x.reshape(4, 3), (2, 4, 3))[:, 1], 1) ** 2,
    "split": lambda x: jnp.multiply(*jnp.split(x, 2, axis=1)) ** 2,
    "select": lambda x: jnp.where(x > 0.3, x * x, jnp.sin(x)),
    "indices": lambda x: (
        x[jnp.array([2, 0, 2])] ** 2 + lax.dynamic_slice(x, (1, 0), (2, 4))[:1] ** 2
    ),
    "softmax": lambda x: jax.nn.softmax(x) * jax.nn.log_softmax(x) + jax.nn.logsumexp(x),
    "activations": lambda x: jax.nn.relu(x) * x + jax.nn.gelu(x) + jax.nn.silu(x),
    "dtypes": lambda x: (x.astype(jnp.bfloat16) * 2).astype(jnp.float32) * x,
    "stopped": lambda x: x + lax.stop_gradient(jnp.round(x) - x) * x,
    "outside": lambda x: jax.vmap(lambda row, start: lax.dynamic_slice(row, (start,), (2,)))(
        x, jnp.array([1, 7, -9])
    ),
    "remat": jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))),
}
_DIFFER: dict[str, Callable[..., Any]] = {
    "ties": lambda x: jnp.maximum(x, 0.5),
    "root": lambda x: jnp.where(x > 0.3, jnp.sqrt(jnp.abs(x)), 0.0),
    "pole": lambda x: lax.integer_pow(x, -2),
    "narrow": lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32) * x,
    "loop": lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), x),
    "sort": jnp.sort,
}


@jax.custom_vjp
def _doubled(x: Any) -> Any:
    return x * x


_doubled.defvjp(lambda x: (x * x, x), lambda x, ct: (100 * ct,))
_DIFFER["custom"] = _doubled


@pytest.mark.parametrize("name", [*_AGREE, *_DIFFER])
def test_gradients_are_those_of_jax(name: str) -> None:
    f = (_AGREE | _DIFFER)[name]
    portable = export(f, target=_WITHOUT_XLA)(_X)
    # JAX 0.8 says of any vmap of dynamic_slice that it stays in bounds, as x[[2, 0, 2]] does.
    promises = name in {"indices", "outside"} and jax.__version_info__ < (0, 9)
    assert portable.tensorflow_differentiates == (name in _AGREE and not promises)
    function = to_tf(portable)
    x = tf.constant(_X)

    @tf.function(autograph=False)
    def gradients(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(function(x))
            first = tf.convert_to_tensor(inner.gradient(y, x, unconnected_gradients="zero"))
            total = tf.reduce_sum(first * first)
        return [first, tf.convert_to_tensor(outer.gradient(total, x, unconnected_gradients="zero"))]

    first = jax.grad(lambda x: jnp.sum(f(x)))
    second = jax.grad(lambda x: jnp.sum(first(x) ** 2))
    both = jax.jit(lambda x: (first(x), second(x)))  # one compilation, not one an operation
    for found, expected in zip(gradients(x), both(_X), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_products_and_convolutions() -> None:
    def f(x: Any, w: Any, image: Any, kernel: Any) -> Any:
        y = lax.conv_general_dilated(
            image, kernel, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return (x @ w).sum() ** 2 + (y * y).sum()

    args = (_X, _W, _IMAGE, _KERNEL)
    portable = export(f, target=_WITHOUT_XLA)(*args)
    assert portable.tensorflow_differentiates
    tensors = list(map(tf.constant, args))
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = to_tf(portable)(*tensors)
    expected = jax.grad(f, argnums=(0, 1, 2, 3))(*args)
    for found, wanted in zip(tape.gradient(y, tensors), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_convolutions_without_a_gradient_in_tensorflow() -> None:
    """With groups or dilated kernels its kernels for CPUs have none: the exported one is used."""
    image, layout = jnp.ones((1, 5, 5, 4), np.float32), ("NHWC", "HWIO", "NHWC")
    for n_in, groups, dilation, agrees in ((4, 1, 2, False), (2, 2, 1, False), (1, 4, 1, True)):

        def f(kernel: Any, groups: int = groups, dilation: int = dilation) -> Any:
            y = lax.conv_general_dilated(
                image,
                kernel,
                (1, 1),
                "SAME",
                rhs_dilation=(dilation, dilation),
                dimension_numbers=layout,
                feature_group_count=groups,
            )
            return (y * y).sum()

        kernel = np.random.default_rng(0).standard_normal((3, 3, n_in, 4)).astype(np.float32)
        portable = export(f, target=_WITHOUT_XLA)(kernel)
        assert portable.tensorflow_differentiates == agrees
        with tf.GradientTape() as tape:
            tensor = tf.constant(kernel)
            tape.watch(tensor)
            y = to_tf(portable)(tensor)
        wanted = jax.grad(f)(kernel)
        np.testing.assert_allclose(tape.gradient(y, tensor), wanted, rtol=1e-4, atol=1e-3)


def test_every_primitive_that_agrees_is_tried() -> None:
    tried: set[str] = set()

    def collect(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            tried.add(equation.primitive.name)
            for value in equation.params.values():
                if (inner := getattr(value, "jaxpr", value)) is not value or hasattr(inner, "eqns"):
                    collect(inner)

    for f in _AGREE.values():
        collect(jax.make_jaxpr(f)(_X).jaxpr)
    elsewhere = {"dot_general", "add_any", "copy", "copy_p"}
    renamed = {"rev", "expand_dims"}
    assert _SAME_GRADIENT_IN_TENSORFLOW - tried <= elsewhere | renamed | {"real"}


def test_stablehlo_of_other_tools_is_differentiated() -> None:
    text = """
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.multiply %x, %x : tensor<3xf32>
  return %0 : tensor<3xf32>
}
"""
    for target in (None, _WITHOUT_XLA):
        portable = deserialize(serialize(from_stablehlo(text, target=target)))
        x = tf.constant([1.0, 2.0, 3.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = to_tf(portable, target=Target.widest(xla=False))(x)
        np.testing.assert_array_equal(tape.gradient(y, x), [2, 4, 6])


def test_what_users_call_relu_is_not_taken_for_jaxs() -> None:
    @jax.custom_jvp
    def relu(x: Any) -> Any:
        return jnp.maximum(x, 0)

    relu.defjvp(lambda primals, tangents: (relu(*primals), tangents[0]))
    assert not has_jax_gradient_in_tensorflow(jax.make_jaxpr(relu)(_X))
    assert has_jax_gradient_in_tensorflow(jax.make_jaxpr(jax.nn.relu)(_X))


@pytest.mark.costly
def test_files_and_saved_models_keep_it(tmp_path: Any) -> None:
    portable = export(_AGREE["softmax"], target=_WITHOUT_XLA)(_X)
    stored = deserialize(serialize(portable))
    assert stored.tensorflow_differentiates
    assert stored.gradient.vjp is None  # it needs no VJP
    save(tmp_path / "model", stored)
    loaded = tf.saved_model.load(tmp_path / "model")
    x = tf.constant(_X)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            (y,) = loaded.signatures["serving_default"](x).values()
        first = inner.gradient(y, x)
    expected = jax.grad(lambda x: jnp.sum(_AGREE["softmax"](x)))
    np.testing.assert_allclose(first, expected(_X), rtol=1e-5, atol=1e-5)
    assert outer.gradient(first, x) is not None
