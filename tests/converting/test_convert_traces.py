"""The JAX function is traced once for each signature, whatever is done with it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert


class Counted:
    """A JAX function that counts how often it is traced."""

    def __init__(self) -> None:
        self.traces = 0

    def __call__(self, x: Any) -> Any:
        self.traces += 1
        return jax.tree_util.tree_map(lambda v: jnp.sin(v) * v, x)


def array(batch: int, dtype: Any = np.float32) -> Any:
    return np.full((batch, 2), 0.5, dtype)


def gradients(f: Any, x: Any, order: int) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gradients(f, x, order - 1) if order > 1 else f(x)
    return tape.gradient(y, x)


def test_one_trace_for_everything_of_one_signature() -> None:
    counted = Counted()
    f = convert(counted, polymorphic_shapes="(b, _)")
    for batch in (1, 2, 3):
        f(array(batch))
        f(tf.constant(array(batch)))
    for function in (
        tf.function(f),
        tf.function(f, jit_compile=True),
        tf.function(f, input_signature=[tf.TensorSpec((None, 2))]),
        tf.function(lambda x: f(x)),
    ):
        for batch in (1, 2):
            function(array(batch))
    for order in (1, 2, 3):
        gradients(f, tf.constant(array(2)), order)
        tf.function(lambda x, n=order: gradients(f, x, n), autograph=False)(array(3))
    assert counted.traces == 1


def test_another_dtype_or_structure_is_another_signature() -> None:
    counted = Counted()
    f = convert(counted)
    signatures = [array(2), array(2, jnp.bfloat16), {"a": array(2)}, [array(2)], array(3)]
    for _ in range(2):
        for x in signatures:
            f(x)
    assert counted.traces == len(signatures)


def test_numbers_of_one_type_share_a_trace() -> None:
    counted = Counted()
    f = convert(counted)
    for x in (1.0, 2.5, np.float32(3), tf.constant(4.0), jnp.float32(5), np.float64(6)):
        np.testing.assert_allclose(f(x), np.sin(np.float32(x)) * x, rtol=1e-5)
    assert counted.traces == 1


def test_configuration_of_jax_is_part_of_the_signature() -> None:
    counted = Counted()
    f = convert(counted)
    x = np.float64(0.5)
    assert f(x).dtype == tf.float32
    with jax.enable_x64(True):
        assert f(x).dtype == tf.float64
    assert f(x).dtype == tf.float32
    assert counted.traces == 2


def test_failure_is_not_remembered() -> None:
    fail = [True]

    def f(x: Any) -> Any:
        if fail.pop() if fail else False:
            raise RuntimeError("once")
        return x

    g = convert(f)
    with pytest.raises(RuntimeError, match="once"):
        g(1.0)
    assert g(1.0).numpy() == 1
