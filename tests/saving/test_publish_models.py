"""publish(): versions of a model from functions, and from weights alone."""

from __future__ import annotations

import dataclasses
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import (
    Signature,
    Target,
    assign_weights,
    latest_version,
    publish,
    save,
)
from jax2tf_bridge.errors import DTypeError, SavingError, StructureError

# Private: another publisher comes in between, and XLA compiles nothing.
from jax2tf_bridge.publishing import (
    CACHE_FOLDER,
    _versions,
    list_program_names,
    publish_version,
)
from jax2tf_bridge.saving import _save, map_weights_by_name
from jax2tf_bridge.storage import AnyPath, as_path, lock_folder
from tests.fresh_process import run_python

X = np.ones((2, 3), np.float32)
W = {"w": np.ones((3, 2), np.float32)}


def dense(params: Any, x: Any) -> Any:
    return x @ params["w"]


DENSE = Signature(dense, args=[X], polymorphic_shapes="(b, 3)")


def answer(path: AnyPath) -> Any:
    loaded = tf.saved_model.load(path)
    return loaded.serving_default(X).numpy()


def test_a_new_checkpoint_reuses_the_graph(tmp_path: Path) -> None:
    options: Any = {"params": W, "vjp_order": 0}
    first = publish(tmp_path / "m", DENSE, **options)
    assert first.saved is not None
    assert first.saved.path == first.path == tmp_path / "m" / "1"
    assert str(first).splitlines()[:2] == [
        f"version 1: {first.path}",
        "  serving_default(x: float32[b,3]) -> (output_0: float32[b,2])",
    ]
    text = str(first.saved.serving)
    assert f"--model_base_path={tmp_path / 'm'}" in text
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


def program(folder: Path, name: str, data: bytes) -> None:
    """Writes a model of which only a compiled program matters."""
    (folder / CACHE_FOLDER).mkdir(parents=True)
    (folder / CACHE_FOLDER / name).write_bytes(data)
    (folder / "saved_model.pb").write_bytes(b"graph")


@pytest.mark.parametrize("scheme", [False, True])
def test_programs_outlive_the_version_that_was_compiled(tmp_path: Path, scheme: bool) -> None:
    root: Any = as_path(f"memory://{tmp_path.name}/m" if scheme else tmp_path / "m")

    def publish_program(name: str, data: bytes, keep: int) -> tuple[int, ...]:
        return publish_version(root, lambda f: program(f, name, data), keep=keep).removed

    def programs() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (root / "xla_cache").iterdir()}

    publish_program("a", b"1", 1)
    assert programs() == {"a": b"1"}
    # Other weights for the same graph.
    assert publish_program("a", b"1", 1) == (1,)
    assert programs() == {"a": b"1"}
    # Another TensorFlow compiled the same graph.
    assert publish_program("a", b"2", 1) == (2,)
    assert programs() == {"a": b"2"}
    # Another graph.
    assert publish_program("b", b"3", 2) == ()
    assert programs() == {"a": b"2", "b": b"3"}
    assert publish_program("b", b"3", 2) == (3,)
    assert programs() == {"b": b"3"}
    assert list_program_names(root / "5") == {"b"}


