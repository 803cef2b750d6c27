"""Layers in models: names, shapes, training as JAX does it."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import (
    KerasLayer,
    Padding,
    Signature,
    Target,
    export,
    read_weights,
    save,
    write_function,
    write_weights,
)
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.storage import as_path, on_disk
from tests.keras_layer.functions import (
    TABLE,
    X,
    Y,
    dense,
    dense_params,
    norm,
    norm_params,
    pooled,
    pooled_params,
)

optax: Any = pytest.importorskip("optax", reason="optax is not installed")


def functional(layer: KerasLayer) -> Any:
    inputs = keras.Input((4,))
    return keras.Model(inputs, layer(inputs))


def values(layer: KerasLayer) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in layer.params.items()}


@pytest.fixture(scope="module")
def portable() -> Any:
    return export(dense, polymorphic_shapes=[None, "(b, 4)"])(dense_params(), X).with_vjp(1)


def test_weights_are_the_layers_own_by_path(portable: Any) -> None:
    layer = KerasLayer(portable, dense_params(), name="net")
    assert list(layer.params) == ["dense/bias", "dense/kernel", "out/0"]
    assert [w.path for w in layer.weights] == ["net/dense/bias", "net/dense/kernel", "net/out/0"]
    assert [tuple(w.shape) for w in layer.trainable_weights] == [(3,), (4, 3), (3, 2)]
    np.testing.assert_array_equal(layer.params["out/0"], dense_params()["out"][0])
    model = functional(layer)
    assert (model.output_shape, model.count_params()) == ((None, 2), 21)
    assert layer.compute_output_shape((None, 4)) == (None, 2)
    assert layer.compute_output_shape((7, 4)) == (7, 2)
    # Floats are cast as Keras casts them.
    np.testing.assert_allclose(layer(X.astype(np.float64)), dense(dense_params(), X), rtol=1e-5)


def test_weights_return_to_jax_by_a_file(portable: Any, tmp_path: Path) -> None:
    layer = KerasLayer(portable, dense_params(), name="net")
    layer.params["out/0"].assign_add(np.ones((3, 2), np.float32))
    write_weights(tmp_path / "weights.msgpack", layer.params)
    params = read_weights(tmp_path / "weights.msgpack", target=dense_params(), strict=True)
    np.testing.assert_allclose(dense(params, X), layer(X), rtol=1e-5)
    write_weights(tmp_path / "nested.msgpack", {"layer": [layer.params["out/0"]]})
    nested = read_weights(tmp_path / "nested.msgpack")
    np.testing.assert_array_equal(nested["layer"]["0"], dense_params()["out"][0] + 1)


OPTIMIZERS: dict[str, Any] = {
    "sgd": (
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: optax.sgd(0.1, momentum=0.9),
    ),
    "adam": (
        lambda: keras.optimizers.Adam(0.1, epsilon=1e-7),
        lambda: optax.adam(0.1, eps=1e-7),
    ),
}


@pytest.mark.costly
@pytest.mark.parametrize(("name", "xla"), [("sgd", True), ("adam", False)])
def test_fit_is_what_the_same_steps_are_in_jax(name: str, xla: bool, portable: Any) -> None:
    in_keras, in_jax = OPTIMIZERS[name]
    layer = KerasLayer(portable, dense_params(), target=Target.widest(xla=xla))
    model = functional(layer)
    model.compile(in_keras(), "mse")
    losses = model.fit(X, Y, epochs=3, batch_size=6, verbose=0).history["loss"]

    def loss(params: Any) -> Any:
        return ((dense(params, X) - Y) ** 2).mean()

    params, optimizer = dense_params(), in_jax()
    state, expected = optimizer.init(params), []
    for _ in range(3):
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        params = optax.apply_updates(params, updates)
        expected.append(float(value))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    found = values(layer)
    np.testing.assert_allclose(found["dense/kernel"], params["dense"]["kernel"], rtol=1e-3)
    np.testing.assert_allclose(found["dense/bias"], params["dense"]["bias"], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(found["out/0"], params["out"][0], rtol=1e-3)


@pytest.fixture(scope="module")
def norm_layer() -> KerasLayer:
    """A layer of a JAX function that updates statistics and draws random numbers."""
    layer = KerasLayer(norm, norm_params(), mutable=["batch_stats"], seed=5, name="norm")
    layer(keras.KerasTensor((None, 4)))
    return layer


def test_training_updates_what_is_mutable(norm_layer: KerasLayer) -> None:
    assert [w.path for w in norm_layer.trainable_weights] == ["norm/params/kernel"]
    frozen = ["norm/batch_stats/mean", "norm/constants/constant_0"]
    assert [w.path for w in norm_layer.non_trainable_weights] == frozen
    before = values(norm_layer)
    expected = norm(norm_params(), X, jax.random.key(0), False)["y"]
    np.testing.assert_allclose(norm_layer(X)["y"], expected, rtol=1e-4)
    one, other = (norm_layer(X, training=True)["y"].numpy() for _ in range(2))
    assert np.abs(one - other).max() > 0.1  # drawn anew
    mean = before["batch_stats/mean"]
    for _ in range(2):
        mean = 0.9 * mean + 0.1 * X.mean(0)
    np.testing.assert_allclose(values(norm_layer)["batch_stats/mean"], mean, rtol=1e-5)
    norm_layer.params["batch_stats/mean"].assign(before["batch_stats/mean"])


@pytest.mark.costly
def test_subclassed_models_and_fit_pass_training_on(norm_layer: KerasLayer) -> None:
    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm_layer

        def call(self, x: Any, training: bool = False) -> Any:
            return self.norm(x, training=training)["y"]

    before, model = values(norm_layer), Model()
    model.compile("adam", "mse")
    model.fit(X, Y, batch_size=4, verbose=0)  # of 4 and of 2
    after = values(norm_layer)
    assert all(np.abs(after[name] - before[name]).max() > 1e-5 for name in after)
    assert model.predict(X[:1], verbose=0).shape == (1, 2)
    norm_layer.trainable = False
    assert not norm_layer.trainable_weights
    norm_layer.trainable = True
    for name, value in before.items():
        norm_layer.params[name].assign(value)


def test_archives_hold_the_function(norm_layer: KerasLayer) -> None:
    """tests/keras_layer/test_reloading.py reloads without JAX."""
    model = keras.Sequential([keras.Input((4,)), norm_layer, Take()])
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(again(X), model(X), rtol=1e-6)
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    np.testing.assert_allclose(copy(X), model(X), rtol=1e-6)


@keras.saving.register_keras_serializable(package="tests")
class Take(keras.layers.Layer):  # type: ignore[misc]
    """Takes the entry "y" of a dict."""

    def call(self, outputs: Any) -> Any:
        return outputs["y"]


def test_sizes_and_seeds_may_be_numbers_of_numpy() -> None:
    seed: Any = np.int64(5)
    layer = KerasLayer(rng_first, W, seed=seed)
    layer.build((None, np.int64(4)))
    assert layer.compute_output_shape((np.int32(3), 4)) == (3, 2)
    assert layer.get_config()["seed"] == 5


def test_several_inputs_of_open_sizes() -> None:
    layer = KerasLayer(pooled, pooled_params())
    ids, mask = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="bool")
    assert layer([ids, mask]).shape == (None, 5)
    assert layer({"mask": mask, "ids": ids}).shape == (None, 5)
    assert layer.compute_output_shape({"mask": (3, None), "ids": (3, None)}) == (3, 5)
    model = keras.Model([ids, mask], layer([ids, mask]))
    numbers = np.array([[1, 2, 3], [4, 5, 6]])  # of 64 bits
    real = np.array([[True, True, False]] * 2)
    expected = pooled(pooled_params(), numbers, real)
    np.testing.assert_allclose(model([numbers, real]), expected, rtol=1e-5)
    # One batch, and one length, which the function needs to be the same.
    state: Any = layer._state
    (portable,) = [function.portable for function in state.model.functions]
    assert portable.requirements == ("d1 == d2",)
    named = KerasLayer(pooled, pooled_params(), polymorphic_shapes=["(b, n)", "(b, n)"])
    assert named([ids, mask]).shape == (None, 5)


def test_saved_models_and_files(tmp_path: Path, portable: Any) -> None:
    def train(params: Any, x: Any) -> Any:
        return 2 * dense(params, x)

    signatures = {
        "serving_default": Signature(portable, input_names={"x": "image"}),
        "train": Signature(train, args=[X], polymorphic_shapes="(b, 4)"),
    }
    save(tmp_path / "model", signatures, params=dense_params(), trainable=["dense"])
    layer = KerasLayer(tmp_path / "model", training_function="train")
    expected = dense(dense_params(), X)
    np.testing.assert_allclose(layer({"image": X}), expected, rtol=1e-5)
    np.testing.assert_allclose(layer(X, training=True), 2 * expected, rtol=1e-5)
    names = ["dense/bias", "dense/kernel"]
    assert [n for n, w in layer.params.items() if w.trainable] == names
    assert len(KerasLayer(str(tmp_path / "model"), trainable=True).trainable_weights) == 3
    frozen = KerasLayer(tmp_path / "model", trainable=False)
    assert not frozen.trainable_weights
    frozen.trainable = True
    assert [n for n, w in frozen.params.items() if w.trainable] == names
    write_function(tmp_path / "net.jaxfn", portable)
    write_weights(tmp_path / "net.msgpack", dense_params())
    layer = KerasLayer(tmp_path / "net.jaxfn", tmp_path / "net.msgpack", trainable="out")
    assert [w.path.split("/", 1)[1] for w in layer.trainable_weights] == ["out/0"]
    np.testing.assert_allclose(layer(X), expected, rtol=1e-5)


def test_saved_models_behind_schemes_and_in_folders_with_brackets(
    tmp_path: Path, portable: Any
) -> None:
    save("memory://layers/model", portable, params=dense_params())
    with on_disk(as_path("memory://layers/model")) as copy:
        shutil.copytree(copy, tmp_path / "model [1]")
    expected = dense(dense_params(), X)
    for path in ("memory://layers/model/", tmp_path / "model [1]"):
        np.testing.assert_allclose(KerasLayer(path)(X), expected, rtol=1e-5)
    text = r"^memory://layers is not a SavedModel: it has no .*\. There is one in memory://layers/model\.$"
    with pytest.raises(FileFormatError, match=text):
        KerasLayer("memory://layers")


def test_masks_that_buckets_fill_are_inputs(tmp_path: Path) -> None:
    numbers, real = np.array([[1, 2, 3]], np.int32), np.array([[True, True, False]])
    signature = Signature(
        pooled,
        args=[numbers, real],
        polymorphic_shapes="(b, n)",
        input_names={"ids": "words"},
        padding=Padding(mask="mask", buckets={"n": [4]}, unchecked_padding=["n"]),
    )
    save(tmp_path / "model", signature, params=pooled_params(), warm_up=False)
    layer = KerasLayer(tmp_path / "model")
    expected = pooled(pooled_params(), numbers, real)
    np.testing.assert_allclose(layer({"words": numbers, "mask": real}), expected, rtol=1e-5)
    np.testing.assert_allclose(layer([numbers, real]), expected, rtol=1e-5)


def test_lifted_arrays_of_saved_models(tmp_path: Path) -> None:
    def shifted(params: Any, x: Any) -> Any:
        return x @ params + jnp.asarray(TABLE)[0, :4]

    signature = Signature(shifted, args=[X], polymorphic_shapes="(b, 4)")
    save(tmp_path / "model", signature, params=np.eye(4, dtype=np.float32))
    layer = KerasLayer(tmp_path / "model")
    assert [w.path.split("/", 1)[1] for w in layer.weights] == ["params", "constants/constant_0"]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(X))
    np.testing.assert_allclose(layer(X), X + TABLE[0, :4], rtol=1e-5)
    gradient = tape.gradient(total, layer.params["params"].value)
    np.testing.assert_allclose(gradient, np.tile(X.sum(0)[:, None], 4), rtol=1e-4)


def test_functions_are_exported_as_they_are_within_a_tf_function() -> None:
    files: list[str] = []

    def scaled(params: Any, x: Any) -> Any:
        files.append(sys._getframe().f_code.co_filename)
        return x @ params["w"] if x.shape[1] > 1 else x

    layer = KerasLayer(scaled, W)

    @tf.function
    def run(x: Any) -> Any:
        if tf.reduce_sum(x) > 0:
            return layer(x)
        return -layer(x)

    np.testing.assert_allclose(run(X), np.abs(X.sum()) / X.sum() * (X @ W["w"]), rtol=1e-5)
    assert set(files) == {__file__}  # AutoGraph runs a rewritten copy


def test_mixed_precision_leaves_the_functions_dtypes(portable: Any) -> None:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        layer = KerasLayer(portable, dense_params())
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), layer])
        assert model(X).dtype == "float32"
        assert layer.params["out/0"].dtype == "float32"
    finally:
        keras.config.set_dtype_policy(before)


W = {"w": np.ones((4, 2), np.float32)}


def rng_first(params: Any, rng: Any, x: Any, training: bool) -> Any:
    return x @ params["w"]


def training_first(params: Any, training: bool, x: Any, *, y: Any) -> Any:
    return (x + y) @ params["w"]


def optional(params: Any, x: Any, y: Any = None) -> Any:
    return x @ params["w"] if y is None else (x + y) @ params["w"]


def variadic(params: Any, *xs: Any) -> Any:
    return xs[0] @ params["w"]


def nested(params: Any, batch: Any) -> Any:
    return (batch["x"] + batch["y"]) @ params["w"]


ONE = keras.KerasTensor((None, 4))


@pytest.mark.parametrize(
    ("function", "inputs", "paths"),
    [
        (rng_first, ONE, ["x"]),
        (training_first, [ONE, ONE], ["x", "y"]),
        (training_first, {"y": ONE, "x": ONE}, ["x", "y"]),
        (optional, ONE, ["x"]),
        (optional, {"x": ONE, "y": ONE}, ["x", "y"]),
        (variadic, ONE, ["xs[0]"]),
        (nested, {"x": ONE, "y": ONE}, ["batch['x']", "batch['y']"]),
    ],
)
def test_arguments_are_found_by_name(function: Any, inputs: Any, paths: list[str]) -> None:
    layer = KerasLayer(function, W)
    assert layer(inputs).shape == (None, 2)
    assert layer(inputs, training=True).shape == (None, 2)
    state: Any = layer._state
    for each in state.model.functions:
        assert [path for path, _ in each.inputs] == paths
