"""Tests the error about a state that does not fit: all differences, their paths, and both sides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax2tf_bridge.errors import StateDictError
from jax2tf_bridge.weights import flatten_state, from_state_dict, to_state_dict
from tests.weights.trees import Moments, Pair

TARGET = {
    "params": {
        "layers_0": {"kernel": np.zeros((2, 3), np.float32), "bias": np.zeros(3)},
        "layers": [0, 1],
    }
}


def message(target: Any, state: Any, **options: Any) -> str:
    with pytest.raises(StateDictError) as caught:
        from_state_dict(target, state, **options)
    return str(caught.value)


def test_missing_keys_are_named_with_both_sides_and_what_was_meant() -> None:
    state = {"params": {"layers_0": {"kernal": 0, "bias": 0, "scale": 0}, "layers": {}}}
    text = message(TARGET, state)
    assert (
        "params/layers_0: the state lacks 'kernel': did you mean 'kernal'? The target is a dict "
        "with the keys 'kernel', 'bias'; the state has the keys 'kernal', 'bias', 'scale'" in text
    )
    assert "the state's structure must be that of to_state_dict(target)" in text


def test_all_differences_are_in_one_error_and_the_first_is_its_path() -> None:
    state = {"params": {"layers_0": 3, "layers": {"0": 1}}}
    with pytest.raises(StateDictError) as caught:
        from_state_dict(TARGET, state)
    assert caught.value.path == "params/layers_0"
    assert str(caught.value).endswith(
        "\n  - params/layers_0: the target is a dict with the keys 'kernel', 'bias'; the state is "
        "a Python int"
        "\n  - params/layers: the target is a list of length 2, which has the keys '0', '1'; the "
        "state has the key '0'"
    )


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "None"),
        (1.5, "a Python float"),
        (np.zeros((3, 4), np.float32), "float32[3,4]"),
        (np.int8(3), "int8[]"),
        ("model.msgpack", "a str of length 13: read_weights reads files"),
        (Path("model"), ": read_weights reads files"),
        (b"\x81", "a bytes of length 1: from_bytes reads bytes"),
        ([1, 2], "a list of length 2: to_state_dict turns it into a state"),
        (object(), "a object"),
        (dict, "a type"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    ("target", "what"),
    [
        ({"a": 0}, "a dict with the key 'a'"),
        ([0, 0], "a list of length 2"),
        ((0,), "a tuple of length 1"),
        (Pair(0, 0), "a named tuple Pair with the fields 'first', 'second'"),
    ],
    ids=["dict", "list", "tuple", "named tuple"],
)
def test_a_state_without_keys_is_a_clear_error(
    target: Any, what: str, state: Any, said: str
) -> None:
    text = message({"p": target}, {"p": state})
    assert f"p: the target is {what}; the state is " in text
    assert said in text


def test_an_empty_dict_still_needs_a_state_with_keys() -> None:
    assert "at the top: the target is a dict with no keys; the state is a" in message({}, 3)


@pytest.mark.parametrize(
    ("state", "has"),
    [
        ({"0": 1}, "the key '0'"),
        ({}, "no keys"),
        ({"0": 1, "1": 2, "2": 3}, "the keys '0', '1', '2'"),
        ({"0": 1, "2": 3}, "the keys '0', '2'"),
        ({0: 1, 1: 3}, "the keys 0, 1"),
    ],
)
def test_lengths_of_lists_must_agree(state: Any, has: str) -> None:
    for target in ([0, 0], (0, 0)):
        kind = type(target).__name__
        assert (
            f"at the top: the target is a {kind} of length 2, which has the keys '0', '1'; the "
            f"state "
            f"has {has}" in message(target, state)
        )


@pytest.mark.parametrize(
    ("state", "has"),
    [
        ({"first": 1}, "the field 'first'"),
        ({"first": 1, "second": 2, "third": 3}, "the fields 'first', 'second', 'third'"),
        ({}, "no fields"),
        ({"name": "P", "fields": 3, "values": {}}, "the fields 'name', 'fields', 'values'"),
        (
            {"name": "P", "fields": {"0": "first", "1": "other"}, "values": {"0": 0, "1": 1}},
            "the fields 'first', 'other'",
        ),
        (
            {"name": "P", "fields": {"0": "first", "1": "second"}, "values": {"0": 0}},
            "the fields 'name', 'fields', 'values'",
        ),
        (
            {"name": "P", "fields": {"0": "first", "1": 3}, "values": {"0": 0, "1": 1}},
            "the fields 'name', 'fields', 'values'",
        ),
    ],
)
def test_fields_of_named_tuples_must_agree(state: Any, has: str) -> None:
    assert (
        "the target is a named tuple Pair with the fields 'first', 'second'; the state has "
        f"{has}" in message(Pair(0, 0), state)
    )


def test_a_state_one_level_too_deep_or_too_high_is_recognised() -> None:
    inner = TARGET["params"]
    state = to_state_dict(TARGET)
    assert "Its 'params' has them all: did you mean state['params']?" in message(inner, state)
    assert "It has all keys of the target's 'params': did you mean {'params': state}?" in message(
        TARGET, state["params"]
    )


def test_a_flat_state_is_recognised() -> None:
    flat = flatten_state(TARGET)
    assert "Its keys are paths: unflatten_state turns them into nested" in message(TARGET, flat)


def test_the_name_stands_before_the_path() -> None:
    with pytest.raises(StateDictError) as caught:
        from_state_dict(TARGET, {"params": {}}, name="model/encoder")
    assert caught.value.path == "model/encoder/params"
    assert "- model/encoder/params: the state lacks 'layers_0' and 'layers'." in str(caught.value)


def test_long_lists_are_cut() -> None:
    many = {f"layers_{i}": {"kernel": 0} for i in range(30)}
    text = message(many, {})
    assert "and 22 more" in text
    text = message(many, dict.fromkeys(many, 0))
    assert text.count("\n  - layers_") == 20
    assert text.endswith("\n  - and 10 more")


def test_keys_with_slashes_are_written_as_in_paths() -> None:
    with pytest.raises(StateDictError) as caught:
        from_state_dict({"a/b": {"c": [0]}}, {"a/b": {"c": 0}})
    assert caught.value.path == "a~1b/c"


def test_the_error_is_a_value_error_and_a_type_error() -> None:
    for kind in (ValueError, TypeError):
        with pytest.raises(kind, match="does not fit"):
            from_state_dict({"a": 0}, {})


def test_nothing_is_built_when_something_does_not_fit() -> None:
    class Checked(Moments):
        __slots__ = ()

        def __new__(cls, count: Any, mean: Any, variance: Any) -> "Checked":
            assert variance is not None
            return super().__new__(cls, count, mean, variance)

    target = {"m": Checked(0, [0], 1)}
    text = message(target, {"m": {"count": 1, "mean": {}, "variance": 2}})
    assert "m/mean: the target is a list of length 1" in text
