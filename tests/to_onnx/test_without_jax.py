"""Models of files are written where neither JAX nor TensorFlow can be imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import export, write_function, write_weights
from tests.fresh_process import run_python
from tests.to_onnx.running import run

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
PARAMS = {"w": np.linspace(0, 2, 6, dtype=np.float32).reshape(3, 2)}

_BLOCKED = """
import sys
from tests.plugins.blocked_imports import Blocker
sys.meta_path.insert(0, Blocker(("jax", "jaxlib", "flax", "tensorflow", "keras")))
"""


def predict(params: Any, x: Any) -> Any:
    noise = jax.random.normal(jax.random.key(0), x.shape)
    return {"y": jnp.sort(jnp.tanh((x + noise) @ params["w"]), axis=0)}


@pytest.mark.costly
def test_a_file_and_weights(tmp_path: Path) -> None:
    exported = export(predict, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X)
    write_function(tmp_path / "predict.jaxfn", exported)
    write_weights(tmp_path / "weights.msgpack", PARAMS)
    code = f"""{_BLOCKED}
import jax2tf_bridge.to_onnx
from jax2tf_bridge import save_onnx
assert "onnx" not in sys.modules
folder = sys.argv[1]
model = save_onnx(
    folder + "/m.onnx", folder + "/predict.jaxfn", params=folder + "/weights.msgpack"
)
print(str(model).splitlines()[2].split(", ")[1])
"""
    printed = run_python(code, str(tmp_path))
    assert printed.startswith("run in ONNX Runtime")
    got = run(tmp_path / "m.onnx", {"x": X[:3]})["y"]
    np.testing.assert_allclose(got, predict(PARAMS, X[:3])["y"], rtol=2e-5)
