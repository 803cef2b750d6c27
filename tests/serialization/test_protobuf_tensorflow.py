"""Messages that TensorFlow's protobuf writes are read, and written alike."""

from __future__ import annotations

import struct

import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge.saved_model import ProtoMessage, bytes_field

# Private: a list of numbers is written without the message around it.
from jax2tf_bridge.serialization._protobuf import varint


def message(data: bytes) -> ProtoMessage:
    return ProtoMessage(data, "the test", "model.pb")


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_numbers_are_those_that_protobuf_writes(values: list[int]) -> None:
    theirs = tf.train.Int64List(value=values).SerializeToString()
    assert [n for field in message(theirs).fields() for n in message(theirs).integers(field)] == (
        values
    )
    assert theirs == bytes_field(1, b"".join(map(varint, values)))


@given(st.text())
def test_texts_are_those_that_protobuf_writes(text: str) -> None:
    theirs = tf.train.BytesList(value=[text.encode()]).SerializeToString()
    assert theirs == bytes_field(1, text)


@given(st.dictionaries(st.text(), st.floats(width=32, allow_nan=False)))
def test_maps_are_those_that_protobuf_writes(values: dict[str, float]) -> None:
    features = {
        k: tf.train.Feature(float_list=tf.train.FloatList(value=[v])) for k, v in values.items()
    }
    root = message(tf.train.Features(feature=features).SerializeToString())
    found = {}
    for field in root.fields():
        key, feature = root.entry(field, "an entry")
        (floats,) = feature.messages(2, "numbers")
        (packed,) = floats.fields()
        (found[key],) = struct.unpack("<f", floats.content(packed))
    assert found == values
