"""Tests damaged and hostile bytes: one clear error, at bounded cost."""

from __future__ import annotations

import re
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jax2tf_bridge import open_weights
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.weights import msgpack_restore, msgpack_serialize
from tests.sampling import examples
from tests.weights.msgpack_by_hand import (
    array,
    binary,
    chunked,
    extension,
    floats,
    mapping,
    numbered,
    sequence,
    text,
    uint,
)
from tests.weights.trees import state_dicts

F32 = text("float32")
ONE = sequence(b"\x01")
FOUR = binary(bytes(4))

CASES: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "byte 0: expected a msgpack object, got the end"),
    "the unused byte": (b"\x91\xc1", "byte 1, in 0: expected .* got byte 0xc1"),
    "more behind the end": (b"\x01\x02", "byte 1: expected the end, got 1 more bytes"),
    "a number cut short": (b"\xcf\0\0", "byte 1: expected 8 more bytes, got 2"),
    "a str cut short": (b"\xa5abc", "byte 1: expected 5 more bytes, got 3"),
    "a bin of 4 GB": (b"\xc6\xff\xff\xff\xff", "expected 4294967295 more bytes, got 0"),
    "an array of 2**32 - 1": (b"\xdd\xff\xff\xff\xff" + bytes(9), "array that fits into the 9 b"),
    "a map of 2**32 - 1": (b"\xdf\xff\xff\xff\xff" + bytes(9), "map that fits into the 9 bytes"),
    "a map of too few": (b"\x82\xa1a\x01", "map that fits into the 3 bytes left, got 2 items"),
    "no utf-8": (b"\x81\xa1a\xa2b\xff", "byte 5, in a: expected UTF-8 in a str, got 0xff"),
    "a key twice": (b"\x82\xa1a\x01\xa1a\x02", "byte 6: expected each key of a map once, got 'a'"),
    "equal keys": (b"\x82\x01\x01" + b"\xcb" + struct.pack(">d", 1) + b"\x02", "once, got 1.0"),
    "a map as a key": (b"\x81\x80\x01", "key that is a single value, got one of dict"),
    "an array as a key": (mapping(floats(1, count=1), b"\x01"), "got one of ndarray"),
    "a reserved code": (extension(-2, b"a"), "code -1 or 0 to 127, got code -2"),
    "a timestamp of 5": (extension(-1, bytes(5)), "4, 8 or 12 bytes, got 5"),
    "too many nanoseconds": (extension(-1, b"\xff" * 8), "at most 999999999 nanoseconds"),
    "a complex number of 3": (extension(2, sequence(b"\1", b"\1", b"\1")), "array of 2, got .* 3"),
    "a complex number of text": (extension(2, sequence(b"\1", text("j"))), "a part of a complex"),
    "a complex number and more": (extension(2, sequence(b"\1", b"\1") + b"\1"), "the end of a com"),
    "no array": (extension(1, b"\x01"), "expected an array's shape, dtype, data"),
    "an empty array": (extension(1, b""), "expected a msgpack object, got the end"),
    "an array of 2 parts": (extension(1, sequence(ONE, F32)), "array of 3, got an array of 2"),
    "an array and more": (
        extension(1, sequence(ONE, F32, FOUR) + b"\1"),
        "expected 4 bytes of data, got 5 bytes until the end of the array",
    ),
    "data beyond the array": (
        extension(1, sequence(ONE, F32, b"\xc4\x04")) + bytes(4),
        "expected 4 bytes of data, got 0 bytes until the end of the array",
    ),
    "a shape that is a number": (array(b"\x01", F32, FOUR), "the shape of an array, got 1"),
    "a negative size": (array(sequence(b"\xff"), F32, FOUR), "a size in a shape, .* got -1"),
    "a size that is True": (array(sequence(b"\xc3"), F32, FOUR), "a size in a shape, .* got True"),
    "a size in floats": (
        array(sequence(b"\xcb" + struct.pack(">d", 1)), F32, FOUR),
        "a size in a shape, .* got 1.0",
    ),
    "65 dimensions": (floats(*[1] * 65, count=1), r"at most (64|32) dimensions, got 65"),
    "2**32 dimensions": (array(b"\xdd\xff\xff\xff\xff", F32, FOUR), "dimensions, got 4294967295"),
    "a shape cut short": (array(b"\xdd\0\0\0\x20", b"", b""), "expected"),
    "too little data": (
        floats(2, 3, count=5),
        r"24 bytes of data for float32 of shape \(2, 3\), g",
    ),
    "too much data": (floats(2, 3, count=7), r"24 bytes of data for float32 .*, got 28"),
    "a size of 2**63": (floats(2**63, count=1), "at most 9223372036854775807 bytes, got an array"),
    "sizes beyond 2**64": (floats(2**33, 2**33, count=0), "at most 9223372036854775807 bytes, got"),
    "30 large sizes": (
        floats(*[2**64 - 1] * 30, count=1),
        r"9223372036854775807 bytes, got an array of shape \(18446744073709551615, .* \.\.\.",
    ),
    "nothing of a great size": (floats(0, 2**62, count=0), "at most 9223372036854775807 bytes"),
    "data that is a number": (array(ONE, F32, b"\x01"), "the data of an array, as bin, got 1"),
    "a scalar of a shape": (
        array(ONE, F32, FOUR, code=3),
        r"\(\) as the shape of a scalar, got \(1,\)",
    ),
    "a dtype that is a number": (array(ONE, b"\x04", FOUR), "the name of a dtype, got 4"),
    "a dtype of 4 GB": (array(ONE, b"\xdb\xff\xff\xff\xff", FOUR), "dtype, got 4294967295 bytes"),
    "a dtype cut short": (extension(1, b"\x93\x90\xa9float"), "expected 9 more bytes, got 5"),
    "no chunks": (
        mapping(text("__msgpack_chunked_array__"), b"\xc3"),
        "byte 0: expected the keys '__msgpack_chunked_array__' .True.* got '__msgpack_chunked",
    ),
    "chunks beside leaves": (
        chunked(numbered(b"\1"), numbered(floats(1, count=1)), text("w"), b"\1"),
        "which belong to an array in chunks, got .*'w'",
    ),
    "chunks that are marked False": (
        chunked(numbered(b"\1"), numbered(floats(1, count=1))).replace(b"\xc3", b"\xc2", 1),
        "True",
    ),
    "a shape of chunks that is a list": (
        chunked(sequence(b"\1"), numbered(floats(1, count=1))),
        "the shape of an array in chunks: a map, got list",
    ),
    "a shape of chunks without 0": (
        chunked(mapping(text("1"), b"\1"), numbered(floats(1, count=1))),
        "the shape of an array in chunks: the key '0', got a map without it",
    ),
    "a size of chunks of -1": (
        chunked(numbered(b"\xff"), numbered(floats(1, count=1))),
        "a size in the shape of an array in chunks, 0 or more, got -1",
    ),
    "too many dimensions of chunks": (
        chunked(numbered(*[b"\1"] * 65), numbered(floats(1, count=1))),
        "dimensions, got 65",
    ),
    "a chunk missing": (
        chunked(numbered(b"\2"), mapping(text("0"), floats(1, count=1), text("2"), b"\1")),
        "the key '1'",
    ),
    "none of the chunks": (chunked(numbered(b"\0"), numbered()), "one chunk .* or more, got none"),
    "a chunk that is a number": (
        chunked(numbered(b"\1"), numbered(b"\1")),
        "arrays of one dimension as chunks of an array, got int",
    ),
    "a chunk of two dimensions": (
        chunked(numbered(b"\1"), numbered(floats(1, 1, count=1))),
        r"arrays of one dimension as chunks of an array, got an array float32\[1,1\]",
    ),
    "a chunk in chunks": (
        chunked(numbered(b"\1"), numbered(chunked(numbered(b"\1"), numbered(floats(1, count=1))))),
        "arrays of one dimension",
    ),
    "chunks of two dtypes": (
        chunked(
            numbered(b"\2"),
            numbered(floats(1, count=1), array(ONE, text("int32"), FOUR)),
        ),
        "chunks of one dtype, float32, got int32",
    ),
    "chunks of another size": (
        chunked(numbered(b"\3"), numbered(floats(1, count=1), floats(1, count=1))),
        r"3 elements for an array of shape \(3,\), got 2",
    ),
    "chunks of a great size": (
        chunked(numbered(uint(2**64 - 1), uint(2**64 - 1)), numbered(floats(1, count=1))),
        "at most 9223372036854775807 bytes, got",
    ),
    "chunks of nothing of a great size": (
        chunked(numbered(b"\0", uint(2**63)), numbered(floats(0, count=0))),
        "at most 9223372036854775807 bytes",
    ),
}


