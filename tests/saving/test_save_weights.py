"""save() and publish(): weights of every dtype, in every container."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature, export, publish, save
from jax2tf_bridge.errors import DTypeError, SavingError
from jax2tf_bridge.portable import LEAF, Aval, TreeSpec
from jax2tf_bridge.saved_model import append_tensors

# Private: no fast checksum is installed.
from jax2tf_bridge.saving import _variables

# Private: a checkpoint that TensorFlow would have written otherwise.
from jax2tf_bridge.saving._variables import (
    SavedVariable,
    check_keys,
    make_variable,
    renew_fingerprint,
    to_new_tensor,
)
from jax2tf_bridge.signatures import WeightLeaf, name_leaves
from tests.sampling import sampled

X = np.ones((2, 3), np.float32)


def difference(params: Any, x: Any) -> Any:
    return x * params["a b"] - params["a_b"]


def test_names_that_clash_are_the_same_in_every_container(tmp_path: Path) -> None:
    params = {"a b": np.float32(1), "a_b": np.float32(10)}
    other = collections.OrderedDict(reversed(params.items()))
    signatures = {"one": export(difference)(params, X), "two": export(difference)(other, X)}
    save(tmp_path / "m", signatures, params=params, vjp_order=0)
    loaded = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.one(X), X - 10)
    np.testing.assert_array_equal(loaded.two(X), X - 10)


def test_names_do_not_depend_on_the_order() -> None:
    forth = TreeSpec("dict", keys=("a b", "a_b"), children=(LEAF, LEAF))
    back = TreeSpec("custom", "OrderedDict", keys=("a_b", "a b"), children=(LEAF, LEAF))
    assert name_leaves(forth) == ("a_b", "a_b_1")
    assert name_leaves(back) == ("a_b_1", "a_b")


def test_two_weights_of_one_name_are_refused(tmp_path: Path) -> None:
    params = collections.OrderedDict({1: np.float32(1), 0: np.float32(10)})

    def f(params: Any, x: Any) -> Any:
        return x * params[1] - params[0]

    one = export(f)(params, X)
    args = one.in_tree.children[0]
    as_dict = TreeSpec("dict", keys=(1, 0), children=(LEAF, LEAF))
    args = dataclasses.replace(args, children=(as_dict, LEAF))
    tree = dataclasses.replace(one.in_tree, children=(args, one.in_tree.children[1]))
    two = dataclasses.replace(one, in_tree=tree)
    with pytest.raises(SavingError, match="are two weights, and would both be named 1"):
        save(tmp_path / "m", {"one": one, "two": two}, params=params)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_keys_among_the_weights(impl: str, tmp_path: Path) -> None:
    def f(params: Any, x: Any) -> Any:
        return x * params["w"] + jax.random.normal(params["key"], (3,))

    def params(seed: int) -> Any:
        return {"key": jax.random.key(seed, impl=impl), "w": np.float32(2)}

    saved = publish(tmp_path, Signature(f, args=[X]), params=params(3), vjp_order=0)
    again = publish(tmp_path, params=params(4))
    for version, seed in ((saved, 3), (again, 4)):
        loaded = tf.saved_model.load(version.path)
        np.testing.assert_allclose(loaded.serving_default(X), f(params(seed), X), rtol=1e-6)


DTYPES = ("int4", "uint4", "int8", "float8_e5m2", "bool", "bfloat16")


@pytest.mark.parametrize("dtype", sampled(DTYPES, every=4, keep=["bfloat16", "float8_e5m2"]))
def test_the_weights_that_were_saved_can_be_published(dtype: str, tmp_path: Path) -> None:
    def f(params: Any, x: Any) -> Any:
        return x * params["w"].astype(jnp.float32) + params["v"] * params["n"]

    def params(*values: int) -> Any:
        return {"w": jnp.asarray(values).astype(dtype), "v": np.float64(values[0]), "n": 2}

    publish(tmp_path, Signature(f, args=[X]), params=params(1, 0, 1), vjp_order=0)
    again = publish(tmp_path, params=params(0, 1, 1))
    loaded = tf.saved_model.load(again.path)
    np.testing.assert_array_equal(loaded.serving_default(X), f(params(0, 1, 1), X))


def test_what_tensorflow_does_not_differentiate_is_not_trainable(tmp_path: Path) -> None:
    params = {"w": jnp.ones(3, "float8_e4m3fn"), "v": np.float32(1)}
    f = Signature(lambda p, x: x * p["w"].astype("float32") * p["v"], args=[X])
    assert save(tmp_path / "m", f, params=params).trainable == ("v",)


@pytest.mark.parametrize(
    ("exported", "given", "message"),
    [
        (2, 2.5, r"params\['n'\]: expected int32, got 2\.5"),
        (2, 1 << 40, r"params\['n'\]: expected int32, got 1099511627776"),
        (np.uint8(2), -1, r"params\['n'\]: expected uint8, got -1"),
        (True, 2, r"params\['n'\]: expected bool, got 2"),
        (2.0, 2j, r"params\['n'\]: expected float32, got 2j"),
    ],
)
def test_numbers_keep_their_value(exported: Any, given: Any, message: str, tmp_path: Path) -> None:
    portable = export(lambda p, x: x * p["n"])({"n": exported}, X)
    with pytest.raises(DTypeError, match=message):
        save(tmp_path / "m", portable, params={"n": given})


def test_numbers_of_python(tmp_path: Path) -> None:
    portable = export(lambda p, x: x * p["n"])({"n": 1.5}, X)
    save(tmp_path / "m", portable, params={"n": 3})
    loaded = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.serving_default(X), X * 3)


@pytest.mark.parametrize(
    "leaf",
    [
        np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
        np.arange(12, dtype=">f4").reshape(3, 4),
        np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2],
        np.arange(12, dtype=np.float64).reshape(3, 4),
        jnp.arange(12.0).reshape(3, 4),
        tf.constant(np.arange(12, dtype=np.float32).reshape(3, 4)),
        tf.Variable(np.arange(12, dtype=np.float32).reshape(3, 4)),
    ],
    ids=["Fortran", "big-endian", "strided", "float64", "JAX", "tensor", "variable"],
)
def test_values_are_written_whatever_their_place_in_memory(tmp_path: Path, leaf: Any) -> None:
    function = export(lambda params, x: x @ params["w"])({"w": np.ones((3, 4), np.float32)}, X)
    save(tmp_path / "m", function, params={"w": leaf}, vjp_order=0)
    prefix = str(tmp_path / "m" / "variables" / "variables")
    found = tf.train.load_variable(prefix, "params/w/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_array_equal(found, np.asarray(leaf).astype(np.float32), strict=True)


def test_the_fingerprint_is_that_of_the_whole_checkpoint(tmp_path: Path) -> None:
    function = export(lambda params, x: x * params["w"])({"w": np.float32(1)}, X)
    folder = str(tmp_path / "m")
    save(folder, function, params={"w": np.float32(2)}, vjp_order=0)
    written = tf.saved_model.experimental.read_fingerprint(folder)
    renew_fingerprint(tmp_path / "m")
    renewed = tf.saved_model.experimental.read_fingerprint(folder)
    assert written.checkpoint_hash == renewed.checkpoint_hash


def test_variables_that_tensorflow_noted_elsewhere_are_told(tmp_path: Path) -> None:
    """The value is in the file, and nothing that loads it would look there."""
    root = tf.Module()
    root.params = {"w": tf.Variable(1.0)}
    tf.saved_model.save(root, str(tmp_path))
    leaves = [WeightLeaf(name, name, Aval((), "float64"), np.ones(())) for name in ("w", "v")]
    values = [SavedVariable("params", leaf, root.params["w"]) for leaf in leaves]
    prefix = str(tmp_path / "variables" / "variables")
    append_tensors(prefix, {values[1].key: to_new_tensor(leaves[1])})
    message = (
        r"other keys than expected:\n  - params/v: params/v/\.ATTRIBUTES/VARIABLE_VALUE\n"
        r"This is a fault of jax2tf-bridge with TensorFlow .*; please report it\."
    )
    with pytest.raises(SavingError, match=message):
        check_keys(prefix, values)


@pytest.mark.parametrize("fast", [True, False])
def test_tensorflow_writes_the_values_where_checksums_would_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    monkeypatch.setattr(_variables, "is_fast", lambda: fast)
    value = np.arange(3, dtype=np.float32)
    leaf = WeightLeaf("w", "w", Aval((3,), "float32"), value)
    made = make_variable(leaf, trainable=True, name="w")
    assert bool(made.is_initialized()) is not fast
    function = export(lambda params, x: x * params["w"])({"w": value}, X)
    save(tmp_path / "m", function, params={"w": value}, vjp_order=0)
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path / "m").params["w"], value)
