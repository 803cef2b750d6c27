"""convert(): every dtype that both sides know, and PRNG keys."""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert, export
from jax2tf_bridge.errors import DTypeError
from jax2tf_bridge.to_tensorflow import to_tf
from tests.sampling import sampled

NARROW = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"]
NARROW += ["float16", "bfloat16", "float32", "complex64", "float8_e4m3fn", "float8_e5m2"]
WIDE = ["int64", "uint64", "float64", "complex128"]


def values(dtype: str) -> Any:
    return np.array([0, 1, 1, 0]).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


def swap(x: Any) -> Any:
    return x[::-1], x.astype(jnp.float32 if not jnp.iscomplexobj(x) else x.dtype)


EACH = [(dtype, in_graph) for dtype in (*NARROW, *WIDE) for in_graph in (False, True)]


@pytest.mark.parametrize("case", sampled(EACH, every=9, keep=lambda case: not case[1]), ids=str)
def test_dtype(case: tuple[str, bool]) -> None:
    dtype, in_graph = case
    x = values(dtype)
    with jax.enable_x64(dtype in WIDE):
        f = convert(swap)
        result, cast = (tf.function(f, autograph=False) if in_graph else f)(tf.constant(x))
    assert result.dtype.name == dtype
    np.testing.assert_array_equal(result.numpy(), x[::-1])
    np.testing.assert_array_equal(cast.numpy(), x.astype(cast.dtype.as_numpy_dtype))


@pytest.mark.parametrize("dtype", sampled([*NARROW, *WIDE], every=4))
def test_dtype_through_a_function(dtype: str) -> None:
    x = values(dtype)
    with jax.enable_x64(dtype in WIDE):
        portable = export(swap)(x)
    f = to_tf(portable)
    np.testing.assert_array_equal(f(x)[0], x[::-1])
    np.testing.assert_array_equal(tf.function(f, autograph=False)(x)[0], x[::-1])


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_64_bits_become_32_without_x64(dtype: str, kind: str) -> None:
    x = values(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result, _ = convert(swap)(tf.constant(x) if kind == "tensor" else x)
    narrow = {"int64": "int32", "uint64": "uint32", "float64": "float32"}
    assert result.dtype.name == narrow.get(dtype, "complex64")
    np.testing.assert_array_equal(result.numpy(), x[::-1])


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_4_bit_values_cross_as_8_bits(dtype: str) -> None:
    x = np.arange(-4 if dtype == "int4" else 0, 4).astype(getattr(ml_dtypes, dtype))
    wide = "int8" if dtype == "int4" else "uint8"

    def f(x: Any) -> Any:
        assert x.dtype == dtype
        return x + x, (x + x).astype(jnp.float32)

    eager = convert(f)
    for argument in (x, jnp.asarray(x)):
        # A tf.function would make it a tensor of its own: it is closed over.
        in_graph = tf.function(functools.partial(eager, argument), autograph=False)
        for result, cast in (eager(argument), in_graph()):
            assert result.dtype.name == wide
            np.testing.assert_array_equal(result, np.asarray(x + x).astype(wide))
            np.testing.assert_array_equal(cast, np.asarray(x + x).astype(np.float32))


def test_4_bit_tensor_of_tensorflow() -> None:
    x = tf.cast(tf.constant([-3, 0, 3], tf.int8), tf.as_dtype("int4"))
    np.testing.assert_array_equal(convert(lambda x: x + x)(x), [-6, 0, 6])


def test_weights_in_4_bits_inside() -> None:
    weights = np.arange(-4, 4).reshape(4, 2)
    f = convert(lambda x: x @ jnp.asarray(weights, jnp.int4).astype(jnp.float32))
    x = np.ones((1, 4), np.float32)
    np.testing.assert_allclose(f(x), x @ weights)


def test_dtype_that_tensorflow_lacks() -> None:
    with pytest.raises(DTypeError, match=r"float8_e3m4, which TensorFlow .* does not have"):
        convert(lambda x: x.astype(jnp.float8_e3m4))(np.float32(1))


@pytest.mark.parametrize(
    ("x", "advice", "mended"),
    [
        (
            np.ma.array([[1, 2]], mask=[[True, False]]),
            "x.filled(0), and the mask as another argument.",
            [[0, 4]],
        ),
        (
            tf.ragged.constant([[1], [2, 3]]),
            "x.to_tensor(), and a mask as another argument.",
            [[2, 0], [4, 6]],
        ),
        (tf.sparse.from_dense([[1, 0]]), "tf.sparse.to_dense(x).", [[2, 0]]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arrays_that_jax_has_no_form_of(x: Any, advice: str, mended: Any) -> None:
    f = convert(lambda x: x * 2)
    with pytest.raises(DTypeError) as caught:
        f(x)
    assert str(caught.value).endswith(f" of type {type(x).__name__}. Pass {advice}")
    passed = eval(advice.partition(", ")[0].removesuffix("."), {"x": x, "tf": tf})
    np.testing.assert_array_equal(f(passed), mended)


def test_float0_argument() -> None:
    zeros = np.zeros((2,), jax.dtypes.float0)
    f = convert(lambda n, t: (n + 1, t))
    n, t = f(np.array([1, 2]), zeros)
    np.testing.assert_array_equal(n, [2, 3])
    assert t.dtype == tf.bool
    np.testing.assert_array_equal(t, [False, False])


@pytest.mark.parametrize(
    ("shape", "implementation"),
    [
        ((), "threefry2x32"),
        ((3,), "rbg"),
        pytest.param((3,), "threefry2x32", marks=pytest.mark.complete),
        pytest.param((), "rbg", marks=pytest.mark.complete),
    ],
)
def test_typed_keys(shape: Any, implementation: str) -> None:
    key = jax.random.split(jax.random.key(3, impl=implementation), 3)
    key = key if shape else key[0]

    def f(key: Any) -> Any:
        one = key if not shape else key[0]
        return jax.random.uniform(one, (2,)), jax.random.split(one)

    expected, keys = jax.jit(f)(key)
    converted = convert(f)
    sample, words = converted(key)
    np.testing.assert_allclose(sample, expected, rtol=1e-6)
    assert words.dtype == tf.uint32
    np.testing.assert_array_equal(words, jax.random.key_data(keys))
    call = to_tf(export(f, platforms=["cpu"])(key))
    data = tf.constant(np.asarray(jax.random.key_data(key)))
    np.testing.assert_allclose(call(data)[0], expected, rtol=1e-6)
    in_graph = tf.function(lambda: converted(key), autograph=False)
    np.testing.assert_allclose(in_graph()[0], expected, rtol=1e-6)


def test_gradient_beside_a_key() -> None:
    key = jax.random.key(0)

    def f(key: Any, x: Any) -> Any:
        return x * jax.random.normal(key, x.shape), jax.random.split(key)

    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, _ = convert(f)(key, x)
    expected = jax.random.normal(key, (2,))
    np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-6)


def test_key_in_the_place_of_words_is_refused() -> None:
    portable = export(lambda k: jax.random.uniform(k))(jax.random.key(0))
    with pytest.raises(DTypeError, match=r"The argument k must be a tensor.*key<fry>\[\]"):
        to_tf(portable)(jax.random.key(0))
