"""Compares with flax.serialization: state dicts and bytes are the same for all trees."""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax2tf_bridge.weights as ours
from jax2tf_bridge.errors import StateDictError
from tests.weights import trees
from tests.weights.trees import Box, Pair

flax = pytest.importorskip("flax", reason="flax is not installed")
theirs = pytest.importorskip("flax.serialization", reason="flax is not installed")

# Errors of Flax for a state that does not fit.
REFUSALS = (ValueError, LookupError, AttributeError, TypeError)


class _Statistics:
    mean: Any
    parts: Any
    decay: float = dataclasses.field(default=0.9, metadata={"pytree_node": False})


# A type that is registered with Flax, and not with the bridge.
Statistics: Any = flax.struct.dataclass(_Statistics)


def structure(tree: Any) -> Any:
    return jax.tree.structure(tree)


def restored(restore: Any, target: Any, state: Any) -> tuple[bool, Any]:
    """Returns whether a state is accepted, and the result."""
    try:
        return True, restore(target, state)
    except REFUSALS:
        return False, None


@trees.unhurried
@given(trees.trees())
def test_state_dicts_are_the_same(tree: Any) -> None:
    assert trees.same(ours.to_state_dict(tree), theirs.to_state_dict(tree))


@trees.unhurried
@given(trees.trees(), trees.trees())
def test_the_same_states_are_taken_and_make_the_same(target: Any, tree: Any) -> None:
    for state in (ours.to_state_dict(tree), tree):
        ours_takes, our_result = restored(ours.from_state_dict, target, state)
        theirs_takes, their_result = restored(theirs.from_state_dict, target, state)
        assert ours_takes == theirs_takes, (target, state)
        assert trees.same(our_result, their_result)


@st.composite
def slightly_changed(draw: st.DrawFn) -> tuple[Any, Any]:
    """Draws a tree, and its state with one place changed, removed, or added."""
    tree = draw(trees.trees())
    state = ours.to_state_dict(tree)
    nodes = [state]
    for node in nodes:
        nodes += (
            [part for part in node.values() if isinstance(part, dict)]
            if isinstance(node, dict)
            else []
        )
    node = draw(st.sampled_from(nodes))
    if not isinstance(node, dict):
        return tree, draw(trees.leaves)
    change = draw(st.sampled_from(["add", "replace", "remove"]))
    if change == "add" or not node:
        node[draw(trees.keys)] = draw(trees.leaves)
    else:
        key = draw(st.sampled_from(list(node)))
        if change == "remove":
            del node[key]
        else:
            node[key] = draw(trees.leaves | st.just({}) | st.just([]))
    return tree, state


@trees.unhurried
@given(slightly_changed())
def test_small_changes_are_taken_or_refused_alike(pair: tuple[Any, Any]) -> None:
    ours_takes, our_result = restored(ours.from_state_dict, *pair)
    theirs_takes, their_result = restored(theirs.from_state_dict, *pair)
    assert ours_takes == theirs_takes, pair
    assert trees.same(our_result, their_result)


@trees.unhurried
@given(trees.trees())
def test_each_reads_what_the_other_writes(tree: Any) -> None:
    mine, yours = ours.to_bytes(tree), theirs.to_bytes(tree)
    assert trees.same(ours.from_bytes(tree, yours), tree)
    assert trees.same(theirs.from_bytes(tree, mine), tree)
    assert trees.same(ours.msgpack_restore(yours), theirs.msgpack_restore(mine))


def test_arrays_of_jax_make_the_same_states_and_bytes() -> None:
    tree = {
        "f32": jnp.arange(6, dtype=jnp.float32).reshape(2, 3),
        "bf16": [jnp.ones((2,), jnp.bfloat16)],
        "scalar": Pair(jnp.int32(3), np.float32(1.5)),
        "partial": jax.tree_util.Partial(jnp.sum, jnp.ones(2), axis=0),
    }
    state, other = ours.to_state_dict(tree), theirs.to_state_dict(tree)
    assert structure(state) == structure(other)
    assert all(
        one is two for one, two in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True)
    )
    assert ours.to_bytes(tree) == theirs.to_bytes(tree)
    mine, yours = (
        from_bytes(tree, ours.to_bytes(tree)) for from_bytes in (ours.from_bytes, theirs.from_bytes)
    )
    assert structure(mine) == structure(yours) == structure(tree)
    for one, two in zip(jax.tree.leaves(mine), jax.tree.leaves(yours), strict=True):
        assert trees.same(one, two)


