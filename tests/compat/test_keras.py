"""Keras converts by the bridge: JaxLayer in TensorFlow's backend, export in JAX's."""

import importlib.util
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from scripts._env import ROOT
from tests.consumers.environments import environment, newest_python, process_environment
from tests.consumers.harness import OPENVINO
from tests.fresh_process import run_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed"),
]

SERVES = """
import sys
import numpy as np, tensorflow as tf
for path, endpoint in zip(sys.argv[1::2], sys.argv[2::2]):
    values = np.load(path + ".npz")
    loaded = tf.saved_model.load(path)
    serve = getattr(loaded, endpoint)
    np.testing.assert_allclose(serve(tf.constant(values["x"])), values["y"], rtol=1e-4, atol=1e-5)
    assert serve(tf.constant(values["x"][:1])).shape[0] == 1
    print("served")
"""
LAYER = """
import sys
import jax, jax.numpy as jnp, keras, numpy as np, tensorflow as tf
from jax2tf_bridge.compat import as_jax2tf

def init_fn(rng, inputs):
    return {"w": jax.random.normal(rng, (inputs.shape[-1], 3)), "b": jnp.zeros(3)}

def call_fn(params, inputs):
    padded = jnp.pad(inputs, ((0, -inputs.shape[0] % 8), (0, 0)))  # JAX alone cannot decide it
    chunks = padded.reshape(-1, 8, inputs.shape[-1]).sum()
    return jax.nn.gelu(inputs @ params["w"] + params["b"]) + 0.0 * chunks

keras.utils.set_random_seed(0)
with as_jax2tf():
    inputs = keras.Input((4,))
    layer = keras.layers.JaxLayer(call_fn=call_fn, init_fn=init_fn)
    model = keras.Model(inputs, keras.layers.Dense(2)(layer(inputs)))
x = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
before = [w.numpy() for w in layer.weights]
model.compile("sgd", "mse")
history = model.fit(x, np.ones((10, 2), np.float32), epochs=5, batch_size=4, verbose=0)
losses = history.history["loss"]
assert losses[-1] < losses[0], losses
assert all(np.abs(w.numpy() - b).max() > 0 for w, b in zip(layer.weights, before))
y = model.predict(x, verbose=0)
w, b = (next(v.numpy() for v in layer.weights if len(v.shape) == rank) for rank in (2, 1))
kernel, bias = (v.numpy() for v in model.layers[-1].weights)
expected = jax.nn.gelu(x @ w + b) @ kernel + bias
np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
model.export(sys.argv[1], verbose=False)
np.savez(sys.argv[1] + ".npz", x=x, y=y)
model.save(sys.argv[1] + ".keras")
custom = {"call_fn": call_fn, "init_fn": init_fn}
with as_jax2tf():
    again = keras.models.load_model(sys.argv[1] + ".keras", custom_objects=custom, safe_mode=False)
np.testing.assert_allclose(again.predict(x, verbose=0), y, rtol=1e-5)
"""
BACKEND = """
import sys
import keras, numpy as np, tensorflow as tf
from keras.export import ExportArchive
from jax2tf_bridge.compat import as_jax2tf

keras.utils.set_random_seed(0)
model = keras.Sequential([
    keras.Input((None, 4)),
    keras.layers.Dense(8, activation="gelu"),
    keras.layers.BatchNormalization(),
    keras.layers.LSTM(6, return_sequences=True),
    keras.layers.GlobalAveragePooling1D(),
    keras.layers.Dropout(0.5),
    keras.layers.Dense(2),
])
x = np.random.default_rng(0).normal(size=(5, 7, 4)).astype(np.float32)
y = model.predict(x, verbose=0)
with as_jax2tf():
    model.export(sys.argv[1], verbose=False)
    archive = ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "call", model.call, [tf.TensorSpec((None, 7, 4))], jax2tf_kwargs={"with_gradient": False}
    )
    archive.write_out(sys.argv[1] + "_archive", verbose=False)
for name in ("", "_archive"):
    np.savez(sys.argv[1] + name + ".npz", x=x, y=y)
"""
OPENVINO_EXPORT = """
import sys
import keras, numpy as np, openvino
from jax2tf_bridge.compat import as_jax2tf

keras.utils.set_random_seed(0)
model = keras.Sequential([
    keras.Input((8, 8, 3)),
    keras.layers.Conv2D(4, 3, activation="relu"),
    keras.layers.GlobalAveragePooling2D(),
    keras.layers.Dense(2),
])
x = np.random.default_rng(0).normal(size=(5, 8, 8, 3)).astype(np.float32)
y = model.predict(x, verbose=0)
with as_jax2tf():
    model.export(sys.argv[1] + "/model.xml", format="openvino", verbose=False)
compiled = openvino.compile_model(
    sys.argv[1] + "/model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
)
for rows in (5, 2):
    (result,) = compiled(x[:rows]).values()
    np.testing.assert_allclose(result, y[:rows], rtol=1e-4, atol=1e-5)
print("converted")
"""


def test_jax_layer_trains_and_is_served_without_jax(tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    run_python(LAYER, model, env={"KERAS_BACKEND": "tensorflow"})
    assert run_python(SERVES, model, "serve", without_jax=True) == "served"


def test_models_of_the_jax_backend_are_served_without_jax(tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    run_python(BACKEND, model, env={"KERAS_BACKEND": "jax"})
    both = (model, "serve", f"{model}_archive", "call")
    assert run_python(SERVES, *both, without_jax=True).split() == ["served", "served"]


@pytest.mark.consumers
def test_openvino_gets_the_outputs_of_the_model_alone(tmp_path: Path) -> None:
    versions = [f"{name}=={version(name)}" for name in ("jax", "keras", "tensorflow-cpu")]
    base = newest_python(sys.version_info[:2], sys.version_info[:2])
    assert base is not None
    python = environment("keras-openvino", base, *versions, OPENVINO, "{plain}")
    options = process_environment({"KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)})
    command = [str(python), "-c", OPENVINO_EXPORT, str(tmp_path)]
    ended = subprocess.run(command, env=options, capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == "converted", ended.stderr[-3000:]
