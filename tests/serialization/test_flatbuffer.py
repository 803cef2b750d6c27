"""Reads and writes FlatBuffers: right on good bytes, one error on all others, in time."""

from __future__ import annotations

import contextlib
import struct
import time
from typing import Any

import flatbuffers
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jax2tf_bridge.errors import FileFormatError, SerializationError
from jax2tf_bridge.serialization import Field, FlatBufferReader, FlatBufferTable

# The writer and its limits are used by the formats only, which write few kinds of fields.
from jax2tf_bridge.serialization._flatbuffer import (
    CODES,
    MAX_DEPTH,
    Fields,
    FlatBufferWriter,
    Value,
)
from tests.serialization.mutations import mutated

INTEGERS = [name for name in CODES if name != "bool"]


class Node(Field):
    NAME = "string"
    COUNT = "long"
    FLAG = "bool"
    CHILDREN = "[Node]"
    BLOB = "[ubyte]"
    NAMES = "[string]"
    NUMBERS = "[uint]"
    CHILD = "Node"


class Later(Field):
    """Later version of the same table, with other defaults."""

    NAME = "string"
    COUNT = "long", 7
    FLAG = "bool", True
    CHILDREN = "[Node]"
    BLOB = "string"
    NAMES = "[string]"
    NUMBERS = "[uint]"
    CHILD = "Node"
    NEW = "int", -1
    MAYBE = "uint", None


def node(name: str, *children: Value) -> Fields:
    return {Node.NAME: name, Node.CHILDREN: children}


def written(fields: Fields) -> bytes:
    writer = FlatBufferWriter()
    return bytes(writer.finish(writer.write_table(fields), b"TEST"))


def everything() -> bytes:
    return written(
        {
            Node.NAME: "größe",
            Node.COUNT: -(2**60),
            Node.FLAG: True,
            Node.CHILDREN: [node("a"), node("b")],
            Node.BLOB: b"\x00\x01\xff",
            Node.NAMES: ["x", "", "yz"],
            Node.NUMBERS: [0, 1, 2**32 - 1],
            Node.CHILD: node("child"),
        }
    )


def root(data: bytes | bytearray | memoryview) -> FlatBufferTable:
    return FlatBufferReader(data, what="The test's file").root()


def test_reads_what_the_builder_wrote() -> None:
    table = root(everything())
    assert bytes(everything()[4:8]) == b"TEST"
    assert table.string(Node.NAME) == "größe"
    assert table.integer(Node.COUNT) == -(2**60)
    assert table.boolean(Node.FLAG) is True
    assert [c.string(Node.NAME) for c in table.tables(Node.CHILDREN)] == ["a", "b"]
    blob = table.bytes(Node.BLOB)
    assert isinstance(blob, memoryview)
    assert blob.tobytes() == b"\x00\x01\xff"
    assert table.strings(Node.NAMES) == ("x", "", "yz")
    assert table.integers(Node.NUMBERS) == (0, 1, 2**32 - 1)
    child = table.table(Node.CHILD)
    assert child is not None
    assert child.string(Node.NAME) == "child"
    assert child.path == "child"
    assert table.tables(Node.CHILDREN)[1].path == "children[1]"
    assert table.tables(Node.CHILDREN)[1].field_path(Node.NAME) == "children[1].name"


def test_what_was_not_written_is_its_default() -> None:
    table = root(everything()).tables(Node.CHILDREN)[0]
    assert not table.has(Node.COUNT)
    assert table.has(Node.NAME)
    assert table.integer(Node.COUNT) == 0
    assert table.optional_integer(Node.COUNT) is None
    assert table.integer(Later.COUNT) == 7
    assert table.boolean(Later.FLAG) is True
    assert table.string(Later.BLOB) is None
    assert table.string(Later.BLOB, "-") == "-"
    assert table.bytes(Node.BLOB) is None
    assert table.table(Node.CHILD) is None
    assert table.strings(Node.NAMES) == ()
    assert not table.tables(Node.CHILDREN)
    assert table.integers(Node.NUMBERS) == ()
    # The file lacks these fields, which a newer schema added.
    assert not table.has(Later.NEW)
    assert table.integer(Later.NEW) == -1
    assert table.integer(Later.MAYBE) == 0
    assert table.optional_integer(Later.MAYBE) is None


def numbers(kind: str) -> Any:
    """A table of one number, and of several; a default that no test writes."""
    make: Any = Field
    return make("Numbers", {"ONE": (kind, 77), "MANY": f"[{kind}]", "MAYBE": (kind, None)})


