"""JAX's exported functions that mean harm: one documented error, within bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import LEAF, Aval, TreeSpec

# Hand-made files differ from real ones in single fields, so they are written with the writer and
# the fields of the bridge.
from jax2tf_bridge.serialization._flatbuffer import FlatBufferWriter, Value
from jax2tf_bridge.serialization.jax_exported import ExportedField, TreeField, read_exported

# Private: trees that the writer never writes.
from jax2tf_bridge.serialization.jax_exported._write import write_tree
from tests.sampling import examples
from tests.serialization.exported_by_hand import aval, avals, by_hand, tree
from tests.serialization.mutations import mutated
from tests.serialization.read_archives import FILES, archive

F = ExportedField
SECONDS = 5


def nested(depth: int, times: int) -> Callable[[FlatBufferWriter], Value]:
    """Tuples in tuples, each of which has the next one so many times."""

    def write(writer: FlatBufferWriter) -> Value:
        place = write_tree(writer, LEAF)
        for _ in range(depth):
            place = writer.write_table({TreeField.CHILDREN: [place] * times, TreeField.KIND: 2})
        return place

    return write


def equal_nodes(writer: FlatBufferWriter) -> Value:
    """Twenty thousand nodes that share a megabyte of static data."""
    shared = writer.write_parts(
        {TreeField.CUSTOM_NAME: "nobody", TreeField.CUSTOM_AUXDATA: b"[" + b" " * 1_000_000}
    )
    nodes = [writer.write_table({**shared, TreeField.KIND: 5}) for _ in range(20_000)]
    return writer.write_table({TreeField.CHILDREN: nodes, TreeField.KIND: 2})


COUNT = 20_000
TOO_MUCH: dict[str, tuple[dict[Any, Any], str]] = {
    "nesting": ({F.OUT_TREE: nested(5000, 1)}, "at most 200 nested tables"),
    "trees": ({F.OUT_TREE: nested(100, 2)}, "shared more often than any writer shares them"),
    "static data": ({F.OUT_TREE: equal_nodes}, "shared more often than any writer shares them"),
    "shapes": (
        {
            F.OUT_TREE: tree(TreeSpec("tuple", children=(LEAF,) * COUNT)),
            F.UNIQUE_AVALS: avals(Aval((1,) * COUNT, "bool")),
            F.IN_AVALS: None,
            F.IN_AVALS_IDXS: [0],
            F.OUT_AVALS_IDXS: [0] * COUNT,
        },
        r"out_avals_idxs: .* shared more often than any wri",
    ),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_work_is_bounded(name: str) -> None:
    fields, message = TOO_MUCH[name]
    data = by_hand(fields)
    start = time.perf_counter()
    with pytest.raises(FileFormatError, match=message):
        read_exported(data)
    assert time.perf_counter() - start < SECONDS


def test_an_assertion_that_never_ends() -> None:
    text = b"Input shapes do not match the symbolic shape constraint b >= 1. Expected '"
    symbolic = {
        F.IN_AVALS: aval("b"),
        F.MODULE: b"ML\xefR\x0dStableHLO_v1.0.0\x00" + text * 100_000,
    }
    start = time.perf_counter()
    assert read_exported(by_hand(symbolic)).constraints == ()
    assert time.perf_counter() - start < SECONDS


def check_only_the_documented_error(data: bytes) -> None:
    start = time.perf_counter()
    try:
        portable = read_exported(data)
        str(portable)
        # A function that passed the checks can be read.
        if portable.has_vjp:
            str(portable.vjp())
    except FileFormatError:
        pass
    assert time.perf_counter() - start < SECONDS


CONTENTS = [
    f.read_bytes() for f in FILES if f.parent.name in ("0.4.30", "0.8.3", "0.9.2", "0.12.0.1")
]


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(mutated(CONTENTS))
def test_mutated_files(data: bytes) -> None:
    check_only_the_documented_error(data)


@given(st.binary(max_size=400))
def test_random_bytes(data: bytes) -> None:
    check_only_the_documented_error(data)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0" * 8, b"\xff" * 64, b"\0" * 1_000_000])
def test_hopeless_bytes(data: bytes) -> None:
    with pytest.raises(FileFormatError):
        read_exported(data)


@pytest.mark.parametrize("name", ["nothing", "sharded"])
def test_every_prefix(name: str) -> None:
    data = archive("0.9.2", name)
    for length in range(len(data)):
        check_only_the_documented_error(data[:length])
