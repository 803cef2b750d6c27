"""Protocol buffers on the wire: what is written is read back, and damage is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge.saved_model._protobuf import WireError, fields, signed
from jax2tf_bridge.saved_model._protobuf_writing import bytes_field, varint_field


def test_fields_on_the_wire() -> None:
    assert bytes_field(1, "a") == b"\x0a\x01a"
    assert bytes_field(300, b"x" * 200)[:4] == b"\xe2\x12\xc8\x01"
    assert varint_field(1, 300) == b"\x08\xac\x02"


NUMBERS = st.integers(1, 2**29 - 1)


@given(st.lists(st.tuples(NUMBERS, st.binary() | st.integers(-(2**63), 2**63 - 1))))
def test_what_is_written_is_read_back(written: list[tuple[int, bytes | int]]) -> None:
    message = b"".join(
        varint_field(number, value) if isinstance(value, int) else bytes_field(number, value)
        for number, value in written
    )
    found = [
        (number, signed(value) if isinstance(value, int) else bytes(value))
        for number, value in fields(memoryview(message))
    ]
    assert found == written


@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    try:
        found = list(fields(memoryview(data)))
    except WireError:
        return
    assert all(number > 0 for number, _ in found)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x08", "ends within a number"),
        (b"\x00\x01", "a field has the number 0"),
        (b"\x0b", "of the unknown kind 3"),
        (b"\x0a\x05ab", "longer than the message"),
        (b"\x08" + b"\xff" * 10, "longer than 64 bits"),
    ],
)
def test_what_is_no_message(data: bytes, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        list(fields(memoryview(data)))
