"""Small models that say themselves whether they are whole, for tests of publishing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.publishing import check_published, published_versions
from jax2tf_bridge.saved_model import GRAPH_FILE, Sidecar, VariableEntry, write_sidecar
from jax2tf_bridge.saved_model import MANIFEST as PUBLISHED_MANIFEST
from jax2tf_bridge.storage import AnyPath

MANIFEST = "assets.extra/manifest.json"
KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4)
KEY = "kernel/.ATTRIBUTES/VARIABLE_VALUE"
X = np.ones((1, 3), np.float32)


class Model(tf.Module):  # type: ignore[misc]
    """A layer with a weight and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(KERNEL)
        self.constants = [tf.Variable(np.arange(3000.0), trainable=False)]

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)], autograph=False)
    def f(self, x: Any) -> Any:
        return x @ self.kernel + tf.cast(self.constants[0][1], tf.float32)


def write_model(folder: Path) -> None:
    """Writes a SavedModel, and last the digests of its files."""
    model = Model()
    tf.saved_model.save(model, str(folder), signatures=model.f.get_concrete_function())
    kernel = VariableEntry("params['kernel']", "kernel", KEY, "float32", (3, 4), True)
    write_sidecar(folder, Sidecar("0.1.0", tf.__version__, {}, (kernel,)), {})
    _write_manifest(folder)


def write_files(folder: Path) -> None:
    """Writes some files, and last their digests; much faster than a model."""
    (folder / "assets.extra").mkdir(parents=True)
    for i in range(4):
        (folder / f"{i}.bin").write_bytes(os.urandom(3000))
    _write_manifest(folder)


def _write_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text(json.dumps(dict(_digests(folder))))


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in (MANIFEST, PUBLISHED_MANIFEST.as_posix()):
            yield name, hashlib.sha256(path.read_bytes()).hexdigest()


def assert_whole(path: AnyPath) -> None:
    """Every file of what the functions above wrote is there, and as it was written."""
    folder = Path(path)
    assert dict(_digests(folder)) == json.loads((folder / MANIFEST).read_text()), folder
    if (folder / GRAPH_FILE).exists():
        check_published(folder, contents=True)


def assert_whole_with_new_weights(path: AnyPath) -> None:
    """Checks a version that publish_weights made of a model."""
    folder = Path(path)
    expected = json.loads((folder / MANIFEST).read_text())
    found = dict(_digests(folder))
    new = {name for name in found if found[name] != expected.get(name)}
    assert new <= {n for n in found if n.startswith("variables/")} | {"fingerprint.pb"}
    assert {name for name in expected if not name.startswith("variables/")} <= set(found)
    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    keys = set(reader.get_variable_to_shape_map())
    assert keys == {KEY, "constants/0/.ATTRIBUTES/VARIABLE_VALUE", "_CHECKPOINTABLE_OBJECT_GRAPH"}
    for key in keys:
        value = reader.get_tensor(key)  # TensorFlow checks its checksum
        if key == KEY:
            np.testing.assert_array_equal(value, KERNEL + 1)


def assert_answers(folder: AnyPath, kernel: Any = KERNEL) -> None:
    """TensorFlow loads the model, and it computes what it should."""
    loaded = tf.saved_model.load(folder)
    np.testing.assert_allclose(loaded.f(tf.constant(X)), X @ kernel + 1)


def assert_only_whole_versions(root: Path) -> None:
    """Nothing below a root that a server would take for a version is anything less."""
    for name in os.listdir(root):
        assert name.isdigit() or name.startswith("."), name
    for number, path in published_versions(root).items():
        assert path.name == str(number)
        try:
            assert_whole(path)
        except AssertionError:
            if not (path / "variables").exists():
                raise
            assert_whole_with_new_weights(path)
