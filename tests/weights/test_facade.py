"""Tests that jax2tf_bridge.weights imports neither JAX, Flax nor TensorFlow."""

from __future__ import annotations

from pathlib import Path

import flax.serialization
import ml_dtypes
import numpy as np

import jax2tf_bridge
from jax2tf_bridge import weights
from tests.fresh_process import run_python
from tests.weights.trees import Pair

EVERYTHING = """
    import sys
    from typing import Any, NamedTuple

    for name in ("jax", "jaxlib", "flax", "tensorflow", "ml_dtypes", "safetensors"):
        sys.modules[name] = None  # imports of these fail

    import numpy as np
    from jax2tf_bridge import weights

    class Pair(NamedTuple):
        first: Any
        second: Any

    tree = {"params": [np.arange(3, dtype=np.int16), Pair(np.float32(2), (1j,))]}
    state = weights.to_state_dict(tree)
    assert type(weights.from_state_dict(tree, state, strict=True)["params"][1]) is Pair
    print(*weights.flatten_state(state))
    weights.write_weights(sys.argv[1], tree)
    print(weights.read_weights(sys.argv[1], target=tree)["params"][0].tolist())
    with weights.open_weights(sys.argv[2]) as opened:
        print(opened["w"].tolist())
    try:
        weights.read_weights(sys.argv[3])
    except ImportError as e:
        print(type(e).__name__, e)
"""


def test_everything_works_where_nothing_but_numpy_is(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    own, tensors, half = (tmp_path / name for name in ("own", "tensors", "half"))
    save_file({"w": np.ones(2, np.float32)}, tensors)
    half.write_bytes(flax.serialization.to_bytes({"a": np.ones(3, ml_dtypes.bfloat16)}))
    lines = run_python(EVERYTHING, str(own), str(tensors), str(half)).splitlines()
    assert lines[:3] == ["params/0 params/1/first params/1/second/0", "[0, 1, 2]", "[1.0, 1.0]"]
    assert lines[3].startswith(
        f"MissingDependencyError reading bfloat16 from {half} needs ml_dtypes"
    )
    tree = {"params": [np.arange(3, dtype=np.int16), Pair(np.float32(2), (1j,))]}
    assert own.read_bytes() == flax.serialization.to_bytes(tree)


def test_importing_it_imports_no_framework() -> None:
    code = """
        import sys
        from jax2tf_bridge import weights

        weights.to_state_dict({"a": [1, object()]})
        print(weights.is_serializable(object))
        print({"jax", "flax", "tensorflow"} & set(sys.modules))
    """
    assert run_python(code) == "False\nset()"


def test_files_are_read_and_written_at_the_top_too() -> None:
    for name in ("open_weights", "read_weights", "write_weights"):
        assert getattr(jax2tf_bridge, name) is getattr(weights, name)
