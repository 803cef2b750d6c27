"""`jax2tf-bridge weights`: the weights of a SavedModel as a file; which weights are trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature, inspect, read_weights, save, write_weights
from tests.cli.conftest import Ok, Run

X = np.ones((4, 3), np.float32)
VARIABLES: Any = {
    "params": {"dense": {"kernel": np.ones((3, 2), np.float32)}, "half": [np.ones(2, "bfloat16")]},
    "batch_stats": {"norm": {"mean": np.zeros(2, np.float32)}},
}


def net(variables: Any, x: Any) -> Any:
    params, stats = variables["params"], variables["batch_stats"]
    return (
        x @ params["dense"]["kernel"] + params["half"][0].astype("float32") - stats["norm"]["mean"]
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The net as a SavedModel, and as TensorFlow saved it again after it changed a weight."""
    folder = tmp_path_factory.mktemp("models")
    save(folder / "saved", Signature(net, args=[X]), params=VARIABLES, trainable=["params"])
    loaded = tf.saved_model.load(folder / "saved")
    loaded.params["params/dense/kernel"].assign(np.full((3, 2), 2, np.float32))
    tf.saved_model.save(loaded, str(folder / "trained"))
    return folder


@pytest.mark.parametrize(("folder", "value"), [("saved", 1), ("trained", 2)])
def test_weights_return_to_jax(ok: Ok, model: Path, folder: str, value: int) -> None:
    text = ok("weights", model / folder, "-o", "w.msgpack")
    assert text == f"w.msgpack: 3 weights of {model / folder}\n"
    printed = ok("weights", model / folder, "-o", "w.msgpack", "--json")
    assert json.loads(printed) == inspect("w.msgpack").as_json()
    read = read_weights("w.msgpack", target=VARIABLES, strict=True)
    np.testing.assert_array_equal(read["params"]["dense"]["kernel"], np.full((3, 2), value))
    assert read["params"]["half"][0].dtype == ml_dtypes.bfloat16


def test_files_of_weights_are_converted(ok: Ok, run: Run) -> None:
    write_weights("other.msgpack", {"a": [1.5]})
    assert ok("weights", "other.msgpack", "-o", "w") == "w: 1 weights of other.msgpack\n"
    assert read_weights("w") == {"a": {"0": 1.5}}
    ended = run("weights", "other.msgpack", "-o", "w.safetensors")
    assert "names a safetensors file, and write_weights writes msgpack" in ended.error


def test_what_has_no_weights(run: Run, model: Path, tmp_path: Path) -> None:
    save(tmp_path / "m", Signature(lambda x: x + 1, args=[X]))
    ended = run("weights", "m", "-o", "w.msgpack")
    assert ended.code == 1
    assert ended.error == (
        "m has no weights: none of its variables is below `params`. Save it with --params."
    )
    ended = run("weights", ".", "-o", "w.msgpack")
    assert ended.error.startswith(". is not a SavedModel: it has no saved_model.pb.")
    assert not Path("w.msgpack").exists()
