"""Tests the errors about trees that msgpack cannot hold, raised before anything is written."""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.weights import msgpack_restore, msgpack_serialize, to_bytes

# Private: its limits are lowered.
from jax2tf_bridge.weights.msgpack import _format
from jax2tf_bridge.weights.msgpack._format import CHUNKED_KEY, MAX_DEPTH, MAX_ITEM_SIZE
from jax2tf_bridge.weights.msgpack._write import encode

HELD = (
    "expected dict, list, str, bytes, bool, int, float, complex, None, or arrays and scalars of "
    "NumPy or JAX. "
)
CONVERT = (
    "Convert it, or register its type with register_serialization_state and use to_bytes or "
    "write_weights."
)
AS_DICTS = "Write a list, or use to_bytes or write_weights, which write tuples as dicts."
SUBCLASS = "It is a subclass of {}, which is lost in a file: write a plain one."
UNREADABLE = (
    "which could be written but not read: expected bool, integers, floats, complex, times, or a "
    "dtype of ml_dtypes that is installed here. "
)

Pair = namedtuple("Pair", "a b")


class Text(str):
    """Text of a user's type."""


class Color(enum.IntEnum):
    """Named integers."""

    RED = 1


class Remote(jax.Array):
    """Looks like an array with parts on other processes."""

    dtype = np.dtype(np.float32)
    is_fully_addressable = False
    is_fully_replicated = False

    def is_deleted(self) -> bool:
        return False


def remote_array() -> Any:
    kind: Any = Remote
    kind.__abstractmethods__ = frozenset()
    return kind()


def deleted_array() -> Any:
    array = jnp.arange(3)
    array.delete()
    return array


