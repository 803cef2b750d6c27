"""Tests registered types, current_path(), and jax.tree_util.Partial."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge.errors import SerializationError, StateDictError
from jax2tf_bridge.weights import (
    current_path,
    from_state_dict,
    is_serializable,
    register_serialization_state,
    to_state_dict,
)
from tests.fresh_process import run_python
from tests.weights.trees import Box, Pair


class Meter:
    """Object that records the path at which it is restored."""

    def __init__(self, value: float = 0) -> None:
        self.value, self.seen = value, ""


def _restore_meter(meter: Meter, state: Any) -> Meter:
    restored = Meter(state["value"])
    restored.seen = current_path()
    if state["value"] < 0:
        raise ArithmeticError(f"a negative value at {current_path()}")
    return restored


register_serialization_state(Meter, lambda meter: {"value": meter.value}, _restore_meter)


def register(to: Callable[[Any], Any], back: Callable[[Any, Any], Any] | None = None) -> type:
    """Makes a new type, registered with these functions."""
    kind = type("Fresh", (), {})
    register_serialization_state(kind, to, back or (lambda target, state: target))
    return kind


def test_registered_types_are_stored_and_restored_by_their_functions() -> None:
    tree = {"a": [Box({"w": 1}, "first"), (Box(2),)]}
    assert to_state_dict(tree) == {
        "a": {"0": {"content": {"w": 1}}, "1": {"0": {"content": 2}}},
    }
    state = {"a": {"0": {"content": {"w": 5}}, "1": {"0": {"content": 6}}}}
    restored = from_state_dict(tree, state)
    assert restored["a"][0].content == {"w": 5}
    assert restored["a"][0].name == "first"
    assert restored["a"][1][0].content == 6


def test_subclasses_of_registered_types_are_not_registered() -> None:
    class Crate(Box):
        pass

    crate = Crate(1)
    assert to_state_dict(crate) is crate
    assert not is_serializable(crate)


def test_current_path_says_where_a_registered_function_works() -> None:
    tree = {"params": [Meter(), Box({"m": Meter()})], "p": Pair(0, Meter())}
    restored = from_state_dict(tree, to_state_dict(tree))
    assert restored["params"][0].seen == "./params/0"
    assert restored["params"][1].content["m"].seen == "./params/1/content/m"
    assert restored["p"].second.seen == "./p/second"
    assert from_state_dict(tree, to_state_dict(tree), "model")["p"].second.seen == "model/p/second"
    assert from_state_dict(Meter(), {"value": 1}).seen == "."
    assert current_path() == ""


def test_errors_of_registered_functions_pass_and_leave_no_path_behind() -> None:
    with pytest.raises(ArithmeticError, match=r"a negative value at \./params/m"):
        from_state_dict({"params": {"m": Meter()}}, {"params": {"m": {"value": -1}}})
    assert current_path() == ""


def test_paths_in_errors_go_on_within_registered_types() -> None:
    tree = {"params": [Box(Box({"w": 0, "v": [0]}))]}
    inner = {"content": {"content": {"w": 1, "v": 2}}}
    with pytest.raises(StateDictError, match="- params/0/content/content/v: the target is a list"):
        from_state_dict(tree, {"params": {"0": inner}})
    with pytest.raises(StateDictError) as caught:
        from_state_dict(tree, {"params": {"0": {"content": {"content": {}}}}}, name="model")
    assert caught.value.path == "model/params/0/content/content"
    with pytest.raises(StateDictError, match="params/0/<Box>/<Box>/b: the keys 1 and '1'"):
        to_state_dict({"params": [Box(Box({"b": {1: 0, "1": 0}}))]})


def test_strict_looks_into_registered_types() -> None:
    tree = {"a": Box({"w": np.zeros(2), "m": Meter(0.0)})}
    state = {"a": {"content": {"w": np.zeros(3), "m": {"value": 1}}}}
    with pytest.raises(StateDictError) as caught:
        from_state_dict(tree, state, strict=True)
    assert str(caught.value).split("\n  - ")[1:] == [
        "a/content/w: the target has float64[2], the state float64[3]",
        "a/content/m/value: the target has a Python float, the state a Python int",
    ]


def test_strict_looks_into_lists_that_registered_functions_give() -> None:
    kind = register(lambda target: {"steps": [np.zeros(2), (1, 2)]})
    target = kind()
    assert from_state_dict(target, {"steps": [np.ones(2), [3, 4]]}, strict=True) is target
    with pytest.raises(StateDictError) as caught:
        from_state_dict(target, {"steps": [np.ones(3), [3]]}, strict=True)
    assert str(caught.value).split("\n  - ")[1:] == [
        "steps/0: the target has float64[2], the state float64[3]",
        "steps/1: the target has a tuple of length 2, the state a list of length 1",
    ]


def test_a_state_need_not_be_a_dict() -> None:
    kind = register(lambda target: 7, lambda target, state: state + 1)
    assert to_state_dict([kind()]) == {"0": 7}
    assert from_state_dict([kind()], {"0": 7}) == [8]


def test_keys_of_a_state_that_are_not_text_are_an_error_that_names_them() -> None:
    kind = register(lambda target: {"a": 1, 2: 3})
    with pytest.raises(StateDictError) as caught:
        to_state_dict({"x": [kind()]})
    assert str(caught.value) == (
        "x/0: the function registered for Fresh returns a state with the key 2 of type int. The "
        "keys of a state dict are text: convert it with str()."
    )
    assert caught.value.path == "x/0"


def test_what_a_registered_function_gives_is_not_taken_apart() -> None:
    kind = register(lambda target: {"a": [1, 2]})
    assert to_state_dict(kind()) == {"a": [1, 2]}


def test_registering_twice_needs_override() -> None:
    kind = register(lambda target: {"old": 1})
    with pytest.raises(SerializationError, match=r"Fresh already has functions for its state\. Gi"):
        register_serialization_state(kind, lambda target: {}, lambda target, state: target)
    assert to_state_dict(kind()) == {"old": 1}
    register_serialization_state(
        kind, lambda target: {"new": 2}, lambda target, state: target, override=True
    )
    assert to_state_dict(kind()) == {"new": 2}


@pytest.mark.parametrize("kind", [dict, list, tuple, jax.tree_util.Partial])
def test_built_in_types_have_functions_already(kind: Any) -> None:
    with pytest.raises(ValueError, match="already has functions for its state, built in\\. Give"):
        register_serialization_state(kind, lambda target: {}, lambda target, state: target)


def test_what_cannot_be_registered_is_an_error() -> None:
    with pytest.raises(SerializationError, match=r"Pair is a named tuple: those are always"):
        register_serialization_state(Pair, lambda t: {}, lambda t, s: t, override=True)
    with pytest.raises(SerializationError, match=r"takes a type\. Got: 3 of type int"):
        register_serialization_state(3, lambda t: {}, lambda t, s: t)  # type: ignore[arg-type]
    with pytest.raises(SerializationError, match=r"ty_from_state_dict of .*Fresh must be a funct"):
        register_serialization_state(type("Fresh", (), {}), lambda t: {}, None)  # type: ignore[arg-type]


def test_overriding_a_built_in_type_counts_everywhere() -> None:
    code = """
        from jax2tf_bridge.weights import *

        register_serialization_state(
            list, lambda xs: {"n": len(xs)}, lambda xs, state: xs * state["n"], override=True
        )
        print(to_state_dict({"a": ([1, 2],)}), from_state_dict({"a": [0]}, {"a": {"n": 3}}))
    """
    assert run_python(code, without_jax=True) == "{'a': {'0': {'n': 2}}} {'a': [0, 0, 0]}"


def test_is_serializable_takes_types_and_objects() -> None:
    known: list[Any] = [{}, [], (), dict, list, tuple, Box(1), Box, jax.tree_util.Partial(print)]
    for target in known:
        assert is_serializable(target)
    for leaf in (np.ones(3), jnp.ones(3), 1, None, str, Pair, Pair(1, 2), object()):
        assert not is_serializable(leaf)


def test_cycles_through_registered_types_are_an_error() -> None:
    box = Box(None)
    box.content = {"again": [box]}
    with pytest.raises(StateDictError, match="a/<Box>/again/0: the container contains its") as e:
        to_state_dict({"a": box})
    assert "again/0" in e.value.path
    state: dict[str, Any] = {}
    state["content"] = {"again": {"0": state}}
    with pytest.raises(StateDictError, match="the container contains itself"):
        from_state_dict(box, state)
    assert current_path() == ""


def test_registered_types_nested_beyond_the_recursion_limit_are_one_error() -> None:
    box = Box(0)
    for _ in range(sys.getrecursionlimit()):
        box = Box(box)
    with pytest.raises(StateDictError, match=r"nested too deeply for Python's recursion limit"):
        to_state_dict(box)
    assert to_state_dict(Box(1)) == {"content": 1}


def test_partial_is_stored_by_its_arguments() -> None:
    def scale(a: Any, b: Any, *, c: Any) -> Any:
        return a["w"] * b + c

    target = jax.tree_util.Partial(scale, {"w": jnp.zeros(2)}, 1.0, c=[0])
    state = to_state_dict({"f": target})["f"]
    assert set(state) == {"args", "keywords"}
    assert state["keywords"] == {"c": {"0": 0}}
    state["args"]["0"]["w"] = np.ones(2)
    restored = from_state_dict(target, {**state, "more": 1})
    assert type(restored) is jax.tree_util.Partial
    assert restored.func is scale
    np.testing.assert_array_equal(restored.args[0]["w"], np.ones(2))
    assert restored.keywords == {"c": [0]}
    with pytest.raises(
        StateDictError, match=r"f: the state lacks 'keywords'\. The target is a Part"
    ):
        from_state_dict({"f": target}, {"f": {"args": {}}})
    with pytest.raises(StateDictError, match="f/args: the target is a tuple of length 2, which"):
        from_state_dict({"f": target}, {"f": {"args": {}, "keywords": {"c": {"0": 1}}}})


def test_arrays_of_jax_are_leaves() -> None:
    array, key = jnp.ones((2, 3), jnp.bfloat16), jax.random.key(0)
    state = to_state_dict({"a": [array], "k": key})
    assert state["a"]["0"] is array
    assert state["k"] is key
    assert from_state_dict({"a": [None]}, {"a": {"0": array}})["a"][0] is array


def test_state_dicts_work_under_jit() -> None:
    target = {"p": Pair(jnp.ones(2), [jnp.zeros(3)])}

    @jax.jit
    def double(tree: Any) -> Any:
        state = to_state_dict(tree)
        state["p"]["first"] = 2 * state["p"]["first"]
        return from_state_dict(tree, state, strict=True)

    np.testing.assert_array_equal(double(target)["p"].first, 2 * np.ones(2))
