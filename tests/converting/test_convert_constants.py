"""Arrays that a converted function captured: one tensor each, and variables where asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert
from jax2tf_bridge.errors import FunctionError
from tests.sampling import sampled

W = np.random.default_rng(0).standard_normal((3, 2000)).astype(np.float32)
X = np.ones((2, 3), np.float32)


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return 2 * x


def _forward(x: Any) -> Any:
    return doubled(x), None


def _backward(_: None, cotangent: Any) -> Any:
    return (2 * cotangent + (cotangent @ W) @ np.flip(W, 0).T * 0,)


doubled.defvjp(_forward, _backward)


def f(x: Any) -> Any:
    return jnp.sin(x @ W)


def check(call: Any, g: Any = f) -> None:
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = call(x)
    np.testing.assert_allclose(y, g(X), rtol=1e-4, atol=1e-5)
    expected = jax.jit(jax.grad(lambda x: g(x).sum()))(X)
    np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-3, atol=1e-3)


# The first captures arrays in its values and in its rule, the others in one of them.
@pytest.mark.parametrize(
    "g", sampled([lambda x: doubled(f(x)[:, :3]), f, doubled], every=3), ids=["both", "f", "rule"]
)
def test_everywhere(g: Any, tmp_path: Path) -> None:
    converted = convert(g, polymorphic_shapes="(b, 3)")
    check(converted, g)
    function = tf.function(converted, autograph=False)
    check(function, g)
    compiled = tf.function(converted, autograph=False, jit_compile=True)
    check(compiled, g)
    module = tf.Module()
    module.f = tf.function(converted, input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, tmp_path, options=options)
    loaded = tf.saved_model.load(tmp_path)
    check(loaded.f, g)


def test_one_tensor_for_all_traces_and_gradients() -> None:
    converted = convert(f)
    traces = [
        tf.function(converted, autograph=False).get_concrete_function(tf.TensorSpec([n, 3]))
        for n in (2, 3)
    ]
    (first,), (second,) = (
        [t for t in trace.captured_inputs if t.shape == W.shape] for trace in traces
    )
    assert first is second


def test_a_model_that_holds_them_saves_them_as_variables(tmp_path: Path) -> None:
    def g(x: Any) -> Any:
        return doubled(f(x)[:, :3])

    converted = convert(g, polymorphic_shapes="(b, 3)")
    module = tf.Module()
    module.captured = converted.captured_arrays()
    module.f = tf.function(converted, input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    check(module.f, g)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, tmp_path, options=options)
    assert W.tobytes()[:64] not in (tmp_path / "saved_model.pb").read_bytes()
    assert not module.trainable_variables
    loaded = tf.saved_model.load(tmp_path)
    check(loaded.f, g)
    assert converted.captured_arrays() is module.captured


def test_asking_for_them_after_a_call_is_an_error() -> None:
    converted = convert(f)
    converted(X)
    with pytest.raises(FunctionError, match=r"^captured_arrays\(\) of f was called after the func"):
        converted.captured_arrays()