def test_paths_that_take_more_than_the_file(tmp_path: Path) -> None:
    data = sequence(*[b"\xc0"] * 5000)
    for _ in range(900):
        data = b"\x81" + text("k" * 1000) + data
    file = tmp_path / "weights"
    file.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match="paths take more than") as caught:
            open_weights(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.file == str(file)
    assert peak < 20 * len(data)
    assert list(msgpack_restore(data)) == ["k" * 1000]


@pytest.mark.parametrize(("data", "says"), CASES.values(), ids=CASES)
def test_what_is_wrong_is_said(data: bytes, says: str) -> None:
    with pytest.raises(FileFormatError, match=says) as caught:
        msgpack_restore(data)
    message = str(caught.value)
    assert message.startswith("The data cannot be read as weights in msgpack: byte ")
    assert message.endswith("copy them anew, or write them again.")
    assert len(message) < 800
    assert caught.value.file is None
    # In another container the place is as many bytes further on, and the path begins with its key.
    with pytest.raises(FileFormatError, match=r", in params|the end, got 1 more bytes") as further:
        msgpack_restore(b"\x81\xa6params" + data)
    assert _place(further.value) == _place(caught.value) + 8


def _place(error: FileFormatError) -> int:
    (place,) = re.findall(r"msgpack: byte (\d+)", str(error))
    return int(place)


# NumPy takes the first row for dtypes; none of these are the names of any that is held here.
NO_DTYPES = (
    *("f4,f4", "(2,3)f4", "f4", "<f4", ">f4", "=f4", "float", "int", "half", "intc", "longdouble"),
    *("a4", "a", "O", "object", "V8", "S3", "U3", "str", "str96", "bytes8", "void64", "c16,i1"),
    *("datetime64[0s]", "datetime64[-1s]", "datetime64[ns]]", "datetime64[s/3]", "datetime64[B]"),
    *(
        "datetime64[99999999999s]",
        "timedelta64[generic]",
        "m8[s]",
        "bool_",
        "float32\0",
        " float32",
    ),
    *("finfo", "iinfo", "__name__", "_ml_dtypes_ext", "", "float31", "bfloat16 ", "FLOAT32", "é"),
)


@pytest.mark.parametrize("name", NO_DTYPES)
def test_no_other_spelling_of_a_dtype_is_evaluated(name: str) -> None:
    with pytest.raises(FileFormatError, match=r"expected the name of a dtype of numbers"):
        msgpack_restore(array(ONE, text(name), FOUR))


def test_objects_are_never_unpickled() -> None:
    pointers = np.arange(2, dtype=np.uint64).tobytes()
    with pytest.raises(FileFormatError, match="got 'object'"):
        msgpack_restore(array(sequence(b"\x02"), text("object"), binary(pointers)))


def test_a_dtype_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = next(n for n in ("float96", "float128") if not hasattr(np, n))
    with pytest.raises(FileFormatError, match="a dtype that NumPy has on this machine, got 'float"):
        msgpack_restore(array(ONE, text(missing), binary(bytes(16))))


def test_a_dtype_of_a_later_ml_dtypes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ml_dtypes

    monkeypatch.delattr(ml_dtypes, "float8_e5m2")
    with pytest.raises(FileFormatError, match=f"of ml_dtypes {ml_dtypes.__version__}, which is"):
        msgpack_restore(array(ONE, text("float8_e5m2"), b"\xc4\x01\0"))


def test_the_place_is_a_path_of_bounded_length() -> None:
    data = b"\x81\xda\x01\x00" + b"x" * 256
    with pytest.raises(FileFormatError, match=r"in x{80}/.*\.\.\..*: expected") as caught:
        msgpack_restore(data * 500)
    assert len(str(caught.value)) < 1000


def test_the_place_tells_keys_and_elements() -> None:
    data = b"\x81\xa1a\x92\x01\x82\x07\x01\xa3b/c\xc1"
    with pytest.raises(FileFormatError, match="byte 12, in a/1/b~1c: expected"):
        msgpack_restore(data)


def test_keys_with_equal_hashes_do_not_take_the_square_of_the_time() -> None:
    keys = (extension(-1, struct.pack(">Iq", i, 10**9 - i)) for i in range(50_000))
    data = mapping(*(part for key in keys for part in (key, b"\xc0")))
    start = time.perf_counter()
    with pytest.raises(FileFormatError, match="at most 1024 keys of a map that are neither text"):
        msgpack_restore(data)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff" * 20_000,
        b"\xdd\x00\x00\xff\xff" * 20_000,
        b"\x81\xa1a" * 30_000,
        b"\xdf\x00\x00\x10\x00" + b"\xc0" * 90_000,
        floats(2**40, count=20_000),
        chunked(numbered(uint(2**40)), numbered(*[floats(9, count=9)] * 1500)),
        chunked(numbered(uint(0)), numbered(*[b"\xc0"] * 7000)),
        sequence(*[sequence(*[b"\x90"] * 300)] * 300),
    ],
)
def test_memory_is_bounded_by_the_size_of_the_bytes(data: bytes) -> None:
    tracemalloc.start()
    try:
        msgpack_restore(data)
    except FileFormatError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # An empty list takes 56 bytes and a place in another one, and has been one byte.
    assert peak < 80 * len(data) + 2**20


