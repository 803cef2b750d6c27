"""Calls of TensorFlow's own operations: eager, in graphs, saved, differentiated, refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import PortableFunction, Target, call_tf, emitters, export
from jax2tf_bridge.emitters import make_operations
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.to_tensorflow import to_tf
from tests.to_tensorflow.operations.running import op_names, portable_of

WITHOUT_XLA = Target.widest(xla=False)
X = np.linspace(-1, 2, 6, dtype=np.float32).reshape(2, 3)
OPEN = ["(b, 3)"]


@jax.custom_vjp
def strange(x: Any) -> Any:
    """Has a derivative that is none of its operations'."""
    return jnp.sin(x)


strange.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * x * x * 5,))


def looping(x: Any) -> Any:
    """Has a loop, a branch and a derivative that TensorFlow has to be told."""
    y = lax.fori_loop(0, 3, lambda i, y: y * strange(x) + i, x)
    return lax.cond(jnp.sum(y) > 0, jnp.cos, jnp.exp, y)


def exported(
    f: Callable[..., Any], *args: Any, shapes: Any = OPEN, **options: Any
) -> PortableFunction:
    options = {"target": WITHOUT_XLA, "platforms": ["cpu"], **options}
    return export(f, polymorphic_shapes=shapes, **options)(*(args or (X,)))


@pytest.fixture(scope="module")
def portable() -> PortableFunction:
    return exported(looping)


def in_graph(f: Any, **options: Any) -> Any:
    return tf.function(f, autograph=False, **options)


def in_open_graph(f: Any) -> Any:
    return in_graph(f, input_signature=[tf.TensorSpec([None, None])])


WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "graph": in_graph,
    "open graph": in_open_graph,
}


@pytest.fixture(scope="module")
def expected_of_looping() -> list[tuple[Any, Any]]:
    """Arguments with two sizes, each with the value and the gradients of two orders."""
    first = jax.grad(lambda x: jnp.sum(looping(x)))

    @jax.jit
    def all_of(x: Any) -> Any:
        return looping(x), first(x), jax.grad(lambda x: jnp.sum(first(x)))(x)

    arguments = [np.resize(X, (batch, 3)) for batch in (2, 3)]
    return [(x, all_of(x)) for x in arguments]


@pytest.mark.costly
@pytest.mark.parametrize("way", WAYS)
def test_values_and_gradients_of_two_orders(
    way: str, portable: PortableFunction, expected_of_looping: list[tuple[Any, Any]]
) -> None:
    f = to_tf(portable)

    def both(x: tf.Tensor) -> list[tf.Tensor]:
        x = tf.identity(x)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = f(x)
            first = inner.gradient(y, x)
        return [y, first, outer.gradient(first, x)]

    call = WAYS[way](both)
    # A graph of known sizes is traced for each size, so one size shows as much as two.
    for x, expected in expected_of_looping[: 1 if way == "graph" else None]:
        for found, value in zip(call(tf.constant(x)), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=2e-5, atol=2e-5)


