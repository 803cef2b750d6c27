"""Bytes that are not what was written: FileFormatError, with the place, and nothing else."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.serialization import read_function, serialize

# The newest version is part of no face: only the reader compares with it.
from jax2tf_bridge.serialization.jaxfn import HEADER_SIZE, _format
from tests.sampling import stride
from tests.serialization.forging import (
    DATA,
    STRUCTURE_SIZE,
    everything,
    read_or_refused,
    refused,
    sealed,
)
from tests.serialization.records import changed


def test_untouched() -> None:
    assert sealed(DATA) == DATA
    assert read_or_refused(DATA)


def test_cut_short_anywhere() -> None:
    for size in range(len(DATA)):
        refused(DATA[:size])


def test_cut_short_at_every_64th_of_a_large_file(tmp_path: Path) -> None:
    data = serialize(changed(everything(), module=bytes(200_000)))
    path = tmp_path / "cut.jaxfn"
    for i in range(64):
        size = len(data) * i // 64
        path.write_bytes(data[:size])
        with pytest.raises(FileFormatError) as caught:
            read_function(path)
        assert caught.value.file == str(path)
        if size >= HEADER_SIZE:
            part = f"its header says that it has {len(data)} bytes, but it has {size}."
            assert part in str(caught.value)


def test_bits_flipped() -> None:
    data = bytearray(DATA)
    for place in range(0, 8 * len(data), stride(7)):
        position, bit = divmod(place, 8)
        data[position] ^= 1 << bit
        refused(bytes(data))
        data[position] ^= 1 << bit


def test_bytes_appended() -> None:
    refused(
        DATA + b"\0", f"its header says that it has {len(DATA)} bytes, but it has {len(DATA) + 1}."
    )


def test_places_of_damage() -> None:
    data = bytearray(DATA)
    data[STRUCTURE_SIZE - 1] ^= 1
    refused(
        bytes(data),
        "model.jaxfn cannot be read as a .jaxfn file: the checksum of the structure (bytes 0 to "
        f"{STRUCTURE_SIZE - 1}) is ",
        "The bytes are cut short or damaged: copy them anew, or write the file again.",
    )
    module = len(b"the module")
    for position, text in (
        (STRUCTURE_SIZE, f"module of the function (bytes {STRUCTURE_SIZE} to "),
        (STRUCTURE_SIZE + module, f"the VJP of order 1 (bytes {STRUCTURE_SIZE + module} to "),
    ):
        data = bytearray(DATA)
        data[position] ^= 1
        refused(bytes(data), "the checksum of the module", text)


@pytest.mark.parametrize("data", [b"", b"J", DATA[:7]])
def test_too_little_for_anything(data: bytes) -> None:
    refused(data, f"has {len(data)} bytes and is not a function: neither a .jaxfn file nor one of")


@pytest.mark.parametrize("size", [8, 11, 12, 31])
def test_too_little_for_a_header(size: int) -> None:
    refused(DATA[:size], f"expected a header of 32 bytes, got {size}.")


def test_wrong_identifier() -> None:
    refused(
        DATA[:4] + b"NFXJ" + DATA[8:],
        "is not a .jaxfn file: its bytes 4 to 7 are b'NFXJ', not b'JXFN'. It cannot be read as a "
        "file of jax.export either: ",
    )


def test_newer_version() -> None:
    newer = DATA[:8] + struct.pack("<I", _format.VERSION + 1) + DATA[12:]
    text = (
        f"model.jaxfn is written by format version {_format.VERSION + 1}, this bridge reads up to "
        f"{_format.VERSION}: upgrade jax2tf-bridge."
    )
    # Identifier and version are where they are in every version; the rest may be anything.
    for data in (newer, newer[:12], newer[:12] + b"?" * 5, sealed(newer)):
        assert str(refused(data)) == text


def test_version_before_the_first() -> None:
    refused(DATA[:8] + bytes(4) + DATA[12:], "expected a format version from 1 to 3, got 0.")


@pytest.mark.parametrize("size", [0, 31, len(DATA) + 1, 2**63])
def test_impossible_structure_size(size: int) -> None:
    data = DATA[:16] + struct.pack("<Q", size) + DATA[24:]
    refused(data, f"the structure has {size} bytes, in a file of {len(DATA)}.")
