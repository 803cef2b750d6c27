"""Between JAX and TensorFlow and back: modules, Keras, SavedModels, convert, platforms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import (
    Signature,
    convert,
    deserialize,
    export,
    load,
    save,
    serialize,
    to_exported,
    to_tf,
)
from jax2tf_bridge.calling_tf import call_tf
from jax2tf_bridge.errors import PlatformError

GENERATOR = np.random.default_rng(0)
X = jnp.asarray(GENERATOR.normal(size=(3, 2)).astype(np.float32))
KERNEL = GENERATOR.normal(size=(2, 2)).astype(np.float32)


class Dense(tf.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(KERNEL)
        self.bias = tf.Variable([1.0, -1.0])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def __call__(self, x):  # type: ignore[no-untyped-def]
        return {"y": tf.tanh(x @ self.kernel + self.bias)}


def dense(x: Any) -> Any:
    return jnp.tanh(x @ KERNEL + jnp.array([1.0, -1.0]))


def agrees(way: Callable[..., Any], f: Callable[..., Any], g: Callable[..., Any]) -> None:
    """Fails unless f and g have equal values and gradients."""

    def both(f: Callable[..., Any]) -> Callable[..., Any]:
        gradient = jax.grad(lambda x: (f(x) ** 2).sum())
        return lambda x: (f(x), gradient(x))

    (values, slopes), (expected, expected_slopes) = way(both(f))(X), jax.jit(both(g))(X)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slopes, expected_slopes, rtol=1e-4, atol=1e-5)


# The same arrays cross both ways; tests of modules and Keras models cover how they are called.
COMPILED = pytest.mark.parametrize(
    "way", [pytest.param("eager", marks=pytest.mark.complete), "jit"], indirect=True
)


def test_modules(way: Callable[..., Any]) -> None:
    module = call_tf(Dense())
    agrees(way, lambda x: module(x)["y"], dense)


def test_reloaded_saved_models(way: Callable[..., Any], tmp_path: Path) -> None:
    module = Dense()
    signature = module.__call__.get_concrete_function()
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": signature})
    loaded = tf.saved_model.load(str(tmp_path))
    agrees(way, lambda x: call_tf(loaded)(x)["y"], dense)
    served = call_tf(loaded.signatures["serving_default"])
    agrees(way, lambda x: served(x=x)["y"], dense)


def test_keras_models(way: Callable[..., Any]) -> None:
    layers = [tf.keras.layers.Dense(5, activation="relu"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    expected = model(np.asarray(X)).numpy()
    np.testing.assert_allclose(way(call_tf(model))(X), expected, rtol=1e-4, atol=1e-5)
    with tf.GradientTape() as tape:
        x = tf.constant(np.asarray(X))
        tape.watch(x)
        total = tf.reduce_sum(model(x))
    found = way(jax.grad(lambda x: call_tf(model)(x).sum()))(X)
    np.testing.assert_allclose(found, tape.gradient(total, x), rtol=1e-4, atol=1e-5)


@COMPILED
def test_from_jax_to_tensorflow_and_back(way: Callable[..., Any]) -> None:
    agrees(way, call_tf(convert(dense)), dense)
    agrees(way, call_tf(to_tf(export(dense, platforms=["cpu"])(X))), dense)
    with_batches = convert(
        dense, polymorphic_shapes="(b, 2)", native_serialization_platforms=["cpu"]
    )
    agrees(way, call_tf(tf.function(with_batches)), dense)


@COMPILED
def test_from_jax_through_a_saved_model_and_back(way: Callable[..., Any], tmp_path: Path) -> None:
    module = tf.Module()
    module.f = tf.function(
        convert(dense), input_signature=[tf.TensorSpec(X.shape, tf.float32)], autograph=False
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, str(tmp_path), options=options)
    agrees(way, call_tf(tf.saved_model.load(str(tmp_path)).f), dense)


def test_from_tensorflow_to_jax_and_back(tmp_path: Path) -> None:
    called = call_tf(Dense())
    converted = convert(lambda x: called(x)["y"] * 2)
    x = tf.constant(np.asarray(X))

    def check(f: Callable[..., Any]) -> None:
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = f(x)
        np.testing.assert_allclose(result, dense(X) * 2, rtol=1e-5, atol=1e-6)
        expected = jax.grad(lambda x: (dense(x) * 2).sum())(X)
        found = tape.gradient(result, x)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    check(converted)
    check(tf.function(converted, autograph=False))
    module = tf.Module()
    signature = [tf.TensorSpec(X.shape, tf.float32)]
    module.f = tf.function(converted, input_signature=signature, autograph=False)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, str(tmp_path), options=options)
    check(tf.saved_model.load(str(tmp_path)).f)


def test_weights_that_tensorflow_captured_are_lifted_once() -> None:
    big = tf.Variable(GENERATOR.normal(size=(64, 64)).astype(np.float32))
    f = call_tf(lambda x: x @ big)
    portable = export(lambda x: f(f(x)))(jnp.ones((1, 64)))
    assert [str(constant.aval) for constant in portable.lifted_constants] == ["float32[64,64]"]
    expected = np.ones((1, 64), np.float32) @ big.numpy() @ big.numpy()
    np.testing.assert_allclose(to_tf(portable)(np.ones((1, 64), np.float32)), expected, rtol=1e-3)


def test_functions_with_calls_are_stored_and_read() -> None:
    portable = deserialize(serialize(export(call_tf(tf.sin))(X).with_vjp()))
    np.testing.assert_allclose(to_exported(portable).call(X), np.sin(X), rtol=1e-5)
    agrees(lambda f: f, to_exported(portable).call, jnp.sin)


def test_programs_are_for_platforms_that_tensorflow_has_no_device_of() -> None:
    portable = export(call_tf(tf.sin))(X)
    assert (portable.platforms, portable.dropped_platforms) == (("cpu", "cuda", "rocm", "tpu"), ())
    exported = jax.export.export(
        jax.jit(lambda x: jnp.cos(call_tf(tf.sin)(x))), platforms=("tpu", "cpu", "cuda")
    )(X)
    np.testing.assert_allclose(exported.call(X), np.cos(np.sin(X)), rtol=1e-5)


@pytest.mark.skipif(
    bool(tf.config.list_physical_devices("TPU")), reason="TensorFlow has a TPU here"
)
def test_custom_calls_are_for_devices_of_the_installed_tensorflow_alone() -> None:
    def factor(x: tf.Tensor) -> Any:
        return tf.linalg.qr(tf.tensordot(x, x, 0))

    with pytest.raises(
        PlatformError,
        match=r"function factor cannot be compiled for tpu: it calls \w+, Qr, which differ by "
        r"platform, .* has no device of that platform\. Embed the graph \(call_tf_graph=True\)",
    ):
        export(call_tf(factor), platforms=["cpu", "tpu"])(X)


def test_calls_while_a_tf_function_is_traced() -> None:
    sine = call_tf(tf.sin)

    @tf.function(autograph=False)
    def outer(z: tf.Tensor) -> Any:
        def f(x: Any) -> Any:
            # Differentiates a call on a tracer, and one on a known array, which runs at once.
            return jax.grad(lambda x: sine(x).sum())(x) + jax.grad(lambda y: sine(y).sum())(X)

        with tf.GradientTape() as tape:
            tape.watch(z)
            y = convert(f)(z)
        return y, tape.gradient(y, z)

    y, gradient = outer(tf.constant(np.asarray(X)))
    np.testing.assert_allclose(y, 2 * np.cos(X), rtol=1e-5)
    np.testing.assert_allclose(gradient, -np.sin(X), rtol=1e-5)


def test_a_loaded_model_meets_a_tensorflow_function(tmp_path: Path) -> None:
    save(tmp_path / "1", Signature(dense, args=[np.asarray(X)]))
    loaded = load(tmp_path / "1")
    after = call_tf(lambda y: tf.nn.softmax(y))
    found = jax.jit(lambda x: after(jax.tree.leaves(loaded.serving_default(x))[0]))(X)
    np.testing.assert_allclose(found, jax.nn.softmax(dense(X)), rtol=1e-4)
