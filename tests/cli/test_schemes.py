"""Models in storage behind a scheme: TensorFlow's ram://, and fsspec's memory://."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from fsspec.implementations.memory import MemoryFileSystem

from jax2tf_bridge import (
    Signature,
    export,
    load,
    publish,
    read_function,
    save,
    write_function,
    write_weights,
)
from jax2tf_bridge.storage import StoragePath, as_path

# Private: which of TensorFlow and fsspec serves a path is not the caller's choice.
from jax2tf_bridge.storage._backend import GFileBackend
from tests.cli.conftest import Ok, Run

X = np.ones((1, 3), np.float32)


@pytest.fixture(params=["ram", "memory"])
def root(request: pytest.FixtureRequest) -> Iterator[str]:
    address = f"{request.param}://jax2tf_bridge_tests"
    yield address
    if request.param == "ram":
        as_path(address).backend.remove_folder(address)  # type: ignore[union-attr]
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def test_model_is_saved_loaded_and_published(root: str, ok: Ok, run: Run) -> None:
    w = np.ones((3, 2), np.float32)
    captured = np.arange(4096, dtype=np.float32)
    portable = export(
        lambda w, x: x @ w + jnp.asarray(captured)[1:3], polymorphic_shapes=["3, 2", "b, 3"]
    )(w, X)
    write_function(f"{root}/dense.jaxfn", portable, vjp_order=1)
    write_weights(f"{root}/w.msgpack", w)
    assert str(read_function(f"{root}/dense.jaxfn")) == str(portable)
    # A file in storage for each: the function and its weights.
    dense = Signature(f"{root}/dense.jaxfn", takes_params=True)
    saved = save(f"{root}/m", dense, params=w)
    assert str(saved.path) == f"{root}/m"
    assert copy.deepcopy(saved.path) == pickle.loads(pickle.dumps(saved.path)) == saved.path
    assert load(f"{root}/m").serving_default(X).tolist() == [[4, 5]]
    assert f"{root}/m" in str(saved.serving)
    if root.startswith("ram"):
        served = tf.saved_model.load(f"{root}/m").signatures["serving_default"]
        assert served(tf.constant(X))["output_0"].numpy().tolist() == [[4, 5]]
    facts = json.loads(ok("inspect", f"{root}/m", "--json"))
    assert facts["saved_model"]["path"] == f"{root}/m"
    assert facts["saved_model"]["variables_bytes"] > captured.nbytes
    ok("publish", f"{root}/dense.jaxfn", "-o", f"{root}/models", "--params", f"{root}/w.msgpack")
    second = publish(f"{root}/models", params=2 * w, keep=1)
    assert (second.version, second.removed, second.notes) == (2, (1,), ())
    assert str(second.graph_of) == f"{root}/models/1"
    assert load(os.fspath(second.path)).serving_default(X).tolist() == [[7, 8]]
    ok("retarget", f"{root}/models/2", "--tensorflow", "2.17", "-o", f"{root}/models/3")
    assert load(f"{root}/models/3").serving_default(X).tolist() == [[7, 8]]
    text = ok("inspect", f"{root}/dense.jaxfn")
    assert text.startswith(f"<lambda>, in {root}/dense.jaxfn")
    missing = run("inspect", f"{root}/nothing")
    assert (missing.code, missing.error) == (2, f"{root}/nothing does not exist")
    assert as_path(root).names() == ["dense.jaxfn", "m", "models", "w.msgpack"]  # type: ignore[union-attr]


def test_tensorflows_errors_are_the_systems() -> None:
    backend = GFileBackend(tf.io.gfile)
    with pytest.raises(FileNotFoundError, match=r"^ram://nothing/x does not exist$"):
        backend.reader("ram://nothing/x").read()
    with pytest.raises(OSError, match=r"^zzz://x cannot be used: UnimplementedError: File system"):
        backend.find("zzz://x")


def test_name_that_others_begin_with() -> None:
    """TensorFlow says that ram://begins/m is a folder where there is only ram://begins/models."""
    longer, path = as_path("ram://begins/models"), as_path("ram://begins/m")
    assert isinstance(path, StoragePath)
    longer.mkdir(parents=True, exist_ok=True)
    write_weights(longer / "x", 1)
    assert not path.exists()
    assert path.names() == []
    assert as_path("ram://begi").find() is None  # type: ignore[union-attr]
    write_weights(path / "y", 1)
    assert path.names() == ["y"]
    assert path.parent.names() == ["m", "models"]
    path.backend.remove_folder(str(path))
    assert path.parent.names() == ["models"]
    assert dict(path.parent.files_below()).keys() == {"models/x"}
    path.backend.remove_folder("ram://begins")
    assert not path.parent.exists()


@pytest.mark.slow
def test_tensorflow_says_nothing_where_it_is_loaded_for_a_path() -> None:
    command = [sys.executable, "-m", "jax2tf_bridge", "inspect", "ram://nothing/x.jaxfn"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "jax2tf-bridge: error: ram://nothing/x.jaxfn does not exist\n"
