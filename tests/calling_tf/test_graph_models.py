"""Embedded graphs through SavedModels and back, with their gradients."""

from __future__ import annotations

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
    export,
    load,
    read_function,
    save,
    to_tf,
    write_function,
)
from jax2tf_bridge.calling_tf import call_tf
from jax2tf_bridge.errors import FileFormatError, SerializationError
from tests.calling_tf.graph_models import Layers, X, layers

ROWS = "(b, 2)"
LONGER = np.concatenate([X, X * 0.5])


def through_graph(f: Any) -> Any:
    graph = call_tf(f, call_tf_graph=True)
    return lambda x: jnp.cos(graph(x))


def expected(x: Any) -> Any:
    return jnp.cos(layers(x, jnp))


def agrees(f: Any, g: Any, *, order: int = 1) -> None:
    """Fails unless the TensorFlow function f has g's values and derivatives, at two sizes."""
    for x in (X, LONGER):
        tensor = tf.constant(x)
        with tf.GradientTape() as second:
            second.watch(tensor)
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                y = f(tensor)
                total = tf.reduce_sum(y**2)
            if order > 1:
                total = tf.reduce_sum(tape.gradient(total, tensor) ** 2)
        np.testing.assert_allclose(y, g(x), rtol=1e-5, atol=1e-6)

        def of_jax(x: Any) -> Any:
            return (g(x) ** 2).sum()

        def twice(x: Any) -> Any:
            return (jax.grad(of_jax)(x) ** 2).sum()

        found = second.gradient(total, tensor)
        wanted = jax.grad(twice if order > 1 else of_jax)(x)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def saved(f: Any, path: Path) -> Any:
    """Saves a tf.Module with f and its gradient, and loads it again."""
    module = tf.Module()
    module.f = tf.function(f, input_signature=[tf.TensorSpec([None, 2])], autograph=False)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, str(path), options=options)
    return tf.saved_model.load(str(path))


@pytest.mark.slow
def test_graphs_survive_being_saved_loaded_and_saved_again(tmp_path: Path) -> None:
    sine = through_graph(lambda x: tf.sin(x) * 2)
    model = saved(convert(sine, polymorphic_shapes=ROWS), tmp_path / "once")
    again = saved(model.f, tmp_path / "twice")
    for found in (model.f, again.f):
        agrees(found, lambda x: jnp.cos(2 * jnp.sin(x)))


@pytest.mark.slow
def test_save_writes_graphs_and_their_gradients(tmp_path: Path) -> None:
    signature = Signature(through_graph(Layers(loop=False)), args=[X], polymorphic_shapes=ROWS)
    save(tmp_path / "model", signature, vjp_order=2)
    model = tf.saved_model.load(str(tmp_path / "model"))
    serve = model.signatures["serving_default"]
    agrees(lambda x: serve(x=x)["output_0"], expected)
    agrees(lambda x: serve(x=x)["output_0"], expected, order=2)


@pytest.mark.slow
def test_from_jax_to_a_saved_model_to_jax_and_back(tmp_path: Path) -> None:
    def origin(x: Any) -> Any:
        return jnp.tanh(x) * x

    first = saved(convert(origin, polymorphic_shapes=ROWS), tmp_path / "first")
    agrees(convert(through_graph(first.f), polymorphic_shapes=ROWS), lambda x: jnp.cos(origin(x)))
    second = saved(convert(through_graph(first.f), polymorphic_shapes=ROWS), tmp_path / "second")
    agrees(second.f, lambda x: jnp.cos(origin(x)))


@pytest.mark.slow
def test_from_a_saved_model_to_jax_to_a_saved_model_and_back(tmp_path: Path) -> None:
    tf.saved_model.save(Layers(loop=False), str(tmp_path / "layers"))
    loaded = tf.saved_model.load(str(tmp_path / "layers"))
    f = through_graph(loaded)
    np.testing.assert_allclose(f(X), expected(X), rtol=1e-5, atol=1e-6)
    model = saved(convert(f, polymorphic_shapes=ROWS), tmp_path / "model")
    agrees(model.f, expected)
    once_more = call_tf(model.f)
    np.testing.assert_allclose(jax.jit(once_more)(X), expected(X), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_files_hold_graphs(tmp_path: Path) -> None:
    portable = export(through_graph(Layers(loop=False)), polymorphic_shapes=ROWS)(X)
    write_function(tmp_path / "f.jaxfn", portable, vjp_order=2)
    found = to_tf(read_function(tmp_path / "f.jaxfn"))
    agrees(found, expected, order=2)
    agrees(tf.function(found, jit_compile=True, autograph=False), expected)


def test_jax_does_not_run_saved_graphs(tmp_path: Path) -> None:
    sine = through_graph(tf.sin)
    save(tmp_path / "ours", Signature(sine, args=[X], polymorphic_shapes=ROWS), vjp_order=0)
    signature = load(tmp_path / "ours").signatures["serving_default"]
    with pytest.raises(SerializationError, match=r"calls TensorFlow graphs \(sin\), which JAX can"):
        signature(x=X)
    saved(convert(sine, polymorphic_shapes=ROWS), tmp_path / "other")
    with pytest.raises(FileFormatError, match="calls TensorFlow functions itself"):
        load(tmp_path / "other")
