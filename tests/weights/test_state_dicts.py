"""Tests state dicts of dicts, lists, tuples and named tuples, and their restoration."""

from collections import OrderedDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from jax2tf_bridge.errors import StateDictError
from jax2tf_bridge.weights import flatten_state, from_state_dict, to_state_dict
from tests.weights import trees
from tests.weights.trees import Moments, Nothing, Pair


@trees.unhurried
@given(trees.trees())
def test_an_object_is_restored_from_its_own_state(tree: Any) -> None:
    state = to_state_dict(tree)
    assert trees.same(from_state_dict(tree, state), tree)
    assert trees.same(from_state_dict(tree, state, strict=True), tree)


@trees.unhurried
@given(trees.trees())
def test_the_state_of_a_state_is_itself(tree: Any) -> None:
    state = to_state_dict(tree)
    assert trees.same(to_state_dict(state), state)


@trees.unhurried
@given(trees.trees())
def test_states_hold_no_containers_but_dicts_with_text_as_keys(tree: Any) -> None:
    def check(state: Any) -> None:
        assert not isinstance(state, (list, tuple))
        if isinstance(state, dict):
            assert all(type(key) is str for key in state)
            for part in state.values():
                check(part)

    check(to_state_dict(tree))


def test_lists_and_tuples_are_stored_by_index_and_named_tuples_by_field() -> None:
    state = to_state_dict({"l": [1, (2,)], 3: Moments(0, {"a": 1}, None), "e": [(), Nothing()]})
    assert state == {
        "l": {"0": 1, "1": {"0": 2}},
        "3": {"count": 0, "mean": {"a": 1}, "variance": None},
        "e": {"0": {}, "1": {}},
    }


def test_leaves_are_handed_over_not_copied() -> None:
    array = np.ones(3)
    assert to_state_dict([array])["0"] is array
    assert from_state_dict([None], {"0": array})[0] is array


def test_containers_are_new_and_what_was_given_is_unchanged() -> None:
    target = {"a": [1, {"b": 2}]}
    state = to_state_dict(target)
    assert state is not target
    restored = from_state_dict(target, {"a": {"0": 5, "1": {"b": 6}}})
    assert target == {"a": [1, {"b": 2}]}
    assert restored == {"a": [5, {"b": 6}]}


def test_the_order_is_that_of_the_target() -> None:
    target = {"b": 1, "a": 2}
    assert list(to_state_dict(target)) == ["b", "a"]
    assert list(from_state_dict(target, {"a": 3, "b": 4})) == ["b", "a"]


def test_keys_get_their_own_type_back() -> None:
    assert from_state_dict({1: 0, "x": 0, None: 0}, {"1": 5, "x": 6, "None": 7}) == {
        1: 5,
        "x": 6,
        None: 7,
    }


@pytest.mark.parametrize(
    "leaf",
    [
        *(None, 1, 1.5, True, 2j, "text", b"bytes", {1, 2}, range(3), object()),
        *(OrderedDict(a=[1]), defaultdict(list, a=[1]), np.float32(1), type("L", (list,), {})([1])),
        type("T", (tuple,), {})((1, 2)),
    ],
    ids=lambda leaf: type(leaf).__name__,
)
def test_what_is_not_registered_passes_through(leaf: Any) -> None:
    assert to_state_dict(leaf) is leaf
    assert to_state_dict({"a": leaf})["a"] is leaf
    other = object()
    assert from_state_dict(leaf, other) is other
    assert from_state_dict([leaf], {"0": other}) == [other]


def test_keys_that_the_target_lacks_are_left_alone() -> None:
    assert from_state_dict({"a": 0}, {"a": 1, "z": 2}) == {"a": 1}
    assert from_state_dict({}, {"z": 2}) == {}


def test_a_leaf_takes_whatever_the_state_has() -> None:
    assert from_state_dict({"a": np.ones(3)}, {"a": {"deep": "text"}}) == {"a": {"deep": "text"}}


@pytest.mark.parametrize("empty", [{}, [], (), "", np.zeros((0, 3))], ids=repr)
def test_an_empty_list_takes_anything_that_is_empty(empty: Any) -> None:
    assert from_state_dict({"a": []}, {"a": empty}) == {"a": []}
    assert from_state_dict((), empty) == ()