def limits(kind: str) -> tuple[int, int]:
    code = CODES[kind]
    bits = 8 * struct.calcsize(f"<{code}")
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if code.islower() else (0, 2**bits - 1)


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_of_every_width(kind: str) -> None:
    fields = numbers(kind)
    for value in limits(kind):
        table = root(written({fields.ONE: value, fields.MANY: [1, value], fields.MAYBE: 0}))
        assert table.integer(fields.ONE) == value
        assert table.integers(fields.MANY) == (1, value)
        assert table.optional_integer(fields.MAYBE) == 0
    assert not root(written({fields.ONE: 77})).has(fields.ONE)


@pytest.mark.parametrize("kind", INTEGERS)
def test_numbers_out_of_range_are_not_written(kind: str) -> None:
    fields, (low, high) = numbers(kind), limits(kind)
    for value in (low - 1, high + 1):
        message = f"must be from {low} to {high} in a file. Got: {value}$"
        with pytest.raises(SerializationError, match=f"^one {message}"):
            written({fields.ONE: value})
        with pytest.raises(SerializationError, match=f"^many {message}"):
            written({fields.MANY: [1, value]})


def test_text_that_is_no_utf8_is_not_written() -> None:
    with pytest.raises(SerializationError, match=r"'\\ud800' cannot be written as UTF-8"):
        written({Node.NAME: "\ud800"})


def test_a_table_is_what_flatc_would_write() -> None:
    builder = flatbuffers.Builder(0)
    text = builder.CreateString("größe")
    builder.StartVector(4, 2, 4)
    for value in (2, 1):
        builder.PrependUint32(value)
    vector = builder.EndVector()
    builder.StartObject(8)
    builder.PrependUOffsetTRelativeSlot(0, text, 0)
    builder.PrependInt64Slot(1, 5, 0)
    builder.PrependBoolSlot(2, True, False)
    builder.PrependUOffsetTRelativeSlot(6, vector, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"TEST")
    fields: Fields = {
        Node.NAME: "größe",
        Node.COUNT: 5,
        Node.FLAG: True,
        Node.NUMBERS: [1, 2],
        Node.CHILD: None,
    }
    assert written(fields) == builder.Output()


@pytest.mark.parametrize("convert", [bytearray, memoryview, lambda b: memoryview(b + b"\0")[:-1]])
def test_any_buffer_is_read(convert: type[bytearray]) -> None:
    assert root(convert(everything())).string(Node.NAME) == "größe"


def table_bytes(vtable: tuple[int, ...], content: bytes) -> bytes:
    """A buffer of one table: root offset, list of fields, the table itself."""
    fields = struct.pack(f"<{len(vtable)}H", *vtable)
    position = 4 + len(fields)
    return struct.pack("<I", position) + fields + struct.pack("<i", len(fields)) + content


