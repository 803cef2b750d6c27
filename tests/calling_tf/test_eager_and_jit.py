"""A TensorFlow function on arrays, in jax.jit and in JAX's control flow."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.calling_tf import call_tf

X = jnp.array([1.0, 2.0])


class Pair(NamedTuple):
    first: Any
    second: Any


def branching(x: tf.Tensor) -> tf.Tensor:
    if tf.reduce_sum(x) > 0:
        return x * 2
    return x - 1


def looping(x: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(3):
        x = tf.sin(x)
    return x


def test_results_are_those_of_tensorflow(way: Callable[..., Any]) -> None:
    result = way(call_tf(lambda x: tf.sin(x) * 2.0))(X)
    assert isinstance(result, jax.Array)
    np.testing.assert_allclose(result, np.sin(X) * 2, rtol=1e-6)


def test_pytrees_of_any_kind_cross(way: Callable[..., Any]) -> None:
    def f(pair: Pair, *, scale: Any) -> Any:
        return {"pair": Pair(pair.second[0] * scale, None), "list": [pair.first, (1, 2.5)]}

    result = way(call_tf(f))(Pair(X, [X]), scale=3.0)
    expected: Any = jax.tree.structure({"pair": Pair(0, None), "list": [0, (0, 0)]})
    assert expected == jax.tree.structure(result)
    np.testing.assert_allclose(result["pair"].first, X * 3)
    assert result["list"][1][0].dtype == jnp.int32


def test_lists_that_a_module_keeps_are_lists(way: Callable[..., Any]) -> None:
    module = tf.Module()
    module.kept = [tf.constant(1.0), {"a": (tf.constant(2.0),)}]
    assert way(call_tf(lambda x: module.kept))(X) == [1.0, {"a": (2.0,)}]


def test_no_arguments_and_no_results(way: Callable[..., Any]) -> None:
    assert way(call_tf(lambda: tf.ones(2)))().tolist() == [1, 1]
    assert way(call_tf(lambda x: None))(X) is None
    assert way(call_tf(lambda x: ()))(X) == ()


@pytest.mark.parametrize("x", [X, -X])
def test_python_control_flow_over_tensors(way: Callable[..., Any], x: jax.Array) -> None:
    expected = x * 2 if x.sum() > 0 else x - 1
    np.testing.assert_allclose(way(call_tf(branching))(x), expected)
    np.testing.assert_allclose(way(call_tf(looping))(x), np.sin(np.sin(np.sin(x))), rtol=1e-6)


def test_dtypes_stay_what_they_are(way: Callable[..., Any]) -> None:
    dtypes: list[str] = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"]
    dtypes += ["float16", "bfloat16", "float32", "complex64", "float8_e4m3fn", "float8_e5m2"]
    given = {dtype: np.array([0, 1]).astype(np.dtype(dtype)) for dtype in dtypes}

    def f(given: dict[str, tf.Tensor]) -> Any:
        return {d: tf.reverse(x, [0]) if x.dtype.size > 1 else x for d, x in given.items()}

    found = way(call_tf(f))({dtype: jnp.asarray(x) for dtype, x in given.items()})
    for dtype, x in given.items():
        assert found[dtype].dtype == x.dtype
        expected = x[::-1] if x.dtype.itemsize > 1 else x
        np.testing.assert_array_equal(np.asarray(found[dtype]), expected, err_msg=dtype)


def test_64_bits_are_what_jax_makes_of_them(way: Callable[..., Any]) -> None:
    def f(x: tf.Tensor) -> Any:
        return tf.argmax(x), tf.cast(x, tf.float64)

    assert [r.dtype for r in way(call_tf(f))(X)] == [jnp.int32, jnp.float32]
    with jax.enable_x64(True):
        wide = jnp.array([1.0, 2.0])
        assert [r.dtype for r in way(call_tf(f))(wide)] == [jnp.int64, jnp.float64]


def test_wide_values_inside_do_not_need_x64() -> None:
    wide = tf.Variable([2**40, 1], dtype=tf.int64)
    result = jax.jit(call_tf(lambda x: x * tf.cast(wide, tf.float32)))(X)
    np.testing.assert_allclose(result, [2.0**40, 2])


def test_captured_tensors_and_variables_keep_their_places(way: Callable[..., Any]) -> None:
    scalar, vector, tensor = tf.Variable(2.0), tf.Variable([3.0, 4.0]), tf.constant([0.5, 0.25])
    big = tf.constant(np.arange(200, dtype=np.float32))

    def f(x: tf.Tensor) -> tf.Tensor:
        return x * scalar + vector * tensor + tf.reduce_sum(big)

    np.testing.assert_allclose(way(call_tf(f))(X), [2 + 1.5 + 19900, 4 + 1 + 19900])


def test_variables_are_read_when_it_runs_or_is_compiled() -> None:
    variable = tf.Variable(2.0)
    f = call_tf(lambda x: x * variable)
    compiled = jax.jit(f)
    assert f(X).tolist() == compiled(X).tolist() == [2, 4]
    variable.assign(5.0)
    assert f(X).tolist() == [5, 10]
    assert compiled(X).tolist() == [2, 4]
    assert jax.jit(lambda x: f(x))(X).tolist() == [5, 10]


def test_variables_can_be_changed_in_eager_mode() -> None:
    count = tf.Variable(0)

    def f(x: tf.Tensor) -> tf.Tensor:
        count.assign_add(1)
        return x

    call_tf(f)(X)
    call_tf(f)(X)
    assert count.numpy() == 2


def test_scan_cond_while_and_map() -> None:
    sine = call_tf(tf.sin)
    expected = np.sin(np.sin(np.sin(X)))
    scanned, _ = jax.lax.scan(lambda c, _: (sine(c), None), X, None, length=3)
    np.testing.assert_allclose(scanned, expected, rtol=1e-6)
    looped = jax.lax.fori_loop(0, 3, lambda _, c: sine(c), X)
    np.testing.assert_allclose(looped, expected, rtol=1e-6)
    for x in (X, -X):
        chosen = jax.lax.cond(x.sum() > 0, sine, lambda x: x, x)
        np.testing.assert_allclose(chosen, np.sin(x) if x.sum() > 0 else x, rtol=1e-6)
    rows = jnp.ones((3, 2))
    np.testing.assert_allclose(jax.lax.map(sine, rows), np.sin(rows), rtol=1e-6)


def test_operations_that_xla_expands() -> None:
    def f(m: tf.Tensor) -> Any:
        q, r = tf.linalg.qr(m)
        return {
            "cholesky": tf.linalg.cholesky(m),
            "inverse": tf.linalg.inv(m),
            "qr": q @ r,
            "singular": tf.linalg.svd(m, compute_uv=False),
            "top": tf.math.top_k(m, 2),
            "erf": tf.math.erf(m),
            "fft": tf.math.real(tf.signal.fft(tf.cast(m, tf.complex64))),
            "conv": tf.nn.conv1d(m[None, :, :, None][0], tf.ones((2, 1, 1)), 1, "SAME"),
            "sort": tf.sort(m),
        }

    root = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    matrix = jnp.asarray(root @ root.T + np.eye(4, dtype=np.float32))
    eager, compiled = call_tf(f)(matrix), jax.jit(call_tf(f))(matrix)
    structure: Any = jax.tree.structure(eager)
    assert structure == jax.tree.structure(compiled)
    for name, value in eager.items():
        for a, b in zip(jax.tree.leaves(value), jax.tree.leaves(compiled[name]), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=name)


def test_sizes_that_only_xla_knows() -> None:
    def f(x: tf.Tensor) -> tf.Tensor:
        # TensorFlow's own inference does not evaluate this.
        return tf.reshape(tf.concat([x, x], 0), tf.cast([tf.size(x) + 0, -1], tf.int32))

    assert jax.jit(call_tf(f))(X).shape == call_tf(f)(X).shape == (2, 2)


def test_one_trace_serves_equal_shapes() -> None:
    traces = []

    def f(x: tf.Tensor) -> tf.Tensor:
        traces.append(x.shape)
        return x

    g = call_tf(f)
    jax.jit(lambda x: g(x) + g(x))(X)
    jax.jit(lambda x: g(x))(X)
    assert len(traces) == 1
    jax.jit(g)(jnp.ones(3))
    assert len(traces) == 2


def test_threads_share_a_function() -> None:
    variable = tf.Variable(3.0)
    f = call_tf(lambda x: tf.sin(x) * variable)

    def gradient(i: int) -> Any:
        return jax.jit(jax.grad(lambda x: f(x).sum()))(jnp.full(2 + i % 3, 0.5))

    with ThreadPoolExecutor(4) as pool:
        for i, result in enumerate(pool.map(gradient, range(6))):
            np.testing.assert_allclose(result, np.full(2 + i % 3, 3 * np.cos(0.5)), rtol=1e-6)


def test_one_function_returns_different_structures() -> None:
    f = call_tf(lambda x: {"small": x} if x.shape[0] < 3 else [x])

    def both(x: Any) -> Any:
        return f(x), f(jnp.concatenate([x, x]))

    small, large = jax.jit(both)(X)
    assert list(small) == ["small"]
    assert isinstance(large, list)


def test_name_and_docstring_are_the_functions() -> None:
    assert call_tf(branching).__name__ == "branching"
    assert call_tf(tf.function(branching)).__name__ == "branching"
    assert "branching" in str(jax.make_jaxpr(call_tf(branching))(X))
