"""Damaged bytecode: each reader reads it whole or raises FileFormatError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bytecode.checked_readers import artifacts, read_checked, summarize_checked
from tests.sampling import examples, sampled, stride
from tests.serialization.bytecode_by_hand import HUGE, varint

Reader: TypeAlias = Callable[[bytes], Any]
READERS = pytest.mark.parametrize(
    "read",
    [pytest.param(summarize_checked, id="summary"), pytest.param(read_checked, id="program")],
)

# Every run has the oldest and the newest layout.
LAYOUTS = sampled(range(5), every=4)


@READERS
@pytest.mark.parametrize("version", LAYOUTS)
def test_truncated_anywhere(read: Reader, version: int) -> None:
    artifact = artifacts()[version]
    assert read(artifact) is not None
    for size in {*range(100), *range(100, len(artifact), stride(7)), len(artifact) - 1}:
        assert read(artifact[:size]) is None


@READERS
def test_bytes_changed(read: Reader) -> None:
    artifact = artifacts()[-1]
    unharmed = 0
    places = range(0, len(artifact), stride(13))
    for i in places:
        changed = bytes([artifact[i] ^ 1 << i % 8])
        unharmed += read(artifact[:i] + changed + artifact[i + 1 :]) is not None
    # Strings, locations and constants may be anything.
    assert len(places) // 4 < unharmed < len(places)


@READERS
@pytest.mark.parametrize("version", LAYOUTS)
def test_numbers_made_huge(read: Reader, version: int) -> None:
    artifact = artifacts()[version]
    for i in {*range(5, 100), *range(100, len(artifact), stride(7))}:
        read(artifact[:i] + varint(HUGE) + artifact[i + 1 :])


_change = st.tuples(st.integers(0, 1 << 20), st.integers(0, 8), st.binary(max_size=12))


@READERS
@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 4), st.lists(_change, min_size=1, max_size=6))
def test_mutated(read: Reader, which: int, changes: list[tuple[int, int, bytes]]) -> None:
    data = bytearray(artifacts()[which])
    for at, removed, added in changes:
        at %= len(data) + 1
        data[at : at + removed] = added
    read(bytes(data))


@READERS
@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), st.floats(0, 1), st.floats(0, 1))
def test_spliced(read: Reader, left: int, right: int, end: float, start: float) -> None:
    first, second = artifacts()[left], artifacts()[right]
    read(first[: int(end * len(first))] + second[int(start * len(second)) :])
