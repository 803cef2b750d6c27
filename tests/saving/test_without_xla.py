"""SavedModels of TensorFlow's own operations: saved, published, loaded again, served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature, Target, export, load, publish, save
from jax2tf_bridge.errors import SavingError, TargetError
from jax2tf_bridge.inspecting import describe_saved_model, read_saved_model
from jax2tf_bridge.saved_model import WARM_UP

# Private: what would be compiled is counted.
from jax2tf_bridge.saving import _save
from jax2tf_bridge.saving.serving._warm_up import WarmUpRequest
from tests.saving.warm_up_files import read_warm_up_requests

NO_XLA = Target.widest(xla=False)
PARAMS = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)}
X = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
SCALE = np.full((2048, 2), 2, np.float32)


def dense(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"]) * SCALE[0]


def signature(**options: Any) -> Signature:
    return Signature(dense, args=[X], polymorphic_shapes="(b, 3)", **options)


def operations(folder: Path) -> set[str]:
    model = read_saved_model(folder)
    assert model.modules == ()
    graph = tf.saved_model.load(str(folder)).signatures["serving_default"].graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return {node.op for node in nodes}


def test_weights_train_and_come_back_to_jax(tmp_path: Path) -> None:
    saved = save(tmp_path / "1", signature(), params=PARAMS, target=NO_XLA)
    assert not [name for name in operations(tmp_path / "1") if "Xla" in name]
    assert "xla" not in str(saved.serving)
    model = tf.saved_model.load(str(tmp_path / "1"))
    with tf.GradientTape() as tape:
        y = model.serving_default(tf.constant(X))
    np.testing.assert_allclose(y, dense(PARAMS, X), rtol=1e-5)
    (gradient,) = tape.gradient(y, model.trainable_variables)
    expected = jax.grad(lambda p: dense(p, X).sum())(PARAMS)["w"]
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)
    loaded = load(tmp_path / "1")
    np.testing.assert_allclose(loaded.functions["serving_default"](loaded.params, X), y, rtol=1e-5)
    grad = jax.grad(lambda p: loaded.functions["serving_default"](p, X).sum())(loaded.params)
    np.testing.assert_allclose(grad["w"], expected, rtol=1e-4, atol=1e-5)


def test_a_portable_function_for_xla_becomes_its_own_operations(tmp_path: Path) -> None:
    portable = export(dense, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X)
    save(tmp_path / "1", portable, params=PARAMS, target=NO_XLA)
    assert "MatMul" in operations(tmp_path / "1")
    with pytest.raises(TargetError, match="target must be a Target"):
        save(tmp_path / "2", portable, params=PARAMS, target="2.17")  # type: ignore[arg-type]


def test_versions_with_other_weights_share_the_graph(tmp_path: Path) -> None:
    first = publish(tmp_path, signature(), params=PARAMS, target=NO_XLA)
    second = publish(tmp_path, params={"w": 2 * PARAMS["w"]})
    assert (first.version, second.version) == (1, 2)
    model = tf.saved_model.load(str(tmp_path / "2"))
    y = model.serving_default(tf.constant(X))
    np.testing.assert_allclose(y, dense({"w": 2 * PARAMS["w"]}, X), rtol=1e-5)


def test_beside_a_signature_for_xla(tmp_path: Path) -> None:
    both = {
        "own": export(dense, target=NO_XLA, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X),
        "compiled": export(dense, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X),
    }
    saved = save(tmp_path / "1", both, params=PARAMS)
    assert "--xla_cpu_compilation_enabled=true" in saved.serving.command
    described = describe_saved_model(read_saved_model(tmp_path / "1"))
    assert {s["name"]: s["own_operations"] for s in described["signatures"]} == {
        "own": True,
        "compiled": False,
    }
    assert all(m["run_by"] == ["compiled"] or m["order"] for m in described["modules"])
    model = tf.saved_model.load(str(tmp_path / "1"))
    for name in both:
        np.testing.assert_allclose(
            getattr(model, name)(tf.constant(X)), dense(PARAMS, X), rtol=1e-5
        )


@pytest.mark.costly
def test_buckets_and_warm_up(tmp_path: Path) -> None:
    saved = save(tmp_path / "1", signature(), params=PARAMS, target=NO_XLA, buckets={"b": [8]})
    assert saved.signatures["serving_default"].buckets
    model = tf.saved_model.load(str(tmp_path / "1"))
    for size in (4, 11):
        x = np.resize(X, (size, 3))
        np.testing.assert_allclose(
            model.serving_default(tf.constant(x)), dense(PARAMS, x), rtol=1e-5
        )
    assert not [name for name in operations(tmp_path / "1") if "Xla" in name]


def test_there_is_nothing_to_compile_ahead(tmp_path: Path) -> None:
    with pytest.raises(SavingError, match="precompile=True has nothing to compile: TensorFlow"):
        save(tmp_path / "1", signature(), params=PARAMS, target=NO_XLA, precompile=True)
    assert not (tmp_path / "1").exists()


def test_open_sizes_have_small_requests(tmp_path: Path) -> None:
    saved = save(tmp_path / "1", signature(), params=PARAMS, target=NO_XLA)
    requests = list(read_warm_up_requests(tmp_path / "1"))
    assert [str(request) for request in requests] == [
        "serving_default(x: float32[1,3])",
        "serving_default(x: float32[4,3])",
    ]
    assert saved.notes == ()
    model = tf.saved_model.load(str(tmp_path / "1"))
    for request in requests:
        y = model.serving_default(tf.constant(request.inputs["x"]))
        np.testing.assert_allclose(y, dense(PARAMS, request.inputs["x"]))
    save(tmp_path / "2", signature(example={"x": X[:2]}), params=PARAMS, target=NO_XLA)
    (request,) = read_warm_up_requests(tmp_path / "2")
    np.testing.assert_array_equal(request.inputs["x"], X[:2])
    save(tmp_path / "3", signature(), params=PARAMS, target=NO_XLA, warm_up=False)
    assert not (tmp_path / "3" / WARM_UP).exists()
    save(tmp_path / "4", signature(), params=PARAMS)
    assert not (tmp_path / "4" / WARM_UP).exists()


@pytest.mark.parametrize(
    ("constraints", "rows"),
    [(["mod(b, 8) == 0"], [8]), (["b <= 1"], [1]), (["b >= 3"], [3, 4]), (["b >= 2000"], [])],
)
def test_small_requests_satisfy_constraints(
    constraints: list[str], rows: list[int], tmp_path: Path
) -> None:
    portable = export(
        lambda x: x + 1,
        target=NO_XLA,
        polymorphic_shapes="(b, _)",
        polymorphic_constraints=constraints,
    )(X)
    saved = save(tmp_path / "1", portable)
    requests = read_warm_up_requests(tmp_path / "1") if rows else ()
    assert [request.inputs["x"].shape for request in requests] == [(n, 3) for n in rows]
    assert saved.notes == (
        ()
        if rows
        else (
            "no warm-up requests for serving_default: no sizes were found that satisfy its "
            "constraints; give sizes, as Signature(..., example={...})",
        )
    )


def test_precompiling_runs_only_what_xla_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = export(dense, target=NO_XLA, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X)
    opened = export(dense, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X)
    with pytest.raises(SavingError, match="nothing to compile: each signature has open sizes"):
        save(tmp_path / "1", {"own": own, "f": opened}, params=PARAMS, precompile=True)
    compiled: list[WarmUpRequest] = []
    monkeypatch.setattr(_save, "precompile", lambda _, requests: compiled.extend(requests))
    fixed = export(dense)(PARAMS, X)
    save(tmp_path / "2", {"own": own, "f": fixed}, params=PARAMS, precompile=True)
    assert [str(request) for request in compiled] == ["f(x: float32[4,3])"]
    assert [request.signature for request in read_warm_up_requests(tmp_path / "2")] == [
        "own",
        "own",
        "f",
    ]


def test_captured_arrays_are_variables(tmp_path: Path) -> None:
    big = np.arange(4096, dtype=np.float32)
    saved = save(
        tmp_path / "1",
        Signature(lambda x: x * big, args=[np.ones(4096, np.float32)]),
        target=NO_XLA,
    )
    assert len(saved.constants) == 1
    assert saved.graph_bytes < 50_000
    model = tf.saved_model.load(str(tmp_path / "1"))
    y = model.serving_default(tf.ones(4096))
    np.testing.assert_array_equal(y, big)
