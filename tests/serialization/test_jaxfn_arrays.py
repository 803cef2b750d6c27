"""Lifted arrays in .jaxfn files: each once, aligned, shared when they are read, and checked."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from jax2tf_bridge import PortableFunction
from jax2tf_bridge.errors import FileFormatError, SerializationError
from jax2tf_bridge.portable import Aval, LiftedConstant, StoredGradient, array_size
from jax2tf_bridge.serialization import deserialize, read_function, serialize, write_function

# A file shows the alignment only if its modules happen to end at the right byte.
from jax2tf_bridge.serialization.jaxfn import _format
from shape_poly import DimExpr
from tests.serialization.equality import assert_equal
from tests.serialization.fbs import Root
from tests.serialization.forging import forged, refused
from tests.serialization.records import constant, simple, vjp_of, with_vjps

FLOATS = constant(Aval((2, 3), "float32"), bytes(range(24)), "weights")
MASK = constant(Aval((5,), "bool"), b"\0\1\0\1\1", "mask")
NOTHING = constant(Aval((0, 3), "int64"), b"", "nothing")


def lifting(*constants: LiftedConstant, vjps: int = 1) -> PortableFunction:
    """A portable function with these constants, which its VJPs have in the opposite order."""
    portable = replace(simple(), lifted_constants=constants)
    modules = [b"a VJP"] * vjps
    if not modules:
        return portable
    vjp = vjp_of(portable, lifted_constants=constants[::-1], module=modules.pop())
    return replace(portable, gradient=StoredGradient(with_vjps(vjp, *modules)))


def places(data: bytes, arrays: Sequence[LiftedConstant]) -> list[int]:
    """Returns where the arrays begin in a file."""
    found = []
    for array in arrays:
        assert array.data
        assert data.count(array.data) == 1
        found.append(data.index(array.data))
    return found


def test_each_array_is_there_once_and_aligned() -> None:
    reshaped = replace(FLOATS, aval=Aval((6,), "int32"), name="the same bytes")
    portable = lifting(FLOATS, MASK, FLOATS, NOTHING, reshaped, vjps=2)
    data = serialize(portable)
    assert_equal(deserialize(data), portable)
    assert serialize(deserialize(data)) == data
    first, second = places(data, [FLOATS, MASK])
    assert first % 64 == second % 64 == 0
    assert second == first + 64
    assert not any(data[first + 24 : second])
    # The empty one lies at the end, and needs no byte but those before it.
    assert len(data) == second + 64


def test_other_tools_find_the_arrays() -> None:
    file = Root(serialize(lifting(FLOATS, MASK)))
    assert file.numbers("array_sizes") == [24, 5]
    text, ends = file.text("text"), [0, *accumulate(file.numbers("text_sizes"))]
    digests = [text[ends[i] : ends[i + 1]].decode() for i in file.numbers("array_digests")]
    assert digests == [FLOATS.digest, MASK.digest]


def test_what_is_read_is_shared() -> None:
    found = deserialize(serialize(lifting(FLOATS, MASK, FLOATS, vjps=2)))
    first, second, third = (f.lifted_constants for f in (found, found.vjp(), found.vjp().vjp()))
    assert first[0].data == FLOATS.data
    same = [first[0], first[2], second[0], second[2], third[0], third[2]]
    assert len({id(c.data) for c in same}) == 1
    assert len({id(c[1].data) for c in (first, second, third)}) == 1


def test_equal_arrays_need_not_be_one_object() -> None:
    again = replace(FLOATS, data=bytes(bytearray(FLOATS.data or b"")))
    assert again.data is not FLOATS.data
    assert serialize(lifting(FLOATS, again)) == serialize(lifting(FLOATS, FLOATS))


def test_arrays_that_are_left_out(tmp_path: Path) -> None:
    portable = lifting(FLOATS, MASK)
    path = tmp_path / "f.jaxfn"
    write_function(path, portable, arrays=False)
    data = path.read_bytes()
    assert data == serialize(portable, arrays=False)
    assert FLOATS.data is not None
    assert FLOATS.data not in data
    found = read_function(path)
    assert found.lifted_constants == portable.lifted_constants
    assert found.vjp().lifted_constants == portable.vjp().lifted_constants
    for function in (found, found.vjp()):
        assert [c.data for c in function.lifted_constants] == [None, None]
    # Arrays that were left out stay out.
    assert serialize(found) == data


def test_arrays_that_are_elsewhere() -> None:
    portable = lifting(FLOATS, replace(MASK, data=None))
    found = deserialize(serialize(portable))
    assert_equal(found, portable)
    # One who has the array is enough.
    portable = lifting(replace(FLOATS, data=None), FLOATS)
    assert [c.data for c in deserialize(serialize(portable)).lifted_constants] == [FLOATS.data] * 2


@pytest.mark.parametrize("sizes", [(0,), (1, 63, 64, 65), (100_000,), (5_000_000, 7, 3_000_000)])
def test_arrays_of_all_sizes(sizes: tuple[int, ...], tmp_path: Path) -> None:
    constants = [constant(Aval((size,), "int8"), os.urandom(size), f"{size}") for size in sizes]
    portable = lifting(*constants)
    path = tmp_path / "f.jaxfn"
    write_function(path, portable)
    assert_equal(read_function(path), portable)
    assert_equal(deserialize(path.read_bytes()), portable)


def test_large_arrays_are_in_memory_once(tmp_path: Path) -> None:
    size = 1 << 23
    constants = [constant(Aval((size,), "uint8"), bytes([i]) * size) for i in range(2)]
    path = tmp_path / "f.jaxfn"
    portable = lifting(*constants, vjps=2)
    write_function(path, portable)
    data = path.read_bytes()

    def peak(call: Any, argument: Any) -> int:
        tracemalloc.start()
        try:
            kept = call(argument)
            found = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(kept.vjp().vjp().lifted_constants) == 2
        return found

    assert 2 * size <= peak(read_function, path) < 2.1 * size
    assert 2 * size <= peak(deserialize, data) < 2.1 * size
    tracemalloc.start()
    try:
        write_function(path, portable)
        assert tracemalloc.get_traced_memory()[1] < 0.1 * size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [24, 100_000, 5_000_000])
@pytest.mark.parametrize("at", [0, -1])
def test_a_damaged_array_is_named(size: int, at: int, tmp_path: Path) -> None:
    lifted = constant(Aval((size,), "int8"), os.urandom(size), "weights['w']")
    data = bytearray(serialize(lifting(MASK, lifted)))
    (start,) = places(bytes(data), [lifted])
    data[start + at % size] ^= 4
    path = tmp_path / "f.jaxfn"
    path.write_bytes(data)
    reads: dict[str, Callable[[], PortableFunction]] = {
        str(path): lambda: read_function(path),
        "The data": lambda: deserialize(data),
    }
    for file, read in reads.items():
        with pytest.raises(FileFormatError) as caught:
            read()
        text = str(caught.value)
        assert text.startswith(
            f"{file} cannot be read as a .jaxfn file: the SHA-256 of the array \"weights['w']\" "
            f"(bytes {start} to {start + size - 1}) is "
        )
        assert text.endswith(
            f", and its digest is {lifted.digest}. The bytes are cut short or damaged: copy them "
            "anew, or write the file again."
        )


@pytest.mark.parametrize("size", [24, 100_000])
def test_damage_before_an_array(size: int, tmp_path: Path) -> None:
    lifted = constant(Aval((size,), "int8"), os.urandom(size))
    data = bytearray(serialize(lifting(lifted, MASK)))
    start = places(bytes(data), [lifted])[0] + size
    data[start + 1] = 1
    path = tmp_path / "f.jaxfn"
    path.write_bytes(data)
    end = start + -start % 64 - 1
    reads: list[Callable[[], PortableFunction]]
    reads = [lambda: read_function(path), lambda: deserialize(data)]
    for read in reads:
        text = rf"bytes {start} to {end}, before an array, are not zero\."
        with pytest.raises(FileFormatError, match=text):
            read()


@pytest.mark.parametrize(
    ("lifted", "text"),
    [
        (
            replace(FLOATS, data=b"12345"),
            "lifted_constants[0] is float32[2,3] of 24 bytes, and its data has 5.",
        ),
        (
            replace(FLOATS, aval=Aval((2, 3), "int4")),
            "lifted_constants[0] is int4[2,3], and its dtype is int4, whose elements have no "
            "known size in bytes.",
        ),
        (
            replace(MASK, aval=Aval((DimExpr.variable("b"),), "bool"), data=None),
            "lifted_constants[0] is bool[b], and its sizes are not all known.",
        ),
        (
            replace(MASK, aval=Aval((2**40, 2**40, 2**40), "bool"), data=None),
            "and it has more than 9223372036854775807 bytes.",
        ),
        (
            replace(MASK, digest="12AB", data=None),
            "lifted_constants[0] has the digest '12AB', which is not a SHA-256.",
        ),
    ],
)
def test_constants_that_are_none(lifted: LiftedConstant, text: str) -> None:
    for arrays in (True, False):
        with pytest.raises(SerializationError) as caught:
            serialize(lifting(lifted), arrays=arrays)
        assert str(caught.value).startswith("f cannot be written: its parts disagree: lift")
        assert text in str(caught.value)


def test_data_that_is_not_what_the_digest_is_of() -> None:
    other = replace(FLOATS, data=bytes(24))
    for constants in ((other,), (FLOATS, other)):
        with pytest.raises(SerializationError) as caught:
            serialize(lifting(*constants))
        assert str(caught.value) == (
            "f cannot be written: The data of the lifted constant 'weights' does not match "
            f"its digest, {FLOATS.digest}: expected the SHA-256 of the data."
        )


def of_one_array(**fields: Any) -> bytes:
    """A forged file with a lifted constant, float32[], whose array it has."""
    digest = "5" * 64
    return forged(
        **{
            "file__text": b"ffloat32b2*2(b)" + digest.encode(),
            "file__text_sizes": [1, 7, 1, 3, 3, 64],
            "lifted_avals": [0],
            "lifted_digests": [5],
            "lifted_names": [0],
            "file__array_digests": [5],
            "file__array_sizes": [4],
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "expected modules and arrays up to byte "),
        ({"file__array_sizes": []}, "expected a digest and a size for each array, got 1 and 0"),
        ({"file__array_sizes": [5]}, "array_sizes: expected 4 bytes for float32[], got 5"),
        ({"file__array_sizes": [2**63]}, "array_sizes: expected 4 bytes for float32[], got 92233"),
        ({"file__array_digests": [6]}, "array_digests: expected indices below 6, got 6"),
        ({"file__array_digests": [0]}, "expected digests of lifted constants, got 'f'"),
        (
            {"file__array_digests": [5, 5], "file__array_sizes": [4, 4]},
            "array_digests: expected digests that differ, got one of them twice",
        ),
        ({"file__array_digests": []}, "expected a digest and a size for each array, got 0 and 1"),
        ({"lifted_digests": [0]}, "lifted_constants[0] has the digest 'f', which is not a SHA-256"),
        ({"avals__dtypes": [0]}, "lifted_constants[0] is f[], and its dtype is f, whose "),
    ],
)  # fmt: skip
def test_forged_arrays(fields: dict[str, Any], text: str) -> None:
    refused(of_one_array(**fields), text)


def test_a_forged_file_whose_array_would_be_larger_than_memory() -> None:
    """It is refused by the file's size, before memory is asked for."""
    fields = {"avals__ranks": [1], "avals__sizes": [2**58], "file__array_sizes": [2**60]}
    tracemalloc.start()
    try:
        refused(of_one_array(**fields), "expected modules and arrays up to byte ")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_with_another_array_for_a_digest_is_refused() -> None:
    """Its checksums are right; but no other function must come to use its array for its own."""
    data = serialize(lifting(FLOATS))
    (start,) = places(data, [FLOATS])
    assert FLOATS.data is not None
    refused(data.replace(FLOATS.data, bytes(24)), "the SHA-256 of the array 'weights'", f"{start}")


def test_sizes_of_arrays_are_computed_in_bounded_time() -> None:
    """Sizes whose product has millions of digits, meant by many constants."""
    count = 20_000
    fields: dict[str, Any] = {
        "avals__ranks": [count],
        "avals__sizes": [2**62] * count,
        "lifted_avals": [0] * count,
        "lifted_digests": [5] * count,
        "lifted_names": [0] * count,
        "out_avals": [],
    }
    start = time.monotonic()
    refused(of_one_array(**fields), "functions[0]")
    fields["avals__sizes"] = [2**62] * (count - 1) + [0]
    refused(of_one_array(**fields), "functions[0]")
    assert time.monotonic() - start < 5


def test_sizes_of_arrays() -> None:
    assert array_size(Aval((), "complex128")) == 16
    assert array_size(Aval((3, 0, 2**62, 2**62), "float64")) == 0
    assert array_size(Aval((2**60,), "float64")) == "it has more than 9223372036854775807 bytes"
    for dtype in ("int2", "uint4", "float0", "key<fry>", "float4_e2m1fn", "string"):
        assert "no known size in bytes" in str(array_size(Aval((), dtype)))
    assert _format.align_array_start(64) == 64
    assert _format.align_array_start(65) == 128
