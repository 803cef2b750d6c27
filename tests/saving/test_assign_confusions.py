"""assign_weights(), save() and publish(): weights that could end up in the wrong variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

from jax2tf_bridge import Signature, export, publish, read_weights, save, write_weights
from jax2tf_bridge.errors import ShapeError, StructureError
from jax2tf_bridge.saving import assign_weights

# Private: the names of all variables, which assign_weights shows only in errors.
from jax2tf_bridge.saving._assign_weights import find_variables
from jax2tf_bridge.signatures._params import match_paths

ONE = np.float32(1)


class Linear(tf.Module):  # type: ignore[misc]
    """A variable, which all of these call the same."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(0.0, name="w")


class Hidden(tf.Module):  # type: ignore[misc]
    """One layer behind a public attribute, and one behind a private one."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self._hidden = Linear(), Linear()


def saved(folder: Path, params: Any) -> Any:
    """A loaded model with these weights."""
    save(
        folder,
        Signature(lambda p, x: x + sum(jax.tree_util.tree_leaves(p)), args=[ONE]),
        params=params,
        vjp_order=0,
    )
    return tf.saved_model.load(folder)


def test_layers_behind_private_attributes_are_not_passed_over(tmp_path: Path) -> None:
    tf.saved_model.save(Hidden(), str(tmp_path))
    for model in (Hidden(), tf.saved_model.load(str(tmp_path))):
        with pytest.raises(StructureError, match=r"_hidden/w \(float32\[\]\) is missing"):
            assign_weights(model, {"out": {"w": 1.0}})
        assign_weights(model, {"out": {"w": 1.0}, "_hidden": {"w": 2.0}})
        assert [float(model.out.w), float(model._hidden.w)] == [1, 2]


def test_optimizers_and_metrics_within_a_module() -> None:
    module = Linear()
    module.optimizer, module.metric = keras.optimizers.SGD(), keras.metrics.Mean()
    names = set(find_variables(module))
    assert {"w", "metric/total", "metric/count"} <= {n.replace("mean/", "") for n in names}
    assert any(name.startswith("optimizer/") for name in names)
    assert assign_weights(module, {"w": 3.0}, partial=True).assigned == {"w": "w"}
    assert float(module.w) == 3


def test_what_is_left_over_is_not_for_another_variable() -> None:
    pair = {"first": Linear(), "second": Linear()}
    with pytest.raises(StructureError, match=r"second/w .* is missing") as caught:
        assign_weights(pair, {"first/w": 1.0, "w": 2.0})
    assert "rename=" not in str(caught.value)
    found = match_paths({"a b": ("a b",), "a:b": ("a:b",)}, ["a b", "a+b"])
    assert found.pairs == {"a b": "a b"}
    assert (found.missing, found.unexpected) == (("a:b",), ("a+b",))


def test_numbers_that_save_added_to_names(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", {"a_b": ONE})
    with pytest.raises(StructureError, match="'a b' and 'a_b' have the same name in TensorFlow"):
        assign_weights(one, {"a b": 10.0, "a_b": 20.0}, partial=True)
    assign_weights(one, {"a b": 10.0, "a_b": 20.0}, partial=True, rename={"a b": None})
    assert float(one.params["a_b"]) == 20
    # Nested keys and keys with "." between them have different orders.
    two = saved(tmp_path / "two", {"a!": {"x": ONE}, "a!!": {"x": ONE}})
    with pytest.raises(StructureError, match=r"it is unknown which belongs to which"):
        assign_weights(two, {"a!.x": 10.0, "a!!.x": 20.0})
    assign_weights(two, {"a!": {"x": 10.0}, "a!!": {"x": 20.0}})
    assert [float(two.params[name]) for name in ("a_/x", "a_/x_1")] == [10, 20]
    cases = saved(tmp_path / "cases", {"W": ONE, "w": ONE})
    assert assign_weights(cases, {"w": 2.0, "W": 1.0}).assigned == {"W": "W", "w_1": "w"}


def test_a_loaded_model_takes_what_save_takes(tmp_path: Path) -> None:
    flat = {f"layers/{i}/w": np.float32(i) for i in range(12)}
    model = saved(tmp_path / "m", {"layers": [{"w": ONE}] * 12})
    write_weights(tmp_path / "flat.msgpack", flat)  # each path is one key
    assign_weights(model, tmp_path / "flat.msgpack")
    assert [float(model.params[f"layers/{i}/w"]) for i in range(12)] == list(range(12))


def test_boxes_around_values_are_no_part_of_the_path(tmp_path: Path) -> None:
    nnx = pytest.importorskip("flax.nnx", exc_type=ImportError)
    graph, state = nnx.split(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    x = np.ones((2, 3), np.float32)
    portable = export(lambda state, x: nnx.merge(graph, state)(x))(state, x)
    publish(tmp_path / "root", portable, params=state)
    doubled = jax.tree_util.tree_map(lambda leaf: leaf * 2, nnx.to_pure_dict(state))
    publish(tmp_path / "root", params=doubled)
    model = tf.saved_model.load(tmp_path / "root" / "2")
    expected = x @ doubled["kernel"] + doubled["bias"]
    np.testing.assert_allclose(model.serving_default(x), expected, rtol=1e-5)
    assert len(assign_weights(model, nnx.to_pure_dict(state)).assigned) == 2
    np.testing.assert_allclose(model.serving_default(x), expected / 2, rtol=1e-5)


def test_jax_functions_get_long_lists_in_their_order(tmp_path: Path) -> None:
    layers = [np.float32(i) for i in range(12)]
    write_weights(tmp_path / "w.msgpack", {"layers": layers})

    def weighted(params: Any, x: Any) -> Any:
        leaves = jax.tree_util.tree_leaves(params)
        return x * sum(leaf * 10.0**-i for i, leaf in enumerate(leaves))

    signature = Signature(weighted, args=[ONE])
    save(tmp_path / "m", signature, params=tmp_path / "w.msgpack", vjp_order=0)
    model = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_allclose(model.serving_default(ONE), weighted(layers, ONE), rtol=1e-6)


def test_what_the_message_says_of_common_mistakes(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Dense(2, name="head")])
    model.build((None, 3))
    weights = {"head": {"kernel": np.ones((3, 2), np.float32), "bias": np.ones(2, np.float32)}}
    with pytest.raises(StructureError, match=r"removeprefix\('params/'\)"):
        assign_weights(model, {"params": weights})
    nothings: tuple[Any, ...] = (None, {}, b"bytes", model)
    for nothing in nothings:
        with pytest.raises(StructureError, match="These are not a tree of weights"):
            assign_weights(model, nothing)
    turned = {"head": {**weights["head"], "kernel": weights["head"]["kernel"].T}}
    with pytest.raises(ShapeError, match=r"head/kernel: .* got \(2, 3\) \(transposed\?\)"):
        assign_weights(model, turned)
    portable = export(lambda p, x: jnp.dot(x, p["head"]["kernel"]))(weights, np.ones((1, 3)))
    file = tmp_path / "turned.msgpack"
    write_weights(file, turned)
    with pytest.raises(ShapeError, match=rf"^The weights in {file} do not fit .*\n.*transposed"):
        save(tmp_path / "m", portable, params=file)
    assert read_weights(file)["head"]["kernel"].shape == (2, 3)