@pytest.mark.parametrize("name", [".", "model"])
def test_current_path_is_the_same(name: str) -> None:
    seen = []
    for module in (ours, theirs):

        class Probe:
            """Records the path at which it is restored."""

        def note(probe: Any, state: Any, module: Any = module) -> Any:
            seen.append(module.current_path())
            return probe

        module.register_serialization_state(Probe, lambda probe: {}, note)
        target = {"a": [0, Pair(Probe(), {"b": Probe()})]}
        module.from_state_dict(target, module.to_state_dict(target), name)
        assert module.current_path() == ""
    assert seen[:2] == seen[2:] == [f"{name}/a/1/first", f"{name}/a/1/second/b"]


def statistics() -> dict[str, Any]:
    """Flax's objects inside the bridge's containers."""
    return {
        "model": [
            Statistics(np.zeros(2, np.float32), {"x": (1, Pair(2, None))}, decay=0.5),
            flax.core.freeze({"dense": {"kernel": np.ones((2, 2), np.float32)}}),
        ]
    }


def test_types_of_flax_are_left_to_flax() -> None:
    tree = statistics()
    state = ours.to_state_dict(tree)
    assert state["model"]["0"]["parts"] == {"x": {"0": 1, "1": {"first": 2, "second": None}}}
    assert set(state["model"]["0"]) == {"mean", "parts"}
    assert type(state["model"]["1"]) is dict
    state["model"]["0"]["mean"] = np.full(2, 7, np.float32)
    back = ours.from_state_dict(tree, state, strict=True)
    assert type(back["model"][0]) is Statistics
    assert back["model"][0].decay == 0.5
    assert back["model"][0].mean[0] == 7
    assert back["model"][0].parts == {"x": (1, Pair(2, None))}
    assert type(back["model"][1]) is flax.core.FrozenDict
    assert ours.is_serializable(Statistics)
    assert ours.is_serializable(flax.core.freeze({}))
    assert ours.to_bytes(tree) == theirs.to_bytes(tree)


def test_what_the_bridge_registers_works_within_types_of_flax() -> None:
    tree = {"s": Statistics(Box([1]), flax.core.freeze({"c": Box(2), "w": 3}))}
    state = ours.to_state_dict(tree)
    assert state == {"s": {"mean": {"content": {"0": 1}}, "parts": {"c": {"content": 2}, "w": 3}}}
    state["s"]["mean"]["content"]["0"] = 5
    back = ours.from_state_dict(tree, state)["s"]
    assert type(back.mean) is Box
    assert back.mean.content == [5]
    assert type(back.parts) is flax.core.FrozenDict
    assert type(back.parts["c"]) is Box
    assert state["s"]["mean"] == {"content": {"0": 5}}
    with pytest.raises(StateDictError, match="- s/mean/content: the target is a list of length 1"):
        ours.from_state_dict(tree, {"s": {"mean": {"content": {}}, "parts": state["s"]["parts"]}})
    with pytest.raises(StateDictError, match="s/mean/<Box>: the keys 1 and '1' are the same"):
        ours.to_state_dict({"s": Statistics(Box({1: 0, "1": 0}), {})})


def test_types_of_flax_work_within_what_the_bridge_registers() -> None:
    tree = [Box(Statistics(1, {"a": 2}))]
    state = ours.to_state_dict(tree)
    assert state == {"0": {"content": {"mean": 1, "parts": {"a": 2}}}}
    assert ours.from_state_dict(tree, state)[0].content == Statistics(1, {"a": 2})