@pytest.mark.parametrize("kind", [OrderedDict, MappingProxyType, lambda d: defaultdict(int, d)])
def test_a_state_may_be_any_mapping(kind: Any) -> None:
    state = kind({"a": kind({"0": 1, "1": 2}), "p": kind({"first": 3, "second": 4})})
    target = {"a": [0, 0], "p": Pair(0, 0)}
    assert from_state_dict(target, state) == {"a": [1, 2], "p": Pair(3, 4)}


def test_a_state_may_be_a_file_of_numpy(tmp_path: Any) -> None:
    np.savez(tmp_path / "weights.npz", kernel=np.ones((2, 3)), bias=np.zeros(3))
    with np.load(tmp_path / "weights.npz") as state:
        restored = from_state_dict({"kernel": None, "bias": None}, state)
    assert restored["kernel"].shape == (2, 3)


def test_a_named_tuple_is_restored_whatever_the_order_of_its_fields() -> None:
    assert from_state_dict(Pair(0, [0]), {"second": {"0": 2}, "first": 1}) == Pair(1, [2])


def test_the_old_form_of_named_tuples_is_read() -> None:
    old = {
        "name": "Pair",
        "fields": {"0": "second", "1": "first"},
        "values": {"0": {"0": 2}, "1": 1},
    }
    assert from_state_dict(Pair(0, [0]), old) == Pair(1, [2])
    assert from_state_dict({"p": Pair(0, [0])}, {"p": old}, strict=True) == {"p": Pair(1, [2])}


def test_a_named_tuple_with_the_fields_of_the_old_form_round_trips() -> None:
    kind = namedtuple("kind", ["name", "fields", "values"])
    tree = kind("n", [1], {"x": 2})
    assert from_state_dict(tree, to_state_dict(tree)) == tree
    assert from_state_dict(tree, to_state_dict(tree), strict=True) == tree


def test_subclasses_of_named_tuples_keep_their_class() -> None:
    class Named(Pair):
        __slots__ = ()

    restored = from_state_dict(Named(0, 0), {"first": 1, "second": 2})
    assert type(restored) is Named
    assert restored == (1, 2)


def test_an_object_in_two_places_is_stored_in_both() -> None:
    shared = [1]
    state = to_state_dict({"a": shared, "b": shared})
    assert state == {"a": {"0": 1}, "b": {"0": 1}}
    assert from_state_dict({"a": shared, "b": shared}, state) == {"a": [1], "b": [1]}
    assert flatten_state({"a": shared, "b": [shared]}) == {"a/0": 1, "b/0/0": 1}


def test_depth_is_no_limit() -> None:
    deep: Any = np.float32(1.5)
    for level in range(4_000):
        deep = ({"k": deep}, [deep], (deep,), Pair(deep, 0))[level % 4]
    state = to_state_dict(deep)
    for strict in (False, True):
        restored = from_state_dict(deep, state, strict=strict)
        for _ in range(4_000):
            restored = restored["k"] if isinstance(restored, dict) else restored[0]
        assert restored == 1.5
    assert 1.5 in flatten_state(state).values()


def test_cycles_are_an_error_that_says_where() -> None:
    tree: dict[str, Any] = {"params": {}}
    tree["params"]["again"] = [tree]
    for function in (to_state_dict, flatten_state):
        with pytest.raises(StateDictError, match="params/again/0: the container contains it") as e:
            function(tree)
        assert e.value.path == "params/again/0"
    state: dict[str, Any] = {"params": {"again": {}}}
    state["params"]["again"]["0"] = state
    with pytest.raises(StateDictError, match="params/again/0: the container contains itself"):
        from_state_dict(tree, state)


def test_keys_that_are_the_same_text_are_an_error() -> None:
    for function in (to_state_dict, flatten_state):
        with pytest.raises(StateDictError, match="a/b: the keys 1 and '1' are the same text"):
            function({"a": {"b": {1: 0, "x": 0, "1": 0}}})
    with pytest.raises(ValueError, match="at the top: the keys None and 'None' are"):
        to_state_dict({None: 0, "None": 1})
    # Restoring has one value for both, as in Flax; strict does not take that.
    assert from_state_dict({1: 0, "1": 0}, {"1": 5}) == {1: 5, "1": 5}
    with pytest.raises(StateDictError, match="the same text"):
        from_state_dict({1: 0, "1": 0}, {"1": 5}, strict=True)