def message(tree: Any, write: Callable[[Any], bytes] = msgpack_serialize) -> str:
    """Returns the message of the error that writing a tree raises."""
    with pytest.raises(SerializationError) as caught:
        write(tree)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, 2), f"has the type tuple: {HELD}{AS_DICTS}"),
        (Pair(1, 2), f"has the type {__name__}.Pair: {HELD}{AS_DICTS}"),
        ({1}, f"has the type set: {HELD}{CONVERT}"),
        (object(), f"has the type object: {HELD}{CONVERT}"),
        (Text("a"), f"has the type {__name__}.Text: {HELD}{SUBCLASS.format('str')}"),
        (Color.RED, f"has the type {__name__}.Color: {HELD}{SUBCLASS.format('int')}"),
        (
            OrderedDict(a=1),
            f"has the type collections.OrderedDict: {HELD}{SUBCLASS.format('dict')}",
        ),
        (
            jax.ShapeDtypeStruct((2,), "float32"),
            f"has the type {jax.ShapeDtypeStruct.__module__}.ShapeDtypeStruct: {HELD}{CONVERT}",
        ),
        (
            2**64,
            "is the int 0x10000000000000000: expected -2**63 to 2**64 - 1. Write it as a str, or "
            "as a float.",
        ),
        (
            -(2**63) - 1,
            "is the int -0x8000000000000001: expected -2**63 to 2**64 - 1. Write it as a str, or "
            "as a float.",
        ),
        (
            "\ud800",
            "is a str with a surrogate, which UTF-8 cannot encode: expected text. Write it as "
            "bytes: text.encode('utf-8', 'surrogatepass').",
        ),
        (
            np.ma.masked_array([1.0, 2.0], [True, False]),
            "is a masked array, whose mask would be lost: expected a plain one. Write "
            "array.filled(value), or data and mask as two arrays.",
        ),
        (
            np.array([None, 1]),
            f"has the dtype object, {UNREADABLE}Write array.tolist(), or array.astype of a dtype "
            "of numbers.",
        ),
        (
            msgpack.ExtType(3, b""),
            "is a msgpack.ExtType of the code 3, with which Flax marks arrays and numbers: "
            "expected another code than [1, 2, 3]. Write the array or number itself.",
        ),
        (
            memoryview(b"abcd")[::2],
            "is a memoryview that is not contiguous: expected one that is. Write bytes(x).",
        ),
        (
            {CHUNKED_KEY: True, "b": 1},
            "is a dict with the key '__msgpack_chunked_array__', which marks arrays in "
            "chunks for readers: expected other keys. Rename it, or write the array itself.",
        ),
        (
            jax.random.key(0),
            "is a JAX array of key<fry>, which NumPy has no dtype for: expected numbers. For PRNG "
            "keys, write jax.random.key_data(keys), and restore them with "
            "jax.random.wrap_key_data.",
        ),
        (
            deleted_array(),
            "is a JAX array that was deleted or donated: expected one with values. Write it before "
            "that, or write the result of the function that it was donated to.",
        ),
        (
            remote_array(),
            "is a JAX array with parts on devices of other processes: expected a fully addressable "
            "one. Gather it with jax.experimental.multihost_utils.process_allgather, or replicate "
            "it.",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_values_that_msgpack_cannot_hold(value: Any, text: str) -> None:
    assert message(value) == f"The tree {text}"
    assert message({"params": [0, {"a/b": value}]}) == f"params/1/a~1b {text}"


def test_states_of_nnx_are_written_as_pure_dicts() -> None:
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    fix = "Write flax.nnx.to_pure_dict of it; flax.nnx.replace_by_pure_dict takes that back."
    assert message({"model": state}).endswith(fix)
    nnx.replace_by_pure_dict(state, msgpack_restore(msgpack_serialize(nnx.to_pure_dict(state))))
    nnx.update(model, state)
    assert model(np.ones((1, 2), np.float32)).shape == (1, 3)


@pytest.mark.parametrize(
    ("array", "name", "fix"),
    [
        (np.array(["ab", "c"]), "<U2", "Write array.tolist()."),
        (np.array([b"ab", b"c"]), "|S2", "Write array.tolist()."),
        (np.zeros(2, "V3"), "|V3", "Write array.view(numpy.uint8), or array.astype of a dtype of "),
        (
            np.zeros(2, [("a", "f4"), ("b", "i4")]),
            "[('a', '<f4'), ('b', '<i4')]",
            "Write a dict of its fields: {name: array[name] for name in array.dtype.names}.",
        ),
        (
            np.rec.array([(1, 2)], dtype=[("a", "f4"), ("b", "i4")]),
            "(numpy.record, [('a', '<f4'), ('b', '<i4')])",
            "Write a dict of its fields: ",
        ),
    ],
    ids=["str", "bytes", "void", "structured", "record"],
)
def test_arrays_that_flax_writes_and_cannot_read(array: Any, name: str, fix: str) -> None:
    for found in (array, array[0]):
        data = flax.serialization.msgpack_serialize({"w": found})
        with pytest.raises(TypeError, match="not understood"):
            flax.serialization.msgpack_restore(data)
        text = message({"w": found})
        assert text.startswith(f"w has the dtype {found.dtype!s}, {UNREADABLE}{fix}")
    assert str(array.dtype) == name


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (
            frozenset({1}),
            f"has the type frozenset: {HELD}Use to_bytes or write_weights, which write keys as "
            "str.",
        ),
        ((1, 2), f"has the type tuple: {HELD}Use to_bytes or write_weights, which write keys as "),
        (Text("a"), f"has the type {__name__}.Text: {HELD}{SUBCLASS.format('str')}"),
        (2**64, "is the int 0x10000000000000000: expected -2**63 to 2**64 - 1."),
        (
            np.str_("a"),
            f"has the dtype <U1, {UNREADABLE}Use to_bytes or write_weights, which write keys as "
            "str.",
        ),
    ],
    ids=str,
)
def test_keys_that_msgpack_cannot_hold(key: Any, text: str) -> None:
    assert message({key: 1}).startswith(f"The key {key!r} of the tree {text}")
    assert message({"b": [{key: 1}]}).startswith(f"The key {key!r} of b/0 {text}")


@pytest.mark.parametrize("key", [np.str_("a"), (1, 2)])
def test_keys_of_state_dicts_are_text(key: Any) -> None:
    """Messages about such keys promise that."""
    assert msgpack_restore(to_bytes({key: 1})) == {str(key): 1}


def test_keys_without_an_order() -> None:
    assert message({"a": {1: 2, "b": 3}}) == (
        "a is a dict with keys that have no order, of the types int, str: expected keys "
        "that can be sorted. Use one type, or in_place=True, which keeps the dict's order."
    )
    tree = {1: 2, "b": 3}
    assert msgpack_serialize(tree, in_place=True) == msgpack.packb(tree)


def test_trees_within_themselves() -> None:
    text = "contains itself: expected a tree. Remove the cycle."
    numbers: list[Any] = [1]
    numbers.append(numbers)
    assert message(numbers) == f"1 {text}"
    params: dict[str, Any] = {"w": {"b": [0]}}
    params["w"]["b"].append(params)
    assert message(params) == f"w/b/1 {text}"


