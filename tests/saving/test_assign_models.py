"""assign_weights(): into Keras models, and into SavedModels of the bridge and of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature, save
from jax2tf_bridge.errors import ShapeError, StructureError
from jax2tf_bridge.saving import assign_weights

# Private: the names of all variables, which assign_weights shows only in errors.
from jax2tf_bridge.saving._assign_weights import find_variables
from tests.saving.saved_functions import DENSE, PARAMS, X, dense

OTHER: Any = jax.tree_util.tree_map(lambda leaf: leaf * 2, PARAMS)


@pytest.fixture
def keras() -> Iterator[Any]:
    """Imports Keras, which counts the layers of a process in their names, and forgets them."""
    tf.keras.backend.clear_session()
    yield tf.keras
    tf.keras.backend.clear_session()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "dense"
    save(path, DENSE, params=PARAMS, vjp_order=0)
    return path


def test_a_model_that_save_wrote(folder: Path) -> None:
    model = tf.saved_model.load(folder)
    report = assign_weights(model, OTHER)
    assert list(report.assigned) == ["dense/bias", "dense/kernel", "steps"]
    np.testing.assert_allclose(model.serving_default(X), dense(OTHER, X), rtol=1e-6)
    named = model.signatures["serving_default"](x=X)["output_0"]
    np.testing.assert_allclose(named, dense(OTHER, X), rtol=1e-6)
    with pytest.raises(ShapeError, match=r"dense/kernel: expected shape \(3, 2\), got \(2, 3\)"):
        assign_weights(model, {"dense": {"kernel": X}}, partial=True)


def test_the_arrays_that_it_captured_are_no_weights(tmp_path: Path) -> None:
    table = np.arange(2000, dtype=np.float32) % 2
    function = Signature(lambda w, x: w * x + jnp.sum(table), args=[np.float32(1)])
    save(tmp_path / "m", function, params=np.float32(2), vjp_order=0)
    model = tf.saved_model.load(tmp_path / "m")
    assert len(model.constants) == 1
    # Weights that are one array have no path; their variable has the name of the argument.
    report = assign_weights(model, np.float32(3))
    assert report.assigned == {"params": ""}
    np.testing.assert_allclose(model.serving_default(np.float32(1)), 1003)
    with pytest.raises(StructureError, match="constant"):
        assign_weights(model, {"params": 1.0, "constants": {"constant": table}})


def test_names_that_tensorflow_does_not_take(tmp_path: Path) -> None:
    weights = {"a b": np.float32(1), "a_b": np.float32(10), "c/d": np.float32(100)}
    function = Signature(lambda p, x: x * p["a b"] + p["a_b"] + p["c/d"], args=[X])
    save(tmp_path / "m", function, params=dict.fromkeys(weights, np.float32(0)), vjp_order=0)
    model = tf.saved_model.load(tmp_path / "m")
    report = assign_weights(model, weights | {"e": {}})
    assert report.assigned == {"a_b": "a b", "a_b_1": "a_b", "c_d": "c~1d"}
    np.testing.assert_allclose(model.serving_default(X), X + 110)


def layers(keras: Any) -> list[Any]:
    return [keras.layers.Dense(2, name="first"), keras.layers.BatchNormalization(name="norm")]


WEIGHTS: Any = {
    "first": {"kernel": np.ones((3, 2), np.float32), "bias": np.full(2, 2, np.float32)},
    "norm": {
        "gamma": np.full(2, 3, np.float32),
        "beta": np.full(2, 4, np.float32),
        "moving_mean": np.full(2, 5, np.float32),
        "moving_variance": np.full(2, 6, np.float32),
    },
}


def assert_assigned(model: Any) -> None:
    found = {v.names[0]: np.asarray(v.variable) for v in find_variables(model).values()}
    assert len(found) == 6
    for name, value in found.items():
        layer, _, weight = name.rpartition("/")
        np.testing.assert_array_equal(value, WEIGHTS[layer.rpartition("/")[2]][weight])


@pytest.mark.slow
def test_a_functional_model_of_keras(keras: Any) -> None:
    inputs = outputs = keras.Input((3,))
    for layer in layers(keras):
        outputs = layer(outputs)
    model = keras.Model(inputs, outputs)
    report = assign_weights(model, WEIGHTS)
    assert set(report.assigned) == {f"{a}/{b}" for a in WEIGHTS for b in WEIGHTS[a]}
    assert_assigned(model)
    np.testing.assert_allclose(
        model(X), ((X @ np.ones((3, 2)) + 2) - 5) / np.sqrt(6 + 1e-3) * 3 + 4, rtol=1e-5
    )


@pytest.mark.slow
def test_a_sequential_model_of_keras_with_and_without_its_name(keras: Any) -> None:
    model = keras.Sequential(layers(keras))
    with pytest.raises(StructureError, match="a Keras model has them once it was built or called"):
        assign_weights(model, WEIGHTS)
    model.build((None, 3))
    assign_weights(model, WEIGHTS)
    assert_assigned(model)
    names = {f"{model.name}/first/{name}": value * 7 for name, value in WEIGHTS["first"].items()}
    assign_weights(model, names, partial=True)
    np.testing.assert_array_equal(np.asarray(model.layers[0].kernel), 7)


@pytest.mark.slow
def test_keras_within_a_module(keras: Any) -> None:
    module = tf.Module()
    module.head = keras.Sequential(layers(keras))
    module.head.build((None, 3))
    module.scale = tf.Variable(1.0)
    assign_weights(module, {"head": WEIGHTS, "scale": 2.0})
    assert_assigned(module.head)
    assert float(module.scale) == 2


@pytest.mark.slow
def test_a_trained_model_keeps_the_state_of_its_optimizer(keras: Any) -> None:
    model = keras.Sequential(layers(keras))
    model.compile("adam", "mse")
    model.fit(X, np.ones((2, 2)), verbose=0)
    before = [np.asarray(v) for v in model.optimizer.variables]
    assign_weights(model, WEIGHTS)
    for old, new in zip(before, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(old, np.asarray(new))


def test_a_saved_module_of_someone_else(tmp_path: Path) -> None:
    module = tf.Module()
    module.layers = [{"kernel": tf.Variable(tf.zeros((3, 2)), name="w")}]
    module.call = tf.function(
        lambda x: x @ module.layers[0]["kernel"],
        input_signature=[tf.TensorSpec([None, 3])],
        autograph=False,
    )
    tf.saved_model.save(module, str(tmp_path))
    model = tf.saved_model.load(tmp_path)
    kernel = np.ones((3, 2), np.float32)
    assert assign_weights(model, {"layers/0/kernel": kernel}).missing == ()
    np.testing.assert_allclose(model.call(X), X @ kernel)
    assign_weights(model, {"w": kernel * 2})
    np.testing.assert_allclose(model.call(X), X @ kernel * 2)


@pytest.mark.slow
def test_a_keras_model_that_was_exported(keras: Any, tmp_path: Path) -> None:
    inputs = outputs = keras.Input((3,))
    for layer in layers(keras):
        outputs = layer(outputs)
    keras.Model(inputs, outputs).export(tmp_path / "m", verbose=False)
    model = tf.saved_model.load(tmp_path / "m")
    assign_weights(model, WEIGHTS)
    expected = ((X @ np.ones((3, 2)) + 2) - 5) / np.sqrt(6 + 1e-3) * 3 + 4
    np.testing.assert_allclose(model.serve(X), expected, rtol=1e-5)
