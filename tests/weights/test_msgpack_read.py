"""Tests msgpack_restore and from_bytes on Flax's bytes, and on msgpack in general."""

from __future__ import annotations

import datetime
import functools
import io
from pathlib import Path
from typing import Any
from unittest import mock

import flax.serialization
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge.errors import FileFormatError, SerializationError, StateDictError
from jax2tf_bridge.weights import from_bytes, msgpack_restore
from tests.fresh_process import run_python
from tests.weights import msgpack_by_hand as by_hand
from tests.weights.trees import same, state_dicts, unhurried


def _flax_restore(data: bytes) -> Any:
    # Older releases of Flax leave out the argument, so that they take keys of text and bytes alone.
    unpackb = functools.partial(msgpack.unpackb, strict_map_key=False)
    with mock.patch.object(msgpack, "unpackb", unpackb):
        return flax.serialization.msgpack_restore(data)


def _as_flax_reads(data: bytes) -> Any:
    tree = msgpack_restore(data)
    assert same(tree, _flax_restore(data)), tree
    return tree


@unhurried
@given(state_dicts())
def test_state_dicts_come_back_as_flax_gives_them(tree: Any) -> None:
    _as_flax_reads(flax.serialization.msgpack_serialize(tree))


@pytest.mark.parametrize("data", ["m.msgpack", Path("m.msgpack"), io.BytesIO(), None])
def test_only_bytes_are_read(data: Any) -> None:
    kind = type(data).__name__
    text = rf"must be bytes\. Got: .* of type {kind}\. Read a file with read_weights\(path\)\."
    for read in (msgpack_restore, functools.partial(from_bytes, {})):
        with pytest.raises(SerializationError, match=text):
            read(data)


_objects = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.builds(msgpack.ExtType, st.integers(4, 127), st.binary(max_size=40))
    | st.builds(msgpack.Timestamp, st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**9 - 1)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-9, 99), inner),
    max_leaves=12,
)


@unhurried
@given(_objects)
def test_every_object_of_msgpack_is_what_flax_reads(tree: Any) -> None:
    _as_flax_reads(msgpack.packb(tree))


@given(st.lists(st.floats(width=32)))
def test_numbers_in_32_bits_are_read(numbers: list[float]) -> None:
    _as_flax_reads(msgpack.packb(numbers, use_single_float=True))


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 255, 256, 65535, 65536])
def test_every_width_of_a_length_is_read(size: int) -> None:
    texts, items = ["x" * size, b"y" * size], [[0] * size, {i: 0 for i in range(size)}]
    _as_flax_reads(msgpack.packb([*texts, *items, msgpack.ExtType(5, bytes(size))]))
    _as_flax_reads(flax.serialization.msgpack_serialize({"a": np.arange(size), "after": 1}))


@pytest.mark.parametrize(
    "data",
    [by_hand.text("é"), by_hand.uint(3), by_hand.sequence(), by_hand.mapping(b"\xc0", b"\x01")],
)
def test_lengths_may_be_wider_than_they_need_to_be(data: bytes) -> None:
    _as_flax_reads(data)
    _as_flax_reads(by_hand.floats(2, 3, count=6))


def test_text_is_text_and_bytes_are_bytes() -> None:
    tree = {"text": "a", "bytes": b"a", b"key": 1, 7: 2, None: 3, 1.5: 4}
    found = _as_flax_reads(msgpack.packb(tree))
    assert found == tree


def test_keys_may_be_complex_numbers_and_numpy_scalars() -> None:
    tree = {1 + 2j: 1, np.int32(4): 2, np.float16(0.5): 3}
    one_by_one = [flax.serialization.msgpack_serialize({k: v}) for k, v in tree.items()]
    for data in one_by_one:
        _as_flax_reads(data)
    merged = b"\x83" + b"".join(data[1:] for data in one_by_one)
    assert _as_flax_reads(merged) == tree


def test_arrays_are_read_only_views_of_the_bytes() -> None:
    data = flax.serialization.to_bytes({"a": np.arange(7.0), "none": np.zeros((2, 0))})
    tree = msgpack_restore(data)
    assert np.shares_memory(tree["a"], np.frombuffer(data, np.uint8))
    assert not tree["a"].flags.writeable
    assert not tree["none"].flags.writeable
    flax_has = flax.serialization.msgpack_restore(data)
    assert flax_has["a"].flags.writeable == tree["a"].flags.writeable


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_other_buffers_are_read_as_bytes_are(kind: Any) -> None:
    data = flax.serialization.to_bytes({"a": np.arange(70000, dtype=np.int16), "b": [1] * 99})
    tree = msgpack_restore(kind(data))
    assert same(tree, msgpack_restore(data))
    assert not tree["a"].flags.writeable
    gaps = np.zeros(2 * len(data), np.uint8)
    gaps[::2] = np.frombuffer(data, np.uint8)
    assert same(msgpack_restore(gaps.data[::2]), tree)