def test_trees_deeper_than_readers_take() -> None:
    tree: Any = []
    for _ in range(MAX_DEPTH):
        tree = [tree]
    path = f"{'0/' * 50}...{'/0' * 48}"
    assert message(tree) == (
        f"{path.replace('.../', '...0/', 1)} is more than 512 dicts and lists deep: "
        "expected no more, since readers of msgpack take no more. Flatten it: flatten_state makes "
        "one dict of paths."
    )


def test_chunks_deeper_than_readers_take() -> None:
    """A chunked array adds two dicts."""
    tree: Any = np.arange(4)
    for depth in range(1, MAX_DEPTH):
        tree = {"": tree}
        if depth < MAX_DEPTH - 2:
            continue
        if depth == MAX_DEPTH - 2:
            encode(tree, sort_keys=True, max_chunk_size=8)
        else:
            with pytest.raises(SerializationError, match="more than 512 dicts and lists deep"):
                encode(tree, sort_keys=True, max_chunk_size=8)


def test_what_is_beyond_the_size_that_msgpack_holds() -> None:
    large = np.broadcast_to(np.uint8(0), MAX_ITEM_SIZE)  # of one byte in memory
    assert message({"a": [large]}) == (
        f"a/0 is an array of {MAX_ITEM_SIZE} bytes within a list: expected at most "
        "4 GiB, since only arrays in dicts are written in chunks. Use a dict for the list, or use "
        "to_bytes or write_weights, which write lists as dicts."
    )
    head = len(msgpack.packb([[2**32 - 40], "uint8"])) + 5
    assert encode([large[: MAX_ITEM_SIZE - head]], sort_keys=True).size == 7 + MAX_ITEM_SIZE
    with pytest.raises(SerializationError, match="within a list"):
        encode([large[: MAX_ITEM_SIZE - head + 1]], sort_keys=True)
    chunks = encode({"a": large}, sort_keys=True).size - MAX_ITEM_SIZE
    assert 0 < chunks < 1000


def test_a_binary_beyond_the_size_that_msgpack_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_format, "MAX_ITEM_SIZE", 10)
    assert message({"a": bytes(11)}) == (
        "a has 11 bytes: expected at most 10, msgpack's limit. Write it as a numpy.uint8 array in "
        "a dict: that is written in chunks."
    )


def test_keys_of_jax_random_are_written_as_the_message_says() -> None:
    data = msgpack_serialize({"rng": jax.random.key_data(jax.random.key(0))})
    keys = jax.random.wrap_key_data(msgpack_restore(data)["rng"])
    assert keys == jax.random.key(0)


def test_arrays_that_jax_traces() -> None:
    def traced(x: Any) -> Any:
        assert message({"w": x}) == (
            "w is an array that JAX is tracing: expected one with values. Write outside "
            "of jax.jit, jax.grad and the like."
        )
        return x

    jax.jit(traced)(1.0)
    jax.grad(traced)(1.0)


def test_arrays_that_are_gone_when_they_are_written() -> None:
    array = jnp.arange(3)
    planned = encode({"w": array}, sort_keys=True)
    array.delete()
    with pytest.raises(SerializationError) as caught:
        list(planned.blocks())
    assert str(caught.value).startswith("w is an array that could not be copied to the host: ")
    assert str(caught.value).endswith(
        " Nothing was written; jax.block_until_ready(tree) raises the same error where the array "
        "is computed."
    )


def test_targets_with_values_that_msgpack_cannot_hold() -> None:
    assert message({"layers": [(1, {2})]}, to_bytes) == (
        f"layers/0/1 has the type set: {HELD}{CONVERT}"
    )


@pytest.mark.parametrize("value", [bytearray(1000), np.ones(1000)], ids=["bytearray", "array"])
@pytest.mark.parametrize("left", [0, 5])
def test_what_becomes_smaller_while_it_is_written(value: Any, left: int) -> None:
    value = value.copy()
    planned = encode({"a": [value]}, sort_keys=False)
    if isinstance(value, bytearray):
        del value[left:]
    else:
        value.resize(left, refcheck=False)
    with pytest.raises(SerializationError, match=r"a/0 became smaller while it was wr"):
        list(planned.blocks())