@pytest.mark.parametrize(
    ("state", "lines"),
    [
        (3, ["model/0: the target has a dict with the keys 'mean', 'parts', the state a Python"]),
        ({"mean": 0}, ["model/0: the state lacks 'parts'"]),
        (
            {"mean": 0, "prts": {}},
            [
                "model/0: the state lacks 'parts': did you mean 'prts'?",
                "model/0: the state has 'prts', which the target lacks",
            ],
        ),
        (
            {"mean": 0, "parts": {"x": 3}},
            ["model/0/parts/x: the target has a dict with the keys '0', '1', the state a Python"],
        ),
        (
            {"mean": 0, "parts": {"x": {"0": 0, "1": {"first": 3}}}},
            ["model/0/parts/x/1: the state lacks 'second'"],
        ),
    ],
    ids=["number", "missing", "misspelt", "no keys", "named tuple"],
)
def test_states_that_do_not_fit_types_of_flax_are_our_errors(state: Any, lines: list[str]) -> None:
    tree = statistics()
    given_state = ours.to_state_dict(tree)
    given_state["model"]["0"] = state
    with pytest.raises(StateDictError) as caught:
        ours.from_state_dict(tree, given_state)
    said = str(caught.value).split("\n  - ")[1:]
    assert len(said) == len(lines)
    for one, beginning in zip(said, lines, strict=True):
        assert one.startswith(beginning)
    assert re.search(
        r"registered with Flax: _Statistics; Flax raised \w+Error: ", str(caught.value)
    )
    assert isinstance(caught.value.__cause__, REFUSALS)
    with pytest.raises(StateDictError, match=re.escape(lines[0])):
        ours.from_state_dict(tree, given_state, strict=True)


def test_objects_that_flax_gives_no_state_are_our_errors() -> None:
    with pytest.raises(
        StateDictError, match="s: Flax, with which the type _Statistics is registered"
    ):
        ours.to_state_dict({"s": Statistics({1: 0, "1": 0}, {})})


def test_a_train_state_goes_there_and_back() -> None:
    optax = pytest.importorskip("optax", reason="optax is not installed")
    train_state = pytest.importorskip("flax.training.train_state")
    params = {"dense": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}}
    state = train_state.TrainState.create(
        apply_fn=lambda variables, x: x, params=params, tx=optax.adam(1e-3)
    )
    gradients = jax.tree.map(jnp.ones_like, params)
    later = {"state": jax.jit(lambda s: s.apply_gradients(grads=gradients))(state)}
    template = {"state": state}
    assert trees.same(ours.to_bytes(later), theirs.to_bytes(later))
    for data in (ours.to_bytes(later), theirs.to_bytes(later)):
        back = ours.from_bytes(template, data, strict=True)
        assert structure(back) == structure(template)
        for one, two in zip(jax.tree.leaves(back), jax.tree.leaves(later), strict=True):
            np.testing.assert_array_equal(one, two)
    wrong = ours.to_state_dict(later)
    wrong["state"]["params"]["dense"]["kernel"] = np.ones((3, 4), np.float32)
    with pytest.raises(StateDictError, match=r"- state/params/dense/kernel: .* float32\[3,2\], th"):
        ours.from_state_dict(template, wrong, strict=True)


def test_a_module_of_linen_goes_there_and_back() -> None:
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")
    module = nn.Sequential([nn.Dense(4), nn.Dense(2)])
    variables = module.init(jax.random.key(0), jnp.ones((1, 3)))
    paths = list(ours.flatten_state(ours.to_state_dict(variables)))
    assert sorted(paths) == [
        "params/layers_0/bias",
        "params/layers_0/kernel",
        "params/layers_1/bias",
        "params/layers_1/kernel",
    ]
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.ones((1, 3)))
    back = ours.from_bytes(shapes, theirs.to_bytes(variables), strict=True)
    x = jnp.ones((5, 3))
    np.testing.assert_array_equal(module.apply(back, x), module.apply(variables, x))


@pytest.mark.parametrize("leaf", [OrderedDict(a=[1]), type("D", (dict,), {})(a=[1])], ids=repr)
def test_subclasses_of_dict_pass_through_in_both(leaf: Any) -> None:
    assert ours.to_state_dict({"a": leaf})["a"] is leaf
    assert theirs.to_state_dict({"a": leaf})["a"] is leaf


def test_old_named_tuples_are_read_by_both() -> None:
    old = {
        "name": "Pair",
        "fields": {"0": "second", "1": "first"},
        "values": {"0": 2, "1": {"0": 1}},
    }
    for module in (ours, theirs):
        assert module.from_state_dict(Pair([0], 0), old) == Pair([1], 2)