def one_offset(to: bytes) -> bytes:
    """A table whose field 0 points to `to`, right after it."""
    return table_bytes((6, 8, 4), struct.pack("<I", 4) + to)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"the start \(byte 0\): expected an offset of 4 bytes, got a place outside of the 0"),
        (b"\0\0\0\0", r"the start \(byte 0\): expected an offset, got 0"),
        (b"\xff\xff\xff\xff", r"\(byte 4294967295\): expected a table of 4 bytes, got a place out"),
        (struct.pack("<Ii", 4, 100), r"\(byte -96\): expected a table's list of fields of 4 bytes"),
        (struct.pack("<Ii", 4, -100), r"\(byte 104\): expected a table's list of fields"),
        (table_bytes((2, 4), b""), r"\(byte 4\): expected a list of fields of an even size, got 2"),
        (table_bytes((5, 4), b""), r"expected a list of fields of an even size, got 5"),
        (table_bytes((900, 4), b""), r"expected a table's list of fields of 900 bytes"),
        (table_bytes((4, 3), b""), r"expected a table of at least 4 bytes, got 3"),
        (table_bytes((4, 9), b""), r"expected a table of 9 bytes, got a place outside of the 12"),
        (table_bytes((6, 4, 4), b""), r"name \(byte 8\): expected a value within its table of 4"),
        (table_bytes((6, 8, 2), b"abcd"), r"name .* expected a value within its table of 8 bytes"),
        (table_bytes((6, 8, 4), b"\0\0\0\0"), r"name \(byte 14\): expected an offset, got 0"),
        (one_offset(b"\x01\0"), r"name \(byte 18\): expected the length of a vector of 4 bytes"),
        (one_offset(b"\xff\xff\xff\xff"), r"name \(byte 18\): expected at most 0 elements, since"),
        (one_offset(b"\x02\0\0\0ab"), r"name \(byte 24\): expected the zero after a string of 1"),
        (one_offset(b"\x02\0\0\0abc"), r"name \(byte 24\): expected a zero after the string, got"),
        (
            one_offset(b"\x02\0\0\0a\xff\0"),
            r"name \(byte 23\): expected text in UTF-8, got invalid",
        ),
    ],
)
def test_errors_say_where_and_what(data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        root(data).string(Node.NAME)
    text = str(caught.value)
    assert text.startswith("The test's file cannot be read: ")
    assert "compare their size with what was written" in text


def test_a_bool_is_zero_or_one() -> None:
    with pytest.raises(FileFormatError, match="flag: expected 0 or 1, got 2"):
        root(table_bytes((10, 5, 0, 0, 4), b"\2")).boolean(Node.FLAG)


@pytest.mark.parametrize("kind", INTEGERS)
def test_a_vector_cannot_be_longer_than_the_bytes(kind: str) -> None:
    make: Any = Field
    table = root(one_offset(struct.pack("<I", 0x7FFFFFFF) + bytes(64)))
    width = struct.calcsize(f"<{CODES[kind]}")
    with pytest.raises(FileFormatError, match=f"at most {64 // width} elements"):
        table.integers(make("Many", {"MANY": f"[{kind}]"}).MANY)
    for read, most in ((table.bytes, 64), (table.tables, 16), (table.strings, 16)):
        with pytest.raises(FileFormatError, match=f"at most {most} elements"):
            read(Node.NAME)


def nested(depth: int, times: int = 1) -> bytes:
    """Tables within each other, each of which has the next one so many times."""
    writer = FlatBufferWriter()
    inner = writer.write_table(node(""))
    for _ in range(depth - 1):
        inner = writer.write_table(node("", *[inner] * times))
    return bytes(writer.finish(inner))


def visit(table: FlatBufferTable) -> int:
    """Counts the tables, each read by every accessor."""
    table.has(Node.COUNT)
    table.string(Node.NAME)
    table.integer(Node.COUNT)
    table.boolean(Node.FLAG)
    table.bytes(Node.BLOB)
    table.strings(Node.NAMES)
    table.integers(Node.NUMBERS)
    child = table.table(Node.CHILD)
    return 1 + sum(map(visit, (*table.tables(Node.CHILDREN), *([child] if child else []))))


def test_nesting_is_limited() -> None:
    assert visit(root(nested(MAX_DEPTH))) == MAX_DEPTH
    with pytest.raises(FileFormatError, match=f"at most {MAX_DEPTH} nested tables"):
        visit(root(nested(MAX_DEPTH + 1)))


def test_cycles_end() -> None:
    # Only a reader whose offsets wrap around at 32 bits would be led back to the table.
    data = bytearray(one_offset(struct.pack("<II", 1, 2**32 - 12)))
    with pytest.raises(FileFormatError, match="outside of"):
        root(data).tables(Node.NAME)


def test_shared_tables_do_not_multiply() -> None:
    start = time.process_time()
    with pytest.raises(FileFormatError, match="shared more often than any writer shares them"):
        visit(root(nested(61, 2)))
    assert time.process_time() - start < 5


def sharing(text: str, times: int) -> bytes:
    """A table of names that are all the same string."""
    writer = FlatBufferWriter()
    shared = writer.write_parts({Node.NAME: text})[Node.NAME]
    return bytes(writer.finish(writer.write_table({Node.NAMES: [shared] * times})))


def test_shared_strings_do_not_multiply() -> None:
    data = sharing("x" * 100_000, 10_000)
    start = time.process_time()
    with pytest.raises(FileFormatError, match="shared more often than any writer shares them"):
        root(data).strings(Node.NAMES)
    assert time.process_time() - start < 5


def test_work_can_be_charged() -> None:
    table = root(everything())
    table.spend(Node.NUMBERS, 1 << 16)
    with pytest.raises(FileFormatError, match=r"numbers: .* shared more often than any writer"):
        table.spend(Node.NUMBERS, 1 << 20)


def test_writers_may_share_strings() -> None:
    assert root(sharing("dimension", 1000)).strings(Node.NAMES) == ("dimension",) * 1000


def test_a_part_can_be_read_again_later() -> None:
    table = root(everything())
    child = table.table(Node.CHILD)
    assert child is not None
    for _ in range(10_000):
        child = child.with_full_budget()
        assert child.string(Node.NAME) == "child"
    assert child.path == "child"


def check_only_the_documented_error(data: bytes) -> None:
    start = time.process_time()
    with contextlib.suppress(FileFormatError):
        visit(root(data))
    assert time.process_time() - start < 2


@given(st.binary(max_size=200))
@example(b"")
def test_random_bytes(data: bytes) -> None:
    check_only_the_documented_error(data)


@given(mutated([everything(), nested(5)]))
def test_mutated_bytes(data: bytes) -> None:
    check_only_the_documented_error(data)


@pytest.mark.parametrize("cut", range(len(everything())))
def test_every_prefix(cut: int) -> None:
    check_only_the_documented_error(everything()[:cut])
