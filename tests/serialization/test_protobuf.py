"""Messages are read and written as protobuf does it; nothing but FileFormatError is raised."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model import ProtoMessage, bytes_field, varint_field

# Private: single fields are read and written.
from jax2tf_bridge.serialization._protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    tag,
    to_signed,
    varint,
)


def message(data: bytes) -> ProtoMessage:
    return ProtoMessage(data, "the test", "model.pb")


def test_fields_on_the_wire() -> None:
    assert bytes_field(1, "a") == b"\x0a\x01a"
    assert bytes_field(300, b"x" * 200)[:4] == b"\xe2\x12\xc8\x01"
    assert varint_field(1, 300) == b"\x08\xac\x02"


NUMBERS = st.integers(1, 2**29 - 1)


@given(st.lists(st.tuples(NUMBERS, st.binary() | st.integers(-(2**63), 2**63 - 1))))
def test_what_is_written_is_read_back(written: list[tuple[int, bytes | int]]) -> None:
    root = message(
        b"".join(
            varint_field(number, value) if isinstance(value, int) else bytes_field(number, value)
            for number, value in written
        )
    )
    found = [
        (f.number, root.integer(f) if f.kind == VARINT else root.content(f)) for f in root.fields()
    ]
    assert found == written


@given(st.text())
def test_texts(text: str) -> None:
    assert message(bytes_field(1, text)).text_of(1) == text


@given(st.integers(0, 2**64 - 1))
def test_numbers_without_a_sign(value: int) -> None:
    assert to_signed(value) % 2**64 == value
    (field,) = message(tag(1, VARINT) + varint(value)).fields()
    assert field.value == value


def test_every_kind_of_field() -> None:
    data = tag(1, VARINT) + varint(300) + tag(2, FIXED64) + bytes(8)
    data += tag(3, BYTES) + varint(3) + b"abc" + tag(2000, FIXED32) + struct.pack("<f", 0.5)
    root = message(data)
    fields = list(root.fields())
    assert [(f.number, f.kind) for f in fields] == [
        (1, VARINT),
        (2, FIXED64),
        (3, BYTES),
        (2000, FIXED32),
    ]
    assert [f.start for f in fields[1:]] == [f.end for f in fields[:-1]]
    assert fields[-1].end == len(root) == len(data)
    assert root.content(fields[2]) == bytes(root.view(fields[2])) == b"abc"
    assert root.fixed32(fields[3]) == 0x3F000000


def test_the_last_field_of_a_number_counts() -> None:
    data = varint_field(1, 5) + varint_field(1, 6)
    assert message(data).integer_of(1) == 6
    assert message(data).integer_of(2) == 0
    assert message(data).text_of(3) == ""


def test_numbers_packed_and_alone() -> None:
    packed = message(bytes_field(1, varint(1) + varint(-1)) + varint_field(1, 7))
    assert [n for field in packed.fields() for n in packed.integers(field)] == [1, -1, 7]


def test_bytes_are_not_copied() -> None:
    data = bytes_field(1, bytes_field(2, b"large"))
    (part,) = message(data).messages(1, "a part")
    (field,) = part.fields()
    assert part.view(field).obj is part.data is data


def test_text_that_is_none_is_replaced() -> None:
    assert message(bytes_field(1, b"a\xffb")).text_of(1) == "a\ufffdb"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x80", "at byte 1, the data ends within a number"),
        (b"\x0a", "at byte 1, the data ends within a number"),
        (b"\x0a\x05abc", "at byte 0, a field of 5 bytes is announced, and 3 are left"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "18446744073709551615 bytes"),
        (b"\x08" + b"\xff" * 10, "a number is longer than 64 bits"),
        (b"\x02\x00", "at byte 0, a field has the number 0"),
        (b"\x0b\x0c", "at byte 0, a field is of the kind 3, which is not used"),
        (b"\x0a\x80", "at byte 2, the data ends within a number"),
        (b"\x0d\x00\x00", "the data ends within a number"),
        (b"\x09\x00\x00", "the data ends within a number"),
    ],
)
def test_damage_is_told_with_its_place(data: bytes, problem: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        list(message(data).fields())
    text = str(caught.value)
    assert text.startswith("The file model.pb cannot be read: in the test, at byte ")
    assert problem in text
    assert text.endswith("It is cut short, damaged, or of another format: copy or write it again.")
    assert caught.value.file == "model.pb"


READS: list[Callable[[ProtoMessage], object]] = [
    lambda m: m.text_of(1),
    lambda m: m.integer_of(1),
    lambda m: [list(m.integers(field)) for field in m.fields()],
    lambda m: [m.fixed32(field) for field in m.fields()],
    lambda m: [m.entry(field, "an entry") for field in m.fields()],
    lambda m: [list(inner.fields()) for inner in m.messages(1, "a part")],
]


@given(st.binary(max_size=60), st.sampled_from(READS))
def test_any_bytes_are_read_or_refused(data: bytes, read: Callable[[ProtoMessage], object]) -> None:
    with contextlib.suppress(FileFormatError):
        read(message(data))


def test_a_field_of_another_kind_is_told() -> None:
    with pytest.raises(FileFormatError, match="field 1 holds a number instead of bytes"):
        message(varint_field(1, 5)).text_of(1)
    with pytest.raises(FileFormatError, match="field 1 holds bytes instead of a number"):
        message(bytes_field(1, b"")).integer_of(1)