def _sample() -> bytes:
    tree = {
        "params": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.int32(7)},
        "rate": 0.5,
        "z": 1 + 2j,
        "raw": [b"ab", "é", None, True, -1, 2**40],
    }
    data = msgpack_serialize(tree)
    chunks = chunked(numbered(b"\x02"), numbered(floats(1, count=1), floats(1, count=1)))
    when: bytes = msgpack.packb(msgpack.Timestamp(3))
    return b"\x83\xa1t" + data + b"\xa1c" + chunks + b"\xa1e" + when


SAMPLE = _sample()


def test_wherever_the_bytes_are_cut_short_the_error_says_so() -> None:
    for size in range(len(SAMPLE)):
        with pytest.raises(FileFormatError, match=r"expected .*, got "):
            msgpack_restore(SAMPLE[:size])
    assert msgpack_restore(SAMPLE)["c"].tolist() == [0, 0]


def _restored_or_refused(data: bytes) -> Any:
    try:
        return msgpack_restore(data)
    except FileFormatError as e:
        return e


def test_every_byte_may_be_any_other() -> None:
    restored = refused = 0
    for at in range(len(SAMPLE)):
        for byte in (0, 1, 0x7F, 0x80, 0x90, 0xA1, 0xC1, 0xC7, 0xD6, 0xDB, 0xDD, 0xDF, 0xFF):
            found = _restored_or_refused(SAMPLE[:at] + bytes([byte]) + SAMPLE[at + 1 :])
            refused += isinstance(found, FileFormatError)
            restored += not isinstance(found, FileFormatError)
    assert min(restored, refused) > 100


@given(st.binary(max_size=200))
@example(b"\x81")
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    _restored_or_refused(data)


@settings(max_examples=examples(50), deadline=None)
@given(
    state_dicts(),
    st.lists(
        st.tuples(
            st.sampled_from(["flip", "drop", "repeat", "insert"]),
            st.integers(0, 2**16),
            st.binary(min_size=1, max_size=8),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_damaged_files_are_a_value_or_an_error(tree: Any, damage: list[Any]) -> None:
    data = bytearray(msgpack_serialize(tree))
    for kind, place, new in damage:
        at = place % (len(data) + 1)
        if kind == "flip" and at < len(data):
            data[at] ^= new[0]
        elif kind == "drop":
            del data[at : at + len(new)]
        elif kind == "repeat":
            data[at:at] = data[at : at + 16]
        else:
            data[at:at] = new
    _restored_or_refused(bytes(data))