def test_graphs_have_none_of_xlas_operations(portable: PortableFunction) -> None:
    f = to_tf(portable)

    def gradient(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    names = op_names(in_open_graph(gradient).get_concrete_function().graph)
    assert not {name for name in names if "Xla" in name}


def test_saved_with_its_gradient(
    portable: PortableFunction, expected_of_looping: list[tuple[Any, Any]], tmp_path: Path
) -> None:
    module = tf.Module()
    module.f = in_open_graph(to_tf(portable))
    tf.saved_model.save(
        module,
        str(tmp_path),
        options=tf.saved_model.SaveOptions(experimental_custom_gradients=True),
    )
    loaded = tf.saved_model.load(str(tmp_path))
    array, (value, gradient, _) = expected_of_looping[0]
    x = tf.constant(array)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.f(x)
    np.testing.assert_allclose(y, value, rtol=2e-5)
    np.testing.assert_allclose(tape.gradient(y, x), gradient, rtol=2e-5)


def test_eagerly_a_graph_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shared by all that was made of the function, and by all sizes."""
    made = []

    def counted(*args: Any, **options: Any) -> Any:
        made.append(args)
        return make_operations(*args, **options)

    monkeypatch.setattr(emitters, "make_operations", counted)
    portable = exported(strange)
    for f in (to_tf(portable), to_tf(portable)):
        for batch in (1, 2, 5):
            x = np.resize(X, (batch, 3))
            np.testing.assert_allclose(f(x), np.sin(x), rtol=1e-6)
    assert len(made) == 1


def test_wrong_sizes_are_refused_before_anything_runs(portable: PortableFunction) -> None:
    wrong = "expected shape (b, 3), got (2, 4)"
    for f in (to_tf(portable), in_graph(to_tf(portable))):
        with pytest.raises(Exception, match=r"expected shape \(b, 3\), got \(2, 4\)") as caught:
            f(np.zeros((2, 4), np.float32))
        assert wrong in str(caught.value)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the size of dimension 1 must be 3"):
        in_open_graph(to_tf(portable))(np.zeros((2, 4), np.float32))


def test_without_a_gradient(portable: PortableFunction) -> None:
    f = to_tf(portable, with_gradient=False)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    with pytest.raises(LookupError, match="with_gradient=False"):
        tape.gradient(y, x)


def test_captured_arrays_are_passed_to_the_graph() -> None:
    w = jnp.asarray(np.linspace(0, 1, 3000, dtype=np.float32).reshape(3, 1000))
    portable = exported(lambda x: strange(x @ w))
    assert portable.lifted_constants
    f = to_tf(portable)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    np.testing.assert_allclose(y, np.sin(X @ np.asarray(w)), rtol=1e-4, atol=1e-5)
    expected = jax.grad(lambda x: jnp.sum(strange(x @ w)))(X)
    np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-4)


def test_tensorflow_functions_that_jax_calls() -> None:
    """They keep what they are: a function with an operation that StableHLO has not."""
    layer = tf.function(
        lambda x, y: (tf.strings.length(tf.strings.as_string(x)), tf.math.top_k(y, 2)[0]),
        input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None, 3])],
        autograph=False,
    )

    def f(x: Any) -> Any:
        shapes = (
            jax.ShapeDtypeStruct((x.shape[0], 3), jnp.int32),
            jax.ShapeDtypeStruct((x.shape[0], 2), jnp.float32),
        )
        lengths, largest = call_tf(layer, call_tf_graph=True, output_shape_dtype=shapes)(x, 2 * x)
        return lengths + 1, largest * x[:, :2]

    portable = exported(f)
    expected = (
        np.vectorize(len)(tf.strings.as_string(X).numpy()) + 1,
        np.sort(2 * X, 1)[:, ::-1][:, :2] * X[:, :2],
    )
    function = to_tf(portable, with_gradient=False)
    for call in (function, in_graph(function), in_open_graph(function)):
        for found, value in zip(call(tf.constant(X)), expected, strict=True):
            np.testing.assert_allclose(found, value)


@pytest.mark.parametrize("with_xla", [False, True])
def test_the_platform_chooses_its_branch_when_the_graph_is_made(with_xla: bool) -> None:
    def f(x: Any) -> Any:
        return lax.platform_dependent(
            x, cpu=lambda x: x + 1, cuda=lambda x: jnp.linalg.qr(x)[1], tpu=lambda x: x * 0
        )

    target = None if with_xla else WITHOUT_XLA
    portable = exported(f, shapes=None, target=target, platforms=["tpu", "cuda", "cpu"])
    # CUDA's custom call for qr is no reason to refuse the function.
    function = in_graph(to_tf(portable, with_gradient=False, target=Target.widest(xla=False)))
    np.testing.assert_array_equal(function(X), X + 1)
    names = op_names(function.get_concrete_function(tf.TensorSpec((2, 3))).graph)
    assert not {"StatelessIf", "StatelessCase", "If", "Case", "Qr"} & set(names)
    assert not {name for name in names if "Xla" in name}


@pytest.mark.costly
def test_scanned_arrays_and_keys() -> None:
    def f(key: Any, x: Any) -> Any:
        key = jax.random.wrap_key_data(key)
        total, rows = lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(3), x)
        return total, rows, jax.random.normal(key, x.shape), jax.random.split(key, 2)[0]

    def g(key: Any, x: Any) -> Any:
        *arrays, key = f(key, x)
        return *arrays, jax.random.key_data(key)

    key = np.array([7, 2**32 - 1], np.uint32)
    portable = exported(g, key, X, shapes=[None, "(b, 3)"])
    f_tf = to_tf(portable)
    for batch in (1, 4):
        x = np.resize(X, (batch, 3))
        for found, value in zip(f_tf(key, x), g(key, x), strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_counters_of_loops() -> None:
    """They index without checks, and wrap around as other integers do."""

    def f(x: Any, n: Any) -> Any:
        loop = lax.fori_loop
        rows = loop(0, x.shape[0], lambda i, c: c + x[i] * i, jnp.zeros(3))
        before = loop(0, 2, lambda i, c: c * 2 + x[i - 1], jnp.zeros(3))
        as_far = loop(0, n, lambda i, c: c + x[i % 2] * i, jnp.zeros(3))
        never = loop(2, 2, lambda i, c: c + x[i], jnp.zeros(3))
        beyond = loop(0, 5, lambda i, c: c + x[i], jnp.zeros(3))
        hashed = loop(0, 7, lambda i, h: (h ^ (i * 1540483477)) * 16777619 + i * i, 7)
        powers = loop(1, 9, lambda i, p: p + (i * 100_000) * (i * 100_000) // 7, 0)
        odd = loop(-3, 4, lambda i, c: c + i * i * i // 2 - jnp.abs(i) % 3, 0)
        _, backwards = lax.scan(lambda c, y: (c + y, c * y), x[0], x, reverse=True)
        nested = loop(0, 3, lambda i, c: loop(i, 4, lambda j, c: c + x[j - i, i] * j, c), 0.0)
        return rows, before, as_far, never, beyond, hashed, powers, odd, backwards, nested

    portable = exported(f, X, np.int32(0), shapes=["(b, 3)", None])
    f_tf = to_tf(portable, with_gradient=False)
    for n in (0, 5):
        for batch in (2, 4):
            x = np.resize(X, (batch, 3))
            expected = jax.jit(f)(x, np.int32(n))
            for call in (f_tf, in_graph(f_tf)):
                for found, value in zip(call(x, np.int32(n)), expected, strict=True):
                    np.testing.assert_allclose(found, value, rtol=1e-6)


def test_a_scan_is_what_a_person_would_write() -> None:
    portable = exported(lambda x: lax.scan(lambda c, y: (c * y, c + y), x[0], x), shapes=None)
    graph = in_graph(to_tf(portable)).get_concrete_function(tf.TensorSpec((2, 3))).graph
    (body,) = (f for f in graph.as_graph_def().library.function if "while_body" in f.signature.name)
    names = [node.op for node in body.node_def]
    assert names.count("GatherV2") == 1
    assert not {"Minimum", "Maximum", "BroadcastTo", "Reshape"} & set(names)


def test_what_cannot_be_said_is_refused_before_anything_is_called() -> None:
    text = """
    func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
      %y = stablehlo.custom_call @nobody_knows(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>
      return %y : tensor<2x3xf32>
    }
    """
    with pytest.raises(ModuleError, match="custom call 'nobody_knows'"):
        to_tf(portable_of(text))