@pytest.mark.parametrize("scheme", [False, True])
def test_programs_stay_when_another_publisher_removes_their_version(
    tmp_path: Path, scheme: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root: Any = as_path(f"memory://{tmp_path.name}/m" if scheme else tmp_path / "m")
    publish_version(root, lambda f: program(f, "a", b"1"))

    def publish_another_first(folder: AnyPath) -> AbstractContextManager[None]:
        monkeypatch.setattr(_versions, "lock_folder", lock_folder)
        # Version 1 goes, and with it the program, since no visible version has it.
        other = publish_version(root, lambda f: program(f, "b", b"2"), keep=1)
        assert other.removed == (1,)
        assert [path.name for path in (root / "xla_cache").iterdir()] == ["b"]
        return lock_folder(folder)

    monkeypatch.setattr(_versions, "lock_folder", publish_another_first)
    assert publish_version(root, lambda f: program(f, "a", b"1")).version == 3
    assert {path.name for path in (root / "xla_cache").iterdir()} == {"a", "b"}


RUN = """
import sys
import tensorflow as tf

f = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
print(f(x=tf.ones((3, 3)))["output_0"].numpy().tolist())
"""


@pytest.mark.slow
def test_later_versions_compile_nothing_after_the_first_was_removed(tmp_path: Path) -> None:
    root = tmp_path / "m"
    first = publish(root, DENSE, params=W, vjp_order=0, buckets={"b": [4]}, precompile=True)
    assert first.saved is not None
    (setting,) = first.saved.serving.environment.values()
    second = publish(root, params={"w": W["w"] * 2}, keep=1)
    assert second.removed == (1,)
    folder = root / "xla_cache"
    files = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert len(files) == 2
    # TensorFlow would write what it compiles.
    writing = {"TF_XLA_FLAGS": setting.replace(" --tf_xla_persistent_cache_read_only=true", "")}
    assert run_python(RUN, str(second.path), env=writing) == str([[6.0, 6.0]] * 3)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == files


@pytest.mark.costly
def test_programs_of_a_saved_version_lie_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter("aabc")

    def compiles(folder: Path, requests: Any) -> int:
        (folder / CACHE_FOLDER).mkdir()
        (folder / CACHE_FOLDER / next(names)).write_bytes(b"1")
        return 1

    monkeypatch.setattr(_save, "precompile", compiles)
    options: Any = {"params": W, "vjp_order": 0, "buckets": {"b": [4]}, "precompile": True}
    saved = save(tmp_path / "m" / "1", DENSE, **options)
    assert f"_cache_directory={tmp_path / 'm' / 'xla_cache'} " in str(saved.serving)
    published = publish(tmp_path / "m", params=W, keep=1)
    assert (published.version, published.removed) == (2, (1,))
    shared = tmp_path / "m" / "xla_cache"
    assert [path.name for path in shared.iterdir()] == ["a"]
    save(tmp_path / "m" / "3", DENSE, **options)
    save(tmp_path / "m" / "3", DENSE, overwrite=True, **options)
    assert {path.name for path in shared.iterdir()} == {"a", "b"}  # version 2 has a
    publish(tmp_path / "m", params=W, keep=1)
    assert [path.name for path in shared.iterdir()] == ["b"]
    save(tmp_path / "m" / "4", DENSE, overwrite=True, **options)
    assert [path.name for path in shared.iterdir()] == ["c"]


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
    assert list(map_weights_by_name(newest, W)) == ["w"]
    with pytest.raises(StructureError, match="'v'"):
        map_weights_by_name(newest, {"v": W["w"]})


def test_what_cannot_be_published(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no version yet"):
        publish(tmp_path / "m", params=W)
    with pytest.raises(SavingError, match=r"^publish needs signatures, or params: the new weights"):
        publish(tmp_path / "m")
    with pytest.raises(
        SavingError,
        match=r"^publish without signatures only replaces the weights, so it does not take "
        r"buckets\.",
    ):
        publish(tmp_path / "m", params=W, buckets={"b": [1]})
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'kep': did you mean 'keep'\?"
    ):
        publish(tmp_path / "m", params=W, kep=2)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError,
        match=r"^publish\(\) got an unexpected keyword argument 'bukcets': did you mean "
        r"'buckets'\?$",
    ):
        publish(tmp_path / "m", DENSE, params=W, bukcets={"b": [1]})  # type: ignore[call-arg]
    publish(tmp_path / "m", DENSE, params=W)
    with pytest.raises(StructureError, match="'w' is missing"):
        publish(tmp_path / "m", params={"v": W["w"]})
    with pytest.raises(StructureError, match=r"^params is a dict with keys that JAX cannot sort"):
        publish(tmp_path / "m", params={"w": W["w"], 1: X})
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [".versions-used-up-to-1", "1"]


def test_weights_of_a_model_for_converters(tmp_path: Path) -> None:
    """They are float32 in the graph, in place of JAX's bfloat16."""
    weights: dict[str, Any] = {"a": jnp.ones((3, 2), jnp.bfloat16), "b": np.ones(2, np.float32)}
    example = {"x": np.ones((1, 3), jnp.bfloat16)}
    signature = Signature(
        lambda params, x: x @ params["a"] + params["b"],
        args=[np.ones((2, 3), jnp.bfloat16)],
        polymorphic_shapes="(b, 3)",
        example=example,
    )
    root = tmp_path / "m"
    first = publish(root, signature, params=weights, target=Target.converters(), vjp_order=0)
    assert first.saved is not None
    requests = first.saved.serving.requests
    assert requests["serving_default"].as_json() == {"inputs": {"x": [[1.0, 1.0, 1.0]]}}
    second = publish(root, params={**weights, "a": weights["a"] * 2})
    np.testing.assert_array_equal(answer(second.path), np.full((2, 2), 7))
    with pytest.raises(
        DTypeError, match=r"params\['b'\]: expected float32\[2\], got bfloat16\[2\]"
    ):
        publish(root, params={**weights, "b": weights["b"].astype(jnp.bfloat16)})
    loaded = tf.saved_model.load(second.path)
    assign_weights(loaded, {"a": weights["a"] * 3}, partial=True)
    np.testing.assert_array_equal(loaded.serving_default(X), np.full((2, 2), 10))
