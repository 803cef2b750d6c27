"""Reads variables as TensorFlow saves them, a TensorBundle, without TensorFlow.

A bundle is an index, `variables.index`, and shards of data, `variables.data-00000-of-00001`. The
index is a table in LevelDB's format
(https://github.com/google/leveldb/blob/main/doc/table_format.md) from names to messages of
tensor_bundle.proto, which say where a tensor lies in which shard. Every length is checked before
it is used, and every checksum.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model._crc32c import crc32c, unmasked
from jax2tf_bridge.saved_model._protobuf import (
    WireError,
    as_bytes,
    as_number,
    fields,
    signed,
    varint,
)

DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
    29: "int4",
    30: "uint4",
}
"""The names of TensorFlow's dtypes, by their numbers in types.proto."""

STRING = "string"
"""The dtype of texts, whose elements have no fixed size."""

# 4-bit integers lie in a byte each.
_SIZES = {
    **{"bool": 1, "int4": 1, "uint4": 1, "float8_e5m2": 1, "float8_e4m3fn": 1, "bfloat16": 2},
    **{f"{kind}{8 * size}": size for kind in ("int", "uint") for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": size for size in (2, 4, 8)},
    **{"complex64": 8, "complex128": 16},
}

_MAGIC = 0xDB4775248B80FB57
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5  # the kind of compression, a checksum
_MOST_INDEX_BYTES = 1 << 30
_MOST_NAME_BYTES_PER_BYTE = 100
_LONGEST_NAME = 1 << 16
_MOST_DIMENSIONS = 254  # of TensorFlow


@dataclass(frozen=True)
class BundleEntry:
    """A tensor of a bundle.

    Attributes:
      dtype: by TensorFlow's name, "string" for texts.
      shape: its sizes.
      shard: in which file it lies.
      start, size: where in it, in bytes.
      checksum: of its bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    shard: int
    start: int
    size: int
    checksum: int


class TensorBundle:
    """The tensors below a prefix, as "model/variables/variables"."""

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        """Reads the index; data is read when it is asked for.

        Raises:
          FileFormatError: it is none, or damaged, or of a kind that is not read here.
          OSError: it cannot be read.
        """
        self._prefix = os.fspath(prefix)
        self._index = f"{self._prefix}.index"
        size = Path(self._index).stat().st_size
        if size > _MOST_INDEX_BYTES:
            raise self._damaged(f"it has {size} bytes, and an index has fewer")
        data = memoryview(Path(self._index).read_bytes())
        self.entries: dict[str, BundleEntry] = {}
        try:
            entries = self._table(data)
            key, header = next(entries, (b"", None))
            if key or header is None:
                raise WireError("it has no header")
            self._shards = _shards(header)
            for key, value in entries:
                self.entries[str(key, "utf-8")] = self._entry(value)
        except (WireError, UnicodeDecodeError) as e:
            raise self._damaged(str(e)) from e

    def read(self, key: str) -> bytes:
        """Reads the elements of a tensor, in C order and little-endian.

        Raises:
          KeyError: there is none of that name.
          FileFormatError: its bytes are not what was written.
          OSError: they cannot be read.
        """
        entry = self.entries[key]
        name = f"{self._prefix}.data-{entry.shard:05}-of-{self._shards:05}"
        with open(name, "rb") as file:
            file.seek(0, os.SEEK_END)
            if entry.start + entry.size > file.tell():
                raise FileFormatError(
                    f"{name} is cut short: {key} lies at the bytes {entry.start} to "
                    f"{entry.start + entry.size}, and it has {file.tell()}. Copy it anew.",
                    file=name,
                )
            file.seek(entry.start)
            data = file.read(entry.size)
        # That of texts covers their lengths in another form.
        if entry.dtype != STRING and crc32c(data) != entry.checksum:
            raise FileFormatError(
                f"{name} is damaged: the checksum of {key} is not that of its {entry.size} bytes. "
                "Copy it anew.",
                file=name,
            )
        return data

    def _table(self, data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
        if len(data) < _FOOTER_SIZE:
            raise WireError(f"it has {len(data)} bytes")
        footer = data[-_FOOTER_SIZE:]
        if int.from_bytes(footer[-8:], "little") != _MAGIC:
            raise WireError("it does not end as an index does")
        (start, size), position = _handle(footer, 0)
        self._block(data, start, size)  # about the table; nothing in it is needed
        (start, size), _ = _handle(footer, position)
        previous: bytes | None = None
        # A name may share its beginning with the one before, so that few bytes make long names.
        budget = _MOST_NAME_BYTES_PER_BYTE * len(data)
        for _, handle in _entries(self._block(data, start, size)):
            (start, size), _ = _handle(handle, 0)
            for key, value in _entries(self._block(data, start, size)):
                if previous is not None and key <= previous:
                    raise WireError("its names are in no order")
                budget -= len(key)
                if budget < 0:
                    raise WireError("its names are longer than any that TensorFlow writes")
                previous = key
                yield key, value

    def _block(self, data: memoryview, start: int, size: int) -> memoryview:
        end = start + size
        if end + _TRAILER_SIZE > len(data) - _FOOTER_SIZE:
            raise WireError("a block lies behind its end")
        kind, stored = struct.unpack("<BI", data[end : end + _TRAILER_SIZE])
        if crc32c(data[start : end + 1]) != unmasked(stored):
            raise WireError(f"the checksum of the block at byte {start} is wrong")
        if kind != 0:
            raise WireError(f"a block is compressed (kind {kind}), which TensorFlow never does")
        return data[start:end]

    def _entry(self, message: memoryview) -> BundleEntry:
        dtype = shard = start = size = checksum = 0
        shape: tuple[int, ...] = ()
        for number, value in fields(message):
            if number == 1:
                dtype = as_number(value)
            elif number == 2:
                shape = known_shape(as_bytes(value))
            elif number == 3:
                shard = as_number(value)
            elif number == 4:
                start = as_number(value)
            elif number == 5:
                size = as_number(value)
            elif number == 6:
                checksum = as_number(value)
            elif number == 7:
                raise WireError("it holds slices of variables, which are not read")
        if shard >= self._shards:
            raise WireError(f"a tensor lies in file {shard} of {self._shards}")
        name = DTYPES.get(dtype, f"dtype {dtype}")
        expected = _SIZES.get(name, 0) * math.prod(shape)
        if name in _SIZES and size != expected:
            raise WireError(f"a tensor of {expected} bytes has {size}")
        return BundleEntry(name, shape, shard, start, size, unmasked(checksum))

    def _damaged(self, problem: str) -> FileFormatError:
        return FileFormatError(
            f"{self._index} cannot be read as the index of variables: {problem}. Copy the "
            "SavedModel anew, or save it again.",
            file=self._index,
        )


def _handle(data: memoryview, position: int) -> tuple[tuple[int, int], int]:
    start, position = varint(data, position)
    size, position = varint(data, position)
    return (start, size), position


def _entries(block: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Reads the entries of a block; each name shares its beginning with the one before."""
    if len(block) < 4:
        raise WireError("a block has no end")
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise WireError("a block is shorter than it says")
    position, key = 0, b""
    while position < end:
        shared, position = varint(block, position)
        own, position = varint(block, position)
        size, position = varint(block, position)
        if shared > len(key) or own + size > end - position:
            raise WireError("an entry is longer than its block")
        if shared + own > _LONGEST_NAME:
            raise WireError("a name is longer than any that TensorFlow writes")
        key = key[:shared] + block[position : position + own]
        position += own
        yield key, block[position : position + size]
        position += size


def _shards(header: memoryview) -> int:
    shards = 1
    for number, value in fields(header):
        if number == 1:
            shards = as_number(value)
        elif number == 2 and as_number(value) != 0:
            raise WireError("it was written on a big-endian machine")
    if not 1 <= shards <= 99999:
        raise WireError(f"it names {shards} files")
    return shards


def read_shape(message: memoryview) -> tuple[int | None, ...] | None:
    """Reads the shape in a TensorShapeProto: None for open sizes, None alone for an open rank.

    Raises:
      WireError: it is none.
    """
    sizes: list[int | None] = []
    unknown = False
    for number, value in fields(message):
        if number == 2:
            size = 0
            for dim_number, dim in fields(as_bytes(value)):
                if dim_number == 1:
                    size = signed(as_number(dim))
            sizes.append(None if size < 0 else size)
            if len(sizes) > _MOST_DIMENSIONS:
                raise WireError(f"a shape has more than {_MOST_DIMENSIONS} dimensions")
        elif number == 3:
            unknown = as_number(value) != 0
    return None if unknown else tuple(sizes)


def known_shape(message: memoryview) -> tuple[int, ...]:
    """Reads the shape in a TensorShapeProto in which nothing is open.

    Raises:
      WireError: it is none.
    """
    shape = read_shape(message)
    if shape is None or None in shape:
        raise WireError("a tensor has no known shape")
    return tuple(size for size in shape if size is not None)
