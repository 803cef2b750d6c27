"""Tests strict=True: a state must have the keys, shapes and dtypes of the target."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge.errors import StateDictError
from jax2tf_bridge.weights import from_state_dict, msgpack_restore, msgpack_serialize, to_state_dict
from tests.weights import trees
from tests.weights.trees import Pair


def difference(target: Any, state: Any) -> str:
    """Returns the line about two leaves in the error; "" without one."""
    try:
        restored = from_state_dict({"a": target}, {"a": state}, strict=True)
    except StateDictError as error:
        (line,) = str(error).split("\n  - ")[1:]
        return line
    assert restored["a"] is state
    return ""


@trees.unhurried
@given(st.data())
def test_arrays_fit_if_shape_and_dtype_are_those_of_the_target(data: st.DataObject) -> None:
    one, other = data.draw(trees.arrays()), data.draw(trees.arrays())
    alike = one.shape == other.shape and one.dtype == other.dtype
    assert (difference(one, other) == "") == alike
    assert difference(one, np.zeros(one.shape, one.dtype)) == ""
    assert difference(jax.ShapeDtypeStruct(one.shape, one.dtype), one) == ""


@pytest.mark.parametrize(
    ("target", "state"),
    [
        (jax.ShapeDtypeStruct((2,), jnp.bfloat16), np.zeros(2, ml_dtypes.bfloat16)),
        (jnp.zeros((2,), jnp.int32), np.zeros(2, np.int32)),
        (np.zeros(2, np.int32), jnp.zeros((2,), jnp.int32)),
        (np.zeros(2, ">f4"), np.zeros(2, "<f4")),
        (np.float32(0), np.zeros((), np.float32)),
        (0, 5),
        (0, np.int64(5)),
        (0, jnp.uint8(5)),
        (np.int32(0), 5),
        (0.0, ml_dtypes.bfloat16(5)),
        (False, np.True_),
        (1j, np.complex64(2)),
        (None, None),
        ("a", "b"),
        (bytearray(b"ab"), b"c"),
        pytest.param(memoryview(b"ab"), b"c", id="memoryview-bytes"),
        (b"ab", bytearray(b"c")),
        (jax.random.key(0), jax.random.key(1)),
    ],
    ids=repr,
)
def test_these_fit(target: Any, state: Any) -> None:
    assert difference(target, state) == ""


@pytest.mark.parametrize(
    ("target", "state", "said"),
    [
        (np.zeros((2, 3), np.float32), np.zeros((3, 2)), "float32[2,3], the state float64[3,2]"),
        (np.zeros(2), np.zeros(2, np.float32), "float64[2], the state float32[2]"),
        (jax.ShapeDtypeStruct((), jnp.bfloat16), np.float32(0), "bfloat16[], the state float32[]"),
        (np.zeros(2), [0.0, 0.0], "float64[2], the state a list of length 2"),
        (np.zeros(2), {"0": 0.0}, "float64[2], the state a dict with the key '0'"),
        (0, 5.0, "a Python int, the state a Python float"),
        (0, True, "a Python int, the state a Python bool"),
        (0, np.float32(5), "a Python int, the state float32[]"),
        (0, np.zeros(1, np.int32), "a Python int, the state int32[1]"),
        (np.bool_(0), 5, "bool[], the state a Python int"),
        (None, np.zeros(2), "None, the state float64[2]"),
        (np.zeros(2), None, "float64[2], the state None"),
        ("a", b"a", "a str of length 1, the state a bytes of length 1"),
        (jax.random.key(0), np.zeros(2, np.uint32), "key<fry>[], the state uint32[2]"),
    ],
    ids=repr,
)
def test_these_do_not_fit(target: Any, state: Any, said: str) -> None:
    assert difference(target, state) == f"a: the target has {said}"
    # As Flax has it, leaves are not compared.
    assert from_state_dict([target], {"0": state})[0] is state


def test_all_differences_are_listed_in_order() -> None:
    target = {"a": {"w": np.zeros(2), "b": 0.0}, "l": [1, 2], "p": Pair(1, 2)}
    state = {
        "a": {"w": np.zeros(3), "b": 1.0, "extra": 1},
        "l": {"0": 1.0, "1": 2, "2": 3},
        "p": {"first": None, "secnd": 2},
    }
    with pytest.raises(StateDictError) as caught:
        from_state_dict(target, state, strict=True)
    assert caught.value.path == "a"
    assert str(caught.value).split("\n  - ")[1:] == [
        "a: the state has 'extra', which the target lacks",
        "a/w: the target has float64[2], the state float64[3]",
        "l: the state has '2', which the target lacks",
        "l/0: the target has a Python int, the state a Python float",
        "p: the state lacks 'second': did you mean 'secnd'?",
        "p: the state has 'secnd', which the target lacks",
        "p/first: the target has a Python int, the state None",
    ]
    assert "or leave out strict=True" in str(caught.value)


def test_a_state_without_keys_is_listed_like_the_others() -> None:
    with pytest.raises(StateDictError, match=r"a: the target has a dict with the key 'b', the st"):
        from_state_dict({"a": {"b": 0}, "c": 0}, {"a": 3, "c": 0}, strict=True)
    with pytest.raises(StateDictError, match=r"model/a: the target has a dict with no keys, the s"):
        from_state_dict({"a": []}, {"a": []}, "model", strict=True)


def test_thousands_of_differences_take_no_time() -> None:
    target = {f"layer_{i}": 0 for i in range(5000)}
    with pytest.raises(StateDictError, match="and 9980 more"):
        from_state_dict(target, {f"block_{i}": 0 for i in range(5000)}, strict=True)


@trees.unhurried
@given(trees.trees(st.one_of(trees.arrays(trees.NUMPY_DTYPES), trees.numpy_scalars)))
def test_what_was_stored_and_read_again_fits(tree: Any) -> None:
    state = msgpack_restore(msgpack_serialize(to_state_dict(tree)))
    assert trees.same(from_state_dict(tree, state, strict=True), tree)


def test_variables_of_tensorflow_are_compared_too() -> None:
    tf = pytest.importorskip("tensorflow")
    variable = tf.Variable(np.zeros((2, 3), np.float32))
    assert difference(variable, np.zeros((2, 3), np.float32)) == ""
    assert difference(variable, np.zeros((2, 4), np.float32)) != ""
    assert difference(np.zeros((2, 3), np.float32), tf.zeros((2, 3))) == ""


def test_a_level_too_many_or_too_few_is_recognized() -> None:
    inner = {"dense": {"kernel": np.ones(2)}}
    with pytest.raises(StateDictError, match=r"did you mean \{'params': state\}\?"):
        from_state_dict({"params": inner}, inner, strict=True)
    with pytest.raises(StateDictError, match=r"did you mean state\['params'\]\?"):
        from_state_dict(inner, {"params": inner}, strict=True)
    with pytest.raises(StateDictError, match="Its keys are paths: unflatten_state turns"):
        from_state_dict(inner, {"dense/kernel": np.ones(2)}, strict=True)
