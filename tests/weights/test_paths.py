"""Tests paths into state dicts: they round-trip, and invalid ones are errors."""

import re
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge.errors import StateDictError
from jax2tf_bridge.weights import (
    flatten_state,
    join_path,
    split_path,
    to_state_dict,
    unflatten_state,
)
from tests.weights import trees


@trees.unhurried
@given(st.lists(trees.keys))
def test_a_path_has_the_keys_that_it_was_made_of(keys: list[str]) -> None:
    assert split_path(join_path(keys)) == tuple(keys)


@trees.unhurried
@given(st.lists(trees.keys), st.lists(trees.keys))
def test_two_sequences_of_keys_never_share_a_path(one: list[str], other: list[str]) -> None:
    assert (join_path(one) == join_path(other)) == (one == other)


@trees.unhurried
@given(st.text("ab/~01", max_size=8))
def test_what_can_be_split_is_what_join_writes(path: str) -> None:
    try:
        keys = split_path(path)
    except StateDictError:
        parts = path.split("/")
        assert "" in parts or any(re.search("~(?![01])", part) for part in parts if part != "~")
    else:
        assert join_path(keys) == path


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("a//b", "a key is missing"),
        ("/a", "a key is missing"),
        ("a/", "a key is missing"),
        ("a/b~", "'b~' has a '~' without 0 or 1 behind it"),
        ("~2", "'~2' has a '~' without 0 or 1 behind it"),
    ],
)
def test_what_is_no_path_is_refused_with_the_rules(path: str, fault: str) -> None:
    with pytest.raises(StateDictError, match=re.escape(f"{path!r} is not a path of a")) as caught:
        split_path(path)
    assert fault in str(caught.value)
    assert "'~1' for a '/'" in str(caught.value)


def test_paths_are_text() -> None:
    flat: Any = {0: 1.5}
    text = "0 is not a path of a state dict: expected text, got int. Write it as text, such as 'par"
    with pytest.raises(StateDictError, match=text):
        unflatten_state(flat)


@trees.unhurried
@given(trees.state_dicts())
def test_unflatten_is_the_inverse_of_flatten(state: Any) -> None:
    assert trees.same(unflatten_state(flatten_state(state)), state)


@trees.unhurried
@given(trees.trees())
def test_flatten_reads_lists_and_tuples_as_to_state_dict_writes_them(tree: Any) -> None:
    assert trees.same(unflatten_state(flatten_state(tree)), to_state_dict(tree))
    assert trees.same(flatten_state(tree), flatten_state(to_state_dict(tree)))


@trees.unhurried
@given(trees.trees())
def test_no_leaf_is_a_container_that_has_anything(tree: Any) -> None:
    for leaf in flatten_state(tree).values():
        assert not isinstance(leaf, (dict, list, tuple)) or leaf == {}


def test_other_mappings_are_flattened_too() -> None:
    assert flatten_state(OrderedDict(a=OrderedDict({1: 2}))) == {"a/1": 2}


def test_the_leaves_are_those_given_and_the_order_is_kept() -> None:
    leaf = object()
    state = {"b": {"y": leaf, "x": 1}, "a": 2}
    assert list(flatten_state(state)) == ["b/y", "b/x", "a"]
    assert flatten_state(state)["b/y"] is leaf
    back = unflatten_state(flatten_state(state))
    assert list(back) == ["b", "a"]
    assert back["b"]["y"] is leaf


def test_a_whole_that_is_a_leaf_has_the_empty_path() -> None:
    assert flatten_state(1.5) == {"": 1.5}
    whole: Any = unflatten_state({"": 1.5})
    assert whole == 1.5
    assert unflatten_state({}) == {}


@pytest.mark.parametrize(
    ("flat", "path", "beyond"),
    [
        ({"a": 1, "a/b": 2}, "a", "a/b"),
        ({"a/b": 1, "a": 2}, "a", "a/b"),
        ({"x": 0, "a/b": {}, "a/b/c": 2}, "a/b", "a/b/c"),
        ({"": 1, "b": 2}, "", "b"),
        ({"b": 2, "": 1}, "", "b"),
    ],
)
def test_a_leaf_on_the_way_to_another_is_refused(
    flat: dict[str, Any], path: str, beyond: str
) -> None:
    with pytest.raises(
        StateDictError, match=f"at '{path}', and another one below it at '{beyond}'"
    ):
        unflatten_state(flat)


def test_a_leaf_that_is_a_dict_is_not_written_into() -> None:
    leaf = {"x": 1}
    with pytest.raises(StateDictError):
        unflatten_state({"a": leaf, "a/b": 2})
    assert leaf == {"x": 1}


def test_depth_is_no_limit() -> None:
    deep: dict[str, Any] = {"leaf": 1}
    for _ in range(2_000):  # Python's own limit is at 1000
        deep = {"k": deep}
    flat = flatten_state(deep)
    assert flat == {"k/" * 2_000 + "leaf": 1}
    assert flatten_state(unflatten_state(flat)) == flat
