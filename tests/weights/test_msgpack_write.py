"""Tests msgpack_serialize and to_bytes: Flax's bytes, except where those are wrong."""

from __future__ import annotations

import math
import struct
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge.weights import msgpack_serialize, to_bytes

# Private: its limits are lowered.
from jax2tf_bridge.weights.msgpack import _arrays
from jax2tf_bridge.weights.msgpack._format import MAX_DEPTH
from jax2tf_bridge.weights.msgpack._write import encode
from tests.fresh_process import run_python, several_devices
from tests.sampling import sampled
from tests.weights.trees import (
    BIG_ENDIAN_DTYPES,
    DTYPES,
    ML_DTYPES,
    NUMPY_DTYPES,
    arrays,
    big_endian_arrays,
    leaves,
    state_dicts,
    trees,
    unhurried,
)

# The order of sorted keys with a NaN among them depends on the order before.
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
plain_trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.dictionaries(numbers, inner, max_size=3)
        | st.dictionaries(st.binary(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
"""Nested dicts and lists, with keys of all types that msgpack has and that can be sorted."""


def encoded(tree: Any, limit: int, *, sort_keys: bool = True) -> bytes:
    """Encodes a tree with chunks of at most `limit` bytes."""
    return b"".join(encode(tree, sort_keys=sort_keys, max_chunk_size=limit).blocks())


def flax_encoded(tree: Any, limit: int, *, in_place: bool = False) -> bytes:
    """Encodes a tree with Flax, with chunks of at most `limit` bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flax.serialization, "MAX_CHUNK_SIZE", limit)
        return flax.serialization.msgpack_serialize(tree, in_place)


@unhurried
@given(trees())
def test_targets_give_the_bytes_of_flax(target: Any) -> None:
    assert to_bytes(target) == flax.serialization.to_bytes(target)


@unhurried
@given(plain_trees, st.booleans())
def test_trees_give_the_bytes_of_flax(tree: Any, in_place: bool) -> None:
    ours = msgpack_serialize(tree, in_place)
    assert ours == flax.serialization.msgpack_serialize(tree, in_place)


@unhurried
@given(state_dicts(), st.integers(1, 64), st.booleans())
def test_chunks_are_those_of_flax(state: Any, limit: int, in_place: bool) -> None:
    ours = encoded(state, limit, sort_keys=not in_place)
    assert ours == flax_encoded(state, limit, in_place=in_place)


@unhurried
@given(plain_trees, st.integers(1, 64))
def test_arrays_within_lists_are_not_chunked(tree: Any, limit: int) -> None:
    assert encoded([tree], limit) == flax_encoded([tree], limit)


@pytest.mark.parametrize("above", [0, 1])
def test_arrays_are_chunked_from_the_size_on_from_which_flax_does_it(above: int) -> None:
    tree = {"w": np.arange(64 + above, dtype=np.uint8)}
    assert (b"chunks" in encoded(tree, 64)) == bool(above)
    assert encoded(tree, 64) == flax_encoded(tree, 64)


def test_the_limit_of_chunks_is_that_of_flax() -> None:
    assert encode.__kwdefaults__ == {"max_chunk_size": flax.serialization.MAX_CHUNK_SIZE}


@unhurried
@given(big_endian_arrays, st.integers(1, 64))
def test_big_endian_arrays_are_written_little_endian(array: Any, limit: int) -> None:
    """Flax writes their bytes unchanged, under a name without the byte order."""
    little = array.astype(array.dtype.newbyteorder("<"))
    assert msgpack_serialize({"w": array}) == flax.serialization.msgpack_serialize({"w": little})
    assert encoded({"w": array}, limit) == encoded({"w": little}, limit)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "M8[ns]", "m8[s]", np.longdouble])
def test_big_endian_arrays_of_other_dtypes(dtype: Any) -> None:
    little = np.arange(7).astype(np.float32).astype(dtype)
    big = little.astype(little.dtype.newbyteorder(">"))
    assert big.view(np.uint8).tolist() != little.view(np.uint8).tolist()
    assert msgpack_serialize(big) == msgpack_serialize(little)


@unhurried
@given(data=st.data(), piece=st.integers(16, 100))
def test_arrays_come_in_pieces_that_are_no_larger_than_asked_for(
    data: st.DataObject, piece: int
) -> None:
    array = data.draw(arrays(max_side=5) | arrays(BIG_ENDIAN_DTYPES, max_side=5))
    little = np.dtype(array.dtype).newbyteorder("<")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_arrays, "_PIECE_BYTES", piece)
        blocks = list(_arrays.byte_blocks(array))
    assert b"".join(blocks) == array.astype(little).tobytes()
    if not (array.flags.c_contiguous and array.dtype == little):
        assert all(len(block) <= piece for block in blocks)


def test_pieces_of_large_arrays_that_are_not_contiguous() -> None:
    wide = np.arange(3 * (2**21 + 5), dtype=np.float64).reshape(-1, 3).T
    tall = np.asfortranarray(np.arange(2**22, dtype=np.int16).reshape(-1, 8))
    for array in (wide, tall, np.broadcast_to(np.float32(3), (5, 2**21)), wide[::-1, ::2]):
        blocks = list(_arrays.byte_blocks(array))
        assert b"".join(blocks) == array.tobytes()
        assert max(map(len, blocks)) <= 2**22


def test_what_is_contiguous_is_not_copied() -> None:
    for dtype in DTYPES:
        array = np.zeros((3, 4), dtype)
        (block,) = _arrays.byte_blocks(array)
        assert np.shares_memory(np.frombuffer(block, np.uint8), array)


@pytest.mark.parametrize("dtype", sampled(DTYPES, every=4, keep=[ML_DTYPES[0]]), ids=str)
def test_arrays_of_jax(dtype: np.dtype[Any]) -> None:
    with jax.enable_x64(True):
        try:
            array = jnp.asarray(np.arange(6).astype(dtype).reshape(2, 3))
        except (TypeError, jax.errors.JaxRuntimeError):
            assert dtype not in NUMPY_DTYPES  # JAX has not all of ml_dtypes
            return
        assert array.dtype == dtype
        for tree in ({"w": array}, [array, {"b": array.T}], array, {"a": array[0, 0]}):
            assert msgpack_serialize(tree) == flax.serialization.msgpack_serialize(tree)


def test_arrays_of_jax_in_chunks() -> None:
    for tree in ({"w": jnp.arange(7.0)}, jnp.arange(12).reshape(3, 4), [jnp.arange(7)]):
        assert encoded(tree, 10) == flax_encoded(tree, 10)


@pytest.mark.slow
def test_arrays_on_several_devices() -> None:
    code = """
    import flax.serialization
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from jax2tf_bridge.weights import to_bytes

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    array = np.arange(48, dtype=np.float32).reshape(8, 6)
    specs = [("x", "y"), ("y", None), (None, "x"), (None, None)]
    tree = {
        str(i): jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
        for i, spec in enumerate(specs)
    }
    tree["last"] = jax.device_put(array, jax.devices()[-1])
    assert len(tree["0"].devices()) == 4
    print(to_bytes(tree) == flax.serialization.to_bytes(tree))
    """
    assert run_python(code, env=several_devices(4)) == "True"


@pytest.mark.parametrize("count", [0, 15, 16, 65535, 65536])
def test_containers_of_all_lengths(count: int) -> None:
    tree = [list(range(count)), {f"{i:05}": None for i in range(count)}]
    assert msgpack_serialize(tree) == flax.serialization.msgpack_serialize(tree)


class Complex(complex):
    """Complex number of a user's type."""


class Array(np.ndarray):
    """Array of a user's type."""


@pytest.mark.parametrize(
    "value",
    [
        None,
        Complex(1, -0.0),
        complex(math.inf, math.nan),
        bytearray(b"abc"),
        memoryview(b"abcdef"),
        np.arange(6, dtype=np.int32).reshape(2, 3).data,
        np.zeros((0, 3), np.int16).data,
        msgpack.ExtType(5, b"ab"),
        msgpack.Timestamp(1, 2),
        -(2**63),
        2**64 - 1,
        "snow ☃ 𝄞",
        np.array(2.5, np.float16),
        np.zeros((3, 0, 2), np.int8),
        np.datetime64("2026-11-21"),
        np.array(["2026-11-21T10", "NaT"], "M8[25s]"),
        np.timedelta64(5, "ms"),
        np.arange(3, dtype=np.longdouble),
        np.arange(3, dtype=np.clongdouble),
        np.arange(6, dtype=np.uint16).reshape(2, 3)[:, ::2].view(Array),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_values_and_arrays_of_rarer_types(value: Any) -> None:
    for tree in (value, {"k": value}, [value]):
        assert msgpack_serialize(tree) == flax.serialization.msgpack_serialize(tree)


@pytest.mark.parametrize("key", [None, True, 1.5, b"k", 1j, np.int8(3), np.float64(2), ""])
def test_keys_of_rarer_types(key: Any) -> None:
    assert msgpack_serialize({key: 1}) == flax.serialization.msgpack_serialize({key: 1})


def test_a_large_bytes_object_is_written_from_where_it_is() -> None:
    data = bytes(2**17)
    blocks = list(encode({"b": data}, sort_keys=True).blocks())
    assert any(isinstance(block, memoryview) and block.obj is data for block in blocks)


def test_keys_are_sorted_unless_in_place() -> None:
    tree = {"b": {"z": 1, "y": 2}, "a": [{"d": 3, "c": 4}]}
    sorted_keys = {"a": [{"c": 4, "d": 3}], "b": {"y": 2, "z": 1}}
    assert msgpack_serialize(tree) == msgpack.packb(sorted_keys)
    assert msgpack_serialize(tree, in_place=True) == msgpack.packb(tree)


@pytest.mark.parametrize("in_place", [False, True])
def test_the_tree_is_not_changed(in_place: bool) -> None:
    array, numbers = jnp.arange(3), np.arange(3)
    inner = {"w": array, "a": numbers}
    tree = {"params": inner, "b": [inner]}
    msgpack_serialize(tree, in_place)
    assert list(tree) == ["params", "b"]
    assert list(inner) == ["w", "a"]
    assert inner["w"] is array
    assert inner["a"] is numbers


def test_what_is_shared_is_written_twice() -> None:
    shared = {"w": np.arange(3)}
    tree = {"a": shared, "b": [shared, shared]}
    assert msgpack_serialize(tree) == flax.serialization.msgpack_serialize(tree)


def test_trees_as_deep_as_readers_take() -> None:
    tree: Any = {"w": np.arange(2)}
    for _ in range(MAX_DEPTH - 1):
        tree = [tree]
    data = msgpack_serialize(tree)
    assert data == b"\x91" * (MAX_DEPTH - 1) + msgpack_serialize({"w": np.arange(2)})
    assert msgpack.unpackb(data) is not None


def test_the_size_is_known_before_anything_is_written() -> None:
    tree = {"a": np.arange(9.0), "b": [np.ones((3, 3)).T, b"abc", 1], "c": np.float32(1)}
    for limit in (16, 2**30):
        planned = encode(tree, sort_keys=True, max_chunk_size=limit)
        assert planned.size == len(b"".join(planned.blocks()))


def test_the_floats_of_complex_numbers_are_big_endian() -> None:
    """Numbers of msgpack are big-endian; elements of arrays are little-endian."""
    data = msgpack_serialize(1 + 2j)
    assert data == b"\xc7\x13\x02\x92\xcb" + struct.pack(">d", 1) + b"\xcb" + struct.pack(">d", 2)
