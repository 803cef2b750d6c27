"""orbax-export writes SavedModels by the bridge, without a change in its code."""

import importlib.util
from pathlib import Path

import pytest

from tests.fresh_process import run_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("orbax") is None
        or importlib.util.find_spec("orbax.export") is None,
        reason="orbax-export is not installed",
    ),
]

EXPORTS = """
import sys
import jax, jax.numpy as jnp, numpy as np, tensorflow as tf
import orbax.export as oe
from jax2tf_bridge.compat import as_jax2tf

rng = np.random.default_rng(0)
params = {"w": rng.normal(size=(4, 8)).astype(np.float32), "b": np.zeros(8, np.float32)}

def apply(params, batch):
    x = batch["x"]
    padded = jnp.pad(x, ((0, -x.shape[0] % 8), (0, 0)))  # JAX alone cannot decide this size
    rows = padded.reshape(-1, 8, 4).sum(axis=1)
    total = jax.nn.gelu(x).sum()  # a composite in the newest JAX
    return {"y": jnp.tanh(x @ params["w"] + params["b"]), "rows": rows, "total": total}

def signature(name):
    return oe.ServingConfig(
        name,
        input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x")],
        tf_preprocessor=lambda x: {"x": x},
        tf_postprocessor=lambda y: {"y": y["y"], "rows": y["rows"]},
    )

with as_jax2tf():
    module = oe.JaxModule(
        params,
        apply,
        input_polymorphic_shape={"x": "(b, 4)"},
        trainable=True,
        jax2tf_kwargs={"native_serialization_platforms": ("cpu", "tpu")},
    )
oe.ExportManager(module, [signature("serving_default")]).save(sys.argv[1])
with as_jax2tf():  # all of it within
    manager = oe.ExportManager(
        oe.JaxModule(params, apply, input_polymorphic_shape={"x": "(b, ...)"}, trainable=False),
        [signature("serving_default"), signature("other")],
    )
    manager.save(sys.argv[1] + "_frozen")
x = rng.normal(size=(5, 4)).astype(np.float32)
np.savez(sys.argv[1] + ".npz", x=x, y=apply(params, {"x": x})["y"])
"""
SERVES = """
import sys
import numpy as np, tensorflow as tf
values = np.load(sys.argv[1] + ".npz")
for name, signatures in (("", ["serving_default"]), ("_frozen", ["serving_default", "other"])):
    loaded = tf.saved_model.load(sys.argv[1] + name)
    for signature in signatures:
        out = loaded.signatures[signature](x=tf.constant(values["x"]))
        np.testing.assert_allclose(out["y"], values["y"], rtol=1e-5, atol=1e-6)
        assert out["rows"].shape == (1, 4)
        assert loaded.signatures[signature](x=tf.ones((9, 4)))["rows"].shape == (2, 4)
loaded = tf.saved_model.load(sys.argv[1])
weights = loaded.signatures["serving_default"].variables
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(loaded.signatures["serving_default"](x=tf.constant(values["x"]))["y"])
trained = [v for v in weights if v.trainable]
gradients = tape.gradient(loss, trained)
(bias,) = [g for g, v in zip(gradients, trained) if v.shape.rank == 1]
np.testing.assert_allclose(bias, (1 - values["y"] ** 2).sum(axis=0), rtol=1e-4, atol=1e-5)
print("served", len(trained))
"""


def test_models_of_orbax_are_the_bridges_and_train(tmp_path: Path) -> None:
    run_python(EXPORTS, str(tmp_path / "model"))
    assert run_python(SERVES, str(tmp_path / "model"), without_jax=True) == "served 2"


def test_module_that_orbax_keeps_is_jax2tf_again() -> None:
    out = run_python(
        """
        import orbax.export.modules.tensorflow_module as orbax
        from jax2tf_bridge.compat import as_jax2tf
        before = vars(orbax.jax2tf).copy()
        with as_jax2tf():
            print(orbax.jax2tf.dtype_of_val.__module__)
        print(vars(orbax.jax2tf) == before)
        """
    )
    assert out.splitlines() == ["jax2tf_bridge.converting._arguments", "True"]
