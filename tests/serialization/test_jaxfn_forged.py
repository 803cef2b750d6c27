"""Files made on purpose, whose checksums are right: the reader's own care is all that is left."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax2tf_bridge.portable import Aval
from jax2tf_bridge.serialization import deserialize

# Hand-made files differ from real ones in single fields, so they are written with the writer and
# the fields of the bridge.
from jax2tf_bridge.serialization._flatbuffer import FlatBufferWriter
from jax2tf_bridge.serialization.jaxfn import _format, _pools
from tests.sampling import examples
from tests.serialization.forging import (
    DATA,
    STRUCTURE_SIZE,
    file_of,
    forged,
    read_or_refused,
    refused,
    rows,
    sealed,
)


@pytest.mark.slow
def test_every_byte_forged() -> None:
    """With right checksums: nothing but the reader's own care is left."""
    read = 0
    for position in range(STRUCTURE_SIZE):
        if 8 <= position < 32:
            continue
        for value in {0, 1, 0x7F, 0x80, 0xFF} - {DATA[position]}:
            data = bytearray(DATA)
            data[position] = value
            read += read_or_refused(sealed(data))
    assert 0 < read < 5 * STRUCTURE_SIZE


@given(st.lists(st.tuples(st.integers(32, STRUCTURE_SIZE - 4), st.integers(0, 2**32 - 1))))
@settings(deadline=None, max_examples=examples(50))
def test_words_forged(changes: list[tuple[int, int]]) -> None:
    data = bytearray(DATA)
    for position, value in changes:
        struct.pack_into("<I", data, position - position % 4, value)
    read_or_refused(sealed(data))


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=examples(50))
def test_random_tables(data: bytes) -> None:
    size = 32 + len(data)
    header = struct.pack("<I4sIIQQ", 32, b"JXFN", _format.VERSION, 0, size, size)
    read_or_refused(sealed(header + data))


def test_forged_as_it_should_be() -> None:
    portable = deserialize(forged())
    assert (portable.name, portable.out_avals) == ("f", (Aval((), "float32"),))


BILLION = 2**32 - 1


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": 9}, "functions[0].name: expected an index below 5, got 9"),
        ({"lowering": 3}, "functions[0].lowering: expected an index below 1, got 3"),
        ({"out_avals": [1]}, "functions[0].out_avals: expected indices below 1, got 1"),
        ({"out_avals": []}, "out_avals has 0 members for 1 leaves of out_tree"),
        ({"argument_names": [0]}, "argument_names has 1 members for 0 arguments"),
        ({"module_kept_var_idx": [0]}, "kept_arguments is not in ascending order"),
        ({"in_shardings": [1]}, "functions[0].in_shardings: expected indices below 1, got 1"),
        ({"out_shardings": [0, 0]}, "out_shardings has 2 members for 1 out_avals"),
        (
                        {"lifted_avals": [0]},
                        "an abstract value, a digest and a name for each constant, got 1, 0",
        ),
        ({"module_size": 7}, "functions: expected modules and arrays up to byte "),
        ({"trees__kinds": bytes([2, 2, 4, 9])}, "trees.kinds: expected kinds below 8, got 9"),
        ({"trees__kinds": b""}, "only the counts, keys and types of the nodes"),
        ({"trees__kinds": bytes([2, 2, 4, 0, 0])}, "trees: expected two for each of 1 functions"),
        ({"trees__kinds": bytes([2, 2, 2, 0])}, "in_tree is not the structure of (args, kwargs)"),
        ({"trees__counts": [BILLION, 0, 0]}, "trees.counts: expected each node's number of"),
        ({"trees__counts": [0, 0]}, "trees.counts: expected each node's number of children"),
        ({"trees__counts": [1, 1, 0, 0]}, "the counts, keys and types of the nodes, got more"),
        ({"trees__keys": [0]}, "the counts, keys and types of the nodes, got more"),
        ({"trees__kinds": bytes([2, 2, 4, 6]), "trees__counts": [2, 0, 0, 0]}, "trees.types: exp"),
        (
            {"trees__kinds": bytes([2, 2, 4, 0, 0]), "trees__counts": [2, 0, 1]},
            "trees.keys: expected a key for each child, got 1 too few",
        ),
        (
            {
                "trees__kinds": bytes([2, 2, 4, 0, 0]),
                "trees__counts": [2, 0, 1],
                "trees__keys": [2**31],
            },
            "trees.keys: expected indices below 0, got 0",
        ),
        (
            {
                "trees__kinds": bytes([2, 2, 4, 0, 0, 0]),
                "trees__counts": [2, 0, 2],
                "trees__keys": [0, 0],
            },
            "trees.keys: expected keys that differ, got ['f', 'f']",
        ),
        ({"avals__ranks": [1]}, "avals.sizes: expected 1 sizes, got 0"),
        ({"avals__ranks": [BILLION]}, "avals.sizes: expected 4294967295 sizes, got 0"),
        ({"avals__ranks": []}, "avals.sizes: expected"),
        ({"avals__dtypes": [5]}, "avals.dtypes: expected indices below 5, got 5"),
        ({"avals__memory_spaces": b"\3"}, "avals.memory_spaces: expected 0, 1 or 2, got 3"),
        ({"avals__element_ranks": [0, 0]}, "avals.element_ranks: expected 1 numbers, got 2"),
        (
            {"avals__ranks": [1], "avals__sizes": [-2], "avals__dimensions": [2]},
            "avals.sizes: expected indices of 1 dimensions, got 1",
        ),
        (
            {"avals__element_ranks": [1], "avals__sizes": [-1], "avals__dimensions": [2]},
            "avals.sizes: expected numbers in the shapes of elements, got dimensions",
        ),
        ({"avals__dimensions": [1, 3]}, "avals.dimensions: expected dimensions as JAX prints them,"
         " got '2*2' (it is a number)"),
        ({"avals__dimensions": [4]}, "got '(b)' (it has grouping parentheses)"),
        ({"lowering__stablehlo_version": [1, 2]}, "expected three numbers for each version, got 2"),
        ({"lowering__stablehlo_version": []}, "lowerings[0].stablehlo_version: expected one vers"),
        ({"lowering__dropped_because": [0]}, "dropped_because: expected 0 reasons, got 1"),
        ({"file__vjp_missing_because": 7}, "vjp_missing_because: expected an index below 5, got 7"),
        ({"file__text_sizes": [1, 7]}, "text_sizes: expected 15 bytes together, got 8"),
        ({"file__text": b"\xff" * 15}, "text (byte "),
        (
            {"file__text": "fünf".encode(), "file__text_sizes": [2, 3]},
            "text_sizes: expected whole characters, got unexpected end of data at byte 1",
        ),
    ],
)  # fmt: skip
def test_forged_fields(fields: dict[str, Any], text: str) -> None:
    refused(forged(**fields), text)