def test_jax_arrays_come_back_as_numpy_arrays() -> None:
    tree = {"a": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.float32(2), "c": jnp.zeros(())}
    found = _as_flax_reads(flax.serialization.to_bytes(tree))
    assert found["a"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("unit", ["ns", "25s", "D", "generic"])
def test_dates_are_read(unit: str) -> None:
    dtype = "datetime64" if unit == "generic" else f"datetime64[{unit}]"
    for array in (np.zeros(3, np.int64).view(dtype), np.zeros((), np.int64).view(dtype)[()]):
        _as_flax_reads(flax.serialization.msgpack_serialize({"a": array}))


def test_a_timestamp_of_msgpack_is_one() -> None:
    when = datetime.datetime(2026, 11, 5, tzinfo=datetime.UTC)
    data = msgpack.packb(when, datetime=True)
    assert _as_flax_reads(data).to_datetime() == when


def test_arrays_in_chunks_are_joined() -> None:
    tree = {
        "a": {"large": np.arange(60.0).reshape(3, 4, 5), "small": np.arange(3.0)},
        "list": [np.arange(30)],
        "half": np.arange(40).astype(ml_dtypes.bfloat16),
    }
    with mock.patch.object(flax.serialization, "MAX_CHUNK_SIZE", 64):
        data = flax.serialization.msgpack_serialize(tree)
        alone = flax.serialization.msgpack_serialize(np.arange(99).reshape(9, 11))
    assert data.count(b"__msgpack_chunked_array__") == 2
    found = _as_flax_reads(data)
    assert found["a"]["large"].flags.writeable
    assert found["a"]["large"].flags.aligned
    _as_flax_reads(alone)


def test_below_a_list_nothing_is_joined_as_in_flax() -> None:
    chunks = by_hand.chunked(
        by_hand.numbered(b"\x02"), by_hand.numbered(by_hand.floats(2, count=2))
    )
    found = _as_flax_reads(by_hand.sequence(chunks, by_hand.mapping(by_hand.text("a"), chunks)))
    assert found[0]["chunks"]["0"].tolist() == [0, 1]
    assert _as_flax_reads(by_hand.mapping(by_hand.text("a"), chunks))["a"].tolist() == [0, 1]


def test_keys_that_are_like_the_one_of_chunks_are_keys() -> None:
    tree = {"shape": {"0": 1}, "chunks": {"0": np.ones(1)}, "__msgpack_chunked_array": True}
    _as_flax_reads(flax.serialization.msgpack_serialize(tree))


def test_1024_containers_within_each_other_are_read_as_many_as_msgpack_reads() -> None:
    for step, deepest in ((b"\x81\xa1a", b"\x07"), (b"\x91", b"\xc4\x01b")):
        data = step * 1024 + deepest
        one, other = msgpack.unpackb(data), msgpack_restore(data)
        for _ in range(1024):
            assert type(one) is type(other)
            one, other = ((o["a"] if isinstance(o, dict) else o[0]) for o in (one, other))
        assert one == other
        with pytest.raises(ValueError, match=r"StackError|^$"):
            msgpack.unpackb(step + data)
        with pytest.raises(FileFormatError, match="at most 1024 containers"):
            msgpack_restore(step + data)


def test_from_bytes_restores_into_the_target() -> None:
    target = {"a": [np.zeros(2), np.zeros(3)], "b": (np.float32(0),)}
    data = flax.serialization.to_bytes({"a": [np.ones(2), np.ones(3)], "b": (np.float32(7),)})
    found = from_bytes(target, data)
    assert same(found, flax.serialization.from_bytes(target, data))
    assert isinstance(found["b"], tuple)
    with pytest.raises(StateDictError, match=r"a"):
        from_bytes({"a": [np.zeros(2)], "b": (0,)}, data)
    assert from_bytes({"a": [0, 0], "b": (0,)}, data)["a"][0].tolist() == [1, 1]
    with pytest.raises(StateDictError, match="a/0"):
        from_bytes({"a": [np.zeros(5), np.zeros(3)], "b": (np.float32(0),)}, data, strict=True)


def test_without_ml_dtypes_the_error_names_it() -> None:
    data = flax.serialization.to_bytes({"a": np.ones(3, ml_dtypes.bfloat16)})
    code = """
        import sys
        sys.modules["ml_dtypes"] = None
        from jax2tf_bridge.weights import msgpack_restore
        try:
            msgpack_restore(bytes.fromhex(sys.argv[1]))
        except ImportError as e:
            print(type(e).__name__, e)
    """
    text = run_python(code, data.hex())
    assert text.startswith("MissingDependencyError reading bfloat16 from bytes needs ml_dtypes")
