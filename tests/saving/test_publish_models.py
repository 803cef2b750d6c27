"""publish(): versions of a model from functions, and from weights alone."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature, latest_version, publish
from jax2tf_bridge.errors import SavingError, StructureError
from jax2tf_bridge.saving import weights_by_name
from jax2tf_bridge.storage import AnyPath
from tests.saving.precompiling import in_this_process

X = np.ones((2, 3), np.float32)
W = {"w": np.ones((3, 2), np.float32)}


def dense(params: Any, x: Any) -> Any:
    return x @ params["w"]


DENSE = Signature(dense, args=[X], polymorphic_shapes="(b, 3)")


def answer(path: AnyPath) -> Any:
    loaded = tf.saved_model.load(path)
    return loaded.serving_default(X).numpy()


def test_a_new_checkpoint_reuses_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    options: Any = {"params": W, "vjp_order": 0}
    first = publish(tmp_path / "m", DENSE, buckets={"b": [4]}, precompile=True, **options)
    assert first.saved is not None
    assert first.saved.path == first.path == tmp_path / "m" / "1"
    assert str(first).splitlines()[:2] == [
        f"version 1: {first.path}",
        "  serving_default(x: float32[b,3]) -> (output_0: float32[b,2])",
    ]
    text = str(first.saved.serving)
    assert f"--model_base_path={tmp_path / 'm'}" in text
    assert f"{first.path / 'assets.extra' / 'xla_cache'}" in text
    second = publish(tmp_path / "m", params={"w": W["w"] * 3})
    assert second.path == tmp_path / "m" / "2" == latest_version(tmp_path / "m")
    assert (type(second), second.saved, second.graph_of) == (type(first), None, first.path)
    assert str(second).splitlines() == [
        f"version 2: {second.path}",
        "  new weights for the graph of version 1",
    ]
    np.testing.assert_allclose(answer(first.path), X @ W["w"])
    np.testing.assert_allclose(answer(second.path), X @ W["w"] * 3)
    files = [os.stat(p / "saved_model.pb") for p in (first.path, second.path)]
    assert files[0].st_ino == files[1].st_ino
    third = publish(tmp_path / "m", DENSE, keep=2, **options)
    assert third.removed == (1,)
    assert str(third).endswith("\n  removed: 1")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any


def test_weights_in_nodes_of_the_users_own(tmp_path: Path) -> None:
    layer = Signature(lambda p, x: x @ p.w, args=[X])
    publish(tmp_path / "m", layer, params=Layer(W["w"]))
    second = publish(tmp_path / "m", params=Layer(W["w"] * 2))
    np.testing.assert_allclose(answer(second.path), X @ W["w"] * 2)


def test_weights_by_the_names_of_their_variables(tmp_path: Path) -> None:
    newest = publish(tmp_path / "m", DENSE, params=W).path
    assert list(weights_by_name(newest, W)) == ["w"]
    with pytest.raises(StructureError, match="'v'"):
        weights_by_name(newest, {"v": W["w"]})


def test_what_cannot_be_published(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no version yet"):
        publish(tmp_path / "m", params=W)
    with pytest.raises(SavingError, match=r"^publish needs signatures, or params: the new weights"):
        publish(tmp_path / "m")
    with pytest.raises(SavingError, match=r"^publish was given buckets and no signatures"):
        publish(tmp_path / "m", params=W, buckets={"b": [1]})
    publish(tmp_path / "m", DENSE, params=W)
    with pytest.raises(StructureError, match="'w' is missing"):
        publish(tmp_path / "m", params={"v": W["w"]})
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [".versions-used-up-to-1", "1"]