def test_trees_that_are_too_deep() -> None:
    deep = bytes([3] * 300)
    counts = [2, 0, 0, *[1] * 299, 0]
    data = forged(trees__kinds=bytes([2, 2, 4]) + deep, trees__counts=counts, out_avals=[])
    refused(data, "trees: expected containers nested at most 200 deep, got more")


@pytest.mark.parametrize(
    ("table", "field", "fields"),
    [
        ("Key", "data", {"kind": 5}),
        ("NodeType", "auxdata", {"name": 0}),
        ("Sharding", "hlo", {}),
    ],
)
def test_work_is_bounded(table: str, field: str, fields: dict[str, int]) -> None:
    """Parts that are shared a million times: the file is small, what it means is not."""
    writer = FlatBufferWriter(skip_empty=True)
    shared = writer.write_parts(rows(table, **fields, **{field: b"k" * 100_000}))
    tables = [writer.write_table(shared) for _ in range(20_000)]
    file = {"Key": "keys", "NodeType": "node_types", "Sharding": "shardings"}[table]
    data = file_of(writer, text="f", text_sizes=[1], **{file: tables})
    start = time.monotonic()
    refused(data, "parts that are shared more often than any writer shares them")
    assert time.monotonic() - start < 10


def test_parsing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dimension may be meant any number of times, and each takes time to parse."""
    data = forged(avals__dimensions=[2] * 131_073)
    refused(data, "avals.dimensions: expected at most 131072 characters, got 131073")
    monkeypatch.setattr(_pools, "MAX_TEXT", 1000)
    assert deserialize(forged(avals__dimensions=[2] * 1000)).name == "f"
    data = forged(avals__dimensions=[2] * 1001)
    refused(data, "avals.dimensions: expected at most 1000 characters, got 1001")


def test_nested_keys_are_bounded() -> None:
    writer = FlatBufferWriter()
    key = writer.write_table(rows("Key", kind=0))
    for _ in range(40):
        key = writer.write_table(rows("Key", kind=6, items=[key, key]))
    data = file_of(writer, keys=[key])
    refused(data, "expected tuples nested at most 16 deep, got more")


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (1, b"\2", "the bytes of a key of kind boolean, got b'\\x02'"),
        (2, b"", "the bytes of a key of kind integer, got b''"),
        (3, b"1234", "the bytes of a key of kind real"),
        (4, b"\xff", "keys[0].data: expected text in UTF-8, got invalid start byte"),
        (7, b"", "keys[0].kind: expected a kind of key below 7, got 7"),
    ],
)
def test_forged_keys(kind: int, data: bytes, text: str) -> None:
    refused(file_of(keys=[rows("Key", kind=kind, data=data)]), text)
