"""Saved models without the function that their layers were made of, and without JAX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import KerasLayer, Target
from jax2tf_bridge.errors import FileFormatError, StructureError
from tests.fresh_process import run_python
from tests.keras_layer.functions import X, dense, dense_params, norm, norm_params

RELOADS = """
import json, sys
import keras, numpy as np, tensorflow as tf

folder = sys.argv[1]
try:
    keras.models.load_model(f"{folder}/model.keras")
    raise SystemExit("loaded without the class")
except TypeError as e:
    unknown = str(e)
from jax2tf_bridge import KerasLayer

x = np.load(f"{folder}/x.npy")
found = {"unknown": unknown}
model = keras.models.load_model(f"{folder}/model.keras")
found["outputs"] = model(x)["y"].numpy().tolist()
one, other = (model(x, training=True)["y"].numpy() for _ in range(2))
found["draws"] = float(np.abs(one - other).max())
layer = model.layers[-1]
found["trained"] = [w.path for w in layer.trainable_weights]
before = {name: w.numpy() for name, w in layer.params.items()}
model.compile("adam", {"y": "mse"})
model.fit(x, {"y": np.zeros((len(x), 2), np.float32)}, batch_size=4, verbose=0)
found["changed"] = [n for n, w in layer.params.items() if np.abs(w.numpy() - before[n]).max() > 0]
model.save(f"{folder}/again.keras")
again = keras.models.load_model(f"{folder}/again.keras")
np.testing.assert_allclose(again(x)["y"], model(x)["y"], rtol=1e-6)
again.export(f"{folder}/exported", verbose=False)
np.save(f"{folder}/y.npy", again(x)["y"].numpy())
assert not {"jax", "jaxlib"} & set(sys.modules)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_fresh_process_without_jax_reloads_trains_and_exports(tmp_path: Path) -> None:
    layer = KerasLayer(norm, norm_params(), mutable=["batch_stats"], name="norm")
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layer(inputs))
    layer.params["params/kernel"].assign(np.full((4, 2), 0.5))
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    found: dict[str, Any] = json.loads(
        run_python(RELOADS, str(tmp_path), without_jax=True).splitlines()[-1]
    )
    np.testing.assert_allclose(found["outputs"], model(X)["y"], rtol=1e-5)
    assert found["draws"] > 0.1
    assert found["trained"] == ["norm/params/kernel"]
    assert found["changed"] == ["batch_stats/mean", "params/kernel"]
    assert "Could not locate class 'KerasLayer'. Make sure custom classes" in found["unknown"]
    exported = tf.saved_model.load(tmp_path / "exported")
    served = exported.serve(X)
    np.testing.assert_allclose(served["y"], np.load(tmp_path / "y.npy"), rtol=1e-5)
    names = {variable.name for variable in exported.variables}
    assert {"norm/params/kernel:0", "norm/constants/constant_0:0"} <= names


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    layer = KerasLayer(dense, dense_params(), name="net", trainable=["dense"])
    layer.build((None, 4))
    written: dict[str, Any] = json.loads(json.dumps(layer.get_config()))
    return written


def test_config_makes_the_layer_again(config: dict[str, Any]) -> None:
    layer = KerasLayer.from_config(config)
    assert layer.get_config() == config
    assert [w.path for w in layer.trainable_weights] == ["net/dense/bias", "net/dense/kernel"]
    assert not layer.params["out/0"].numpy().any()
    assert layer.compute_output_shape((None, 4)) == (None, 2)
    assert not KerasLayer.from_config({**config, "trainable": False}).trainable_weights


def test_archives_hold_float8(tmp_path: Path) -> None:
    """Neither tf.zeros nor HDF5 has it."""
    weights = {"w": jnp.arange(8, dtype=jnp.float8_e4m3fn).reshape(4, 2), "gain": np.float32(2)}
    layer = KerasLayer(lambda params, x: x @ params["w"].astype(x.dtype) * params["gain"], weights)
    model = keras.Sequential([keras.Input((4,)), layer])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [w.dtype for w in again.weights] == ["float32", "float8_e4m3fn"]
    np.testing.assert_array_equal(again(X), model(X))


def test_tensorflows_own_operations_stay_these() -> None:
    layer = KerasLayer(dense, dense_params(), target=Target.widest(xla=False))
    layer(keras.KerasTensor((None, 4)))
    again = KerasLayer.from_config(json.loads(json.dumps(layer.get_config())))
    for name, variable in layer.params.items():
        again.params[name].assign(variable)
    x, gradients = tf.constant(X), []
    for each in (layer, again):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(each(x) ** 2)
        gradients.append(tape.gradient(total, [v.value for v in each.trainable_variables]))
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    graph = tf.function(again).get_concrete_function(x).graph
    kinds = {op.type for op in graph.get_operations()}
    assert "MatMul" in kinds
    assert "XlaCallModule" not in kinds


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"format": 2, "bridge": "9.1"},
            r"The layer 'net' was written by jax2tf-bridge 9\.1, in format 2\. The installed "
            r"release \S+ reads up to 1: upgrade jax2tf-bridge\.",
        ),
        (
            {"trained": "all"},
            r"The config of the layer 'net' is damaged: trained: expected a list, got 'all'\. "
            r"Save the model again\.",
        ),
        ({"inference": None}, r"is damaged: inference: expected an object"),
        ({"more": 1}, r"is damaged: .*expected the fields bridge, format"),
    ],
)
def test_what_is_wrong_with_a_config_is_named(
    change: dict[str, Any], text: str, config: dict[str, Any]
) -> None:
    with pytest.raises(FileFormatError, match=text):
        KerasLayer.from_config({**config, "model": {**config["model"], **change}})


def test_weights_of_another_layer_are_refused(config: dict[str, Any]) -> None:
    layer = KerasLayer.from_config(config)
    store: dict[str, Any] = {}
    layer.save_own_variables(store)
    assert list(store) == ["dense.bias", "dense.kernel", "out.0"]
    store["dense.gain"] = store.pop("dense.bias")
    with pytest.raises(StructureError) as caught:
        layer.load_own_variables(store)
    assert str(caught.value) == (
        "The weights of the file are not those of the layer 'net':\n"
        "  - dense.bias is missing: did you mean dense.gain?\n"
        "  - dense.gain is not expected\n"
        "Load the weights of a layer of the same function."
    )
