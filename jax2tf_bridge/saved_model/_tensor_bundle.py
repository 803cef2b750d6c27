"""Reads TensorFlow's saved variables, a TensorBundle, and adds variables, without TensorFlow.

A bundle is an index, `variables.index`, and shards of data, `variables.data-00000-of-00001`. The
index is a table in LevelDB's format
(https://github.com/google/leveldb/blob/main/doc/table_format.md) that maps names to messages of
tensor_bundle.proto, which have the shard and offset of a tensor. Every length is checked before its
use, and every checksum is verified.

New tensors are appended to the first shard in pieces, whose checksums are computed while they are
in the processor's cache. No tensor is copied. Then the index is rewritten.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax2tf_bridge.errors import FileFormatError, SavingError
from jax2tf_bridge.saved_model._crc32c import crc32c, mask_checksum, unmask_checksum
from jax2tf_bridge.saved_model._tensors import (
    DTYPES,
    STRING,
    TensorSpec,
    name_dtype,
    read_known_shape,
)
from jax2tf_bridge.serialization import (
    FIXED32,
    ProtoMessage,
    bytes_field,
    tag,
    varint,
    varint_field,
)
from jax2tf_bridge.storage import AnyPath, as_path

_MAGIC = 0xDB4775248B80FB57
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5  # type of compression, checksum
_MAX_INDEX_BYTES = 1 << 30
_MAX_NAME_BYTES_PER_BYTE = 100
_MAX_NAME_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 18
_RESTART_INTERVAL = 16
_HANDLES_BYTES = 40
_NUMBERS = {name: number for number, name in DTYPES.items()}


@dataclass(frozen=True)
class BundleEntry:
    """Entry of a tensor in a bundle.

    Attributes:
      dtype: TensorFlow's name of the dtype, "string" for texts.
      shape: the sizes in elements.
      shard: the number of its data file.
      start, size: the offset and the size in the file, in bytes.
      checksum: the CRC-32C of its bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    shard: int
    start: int
    size: int
    checksum: int


class TensorBundle:
    """Tensors below a prefix, such as "model/variables/variables".

    Attributes:
      index: the name of the index file.
      raw: the encoded entries by key; the key of the header is empty.
      entries: the tensors by key.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        """Reads the index; data is read on demand.

        Raises:
          FileFormatError: it is not a bundle, is damaged, or of an unsupported kind.
          OSError: the index cannot be read.
        """
        self._prefix = as_path(prefix)
        self.index = f"{self._prefix}.index"
        file = self._prefix.with_name(f"{self._prefix.name}.index")
        size = file.stat().st_size
        if size > _MAX_INDEX_BYTES:
            raise FileFormatError(
                f"{self.index} has {size:,} bytes, too many for an index of variables: it is "
                "damaged, or of another format. Copy or write it again.",
                file=self.index,
            )
        index = ProtoMessage(file.read_bytes(), "the index of variables", self.index)
        table = _read_table(index)
        key, header = next(table, (b"", None))
        if key or header is None:
            raise index.error(0, "it has no header")
        self._shards = _read_shard_count(header)
        self.raw = {b"": header.data[header.start : header.end]}
        self.entries: dict[str, BundleEntry] = {}
        for key, value in table:
            self.raw[key] = value.data[value.start : value.end]
            self.entries[key.decode(errors="replace")] = _read_entry(value, self._shards)

    def shard(self, number: int) -> AnyPath:
        """Returns the path of a data file."""
        return self._prefix.with_name(f"{self._prefix.name}.data-{number:05}-of-{self._shards:05}")

    def read(self, key: str) -> bytes:
        """Reads the elements of a tensor, in C order and little-endian.

        Raises:
          KeyError: the bundle has no such key.
          FileFormatError: the checksum does not match.
          OSError: the data cannot be read.
        """
        entry = self.entries[key]
        path = self.shard(entry.shard)
        name = str(path)
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            if entry.start + entry.size > file.tell():
                raise FileFormatError(
                    f"{name} is cut short: it has {file.tell()} bytes, and {key} ends at byte "
                    f"{entry.start + entry.size}. Copy it anew.",
                    file=name,
                )
            file.seek(entry.start)
            data = file.read(entry.size)
        # The checksum of strings includes their lengths in another form.
        if entry.dtype != STRING and crc32c(data) != entry.checksum:
            raise FileFormatError(
                f"{name} is damaged: the checksum of {key} is not that of its {entry.size} bytes. "
                "Copy it anew.",
                file=name,
            )
        return data


def variable_name(key: str) -> str:
    """Converts the key of a variable in a checkpoint to its path.

    >>> variable_name("params/dense.Skernel/.ATTRIBUTES/VARIABLE_VALUE")
    'params/dense/kernel'
    """
    path = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
    return re.sub(r"\.([S.])", lambda match: "/" if match[1] == "S" else ".", path)


def _read_table(index: ProtoMessage) -> Iterator[tuple[bytes, ProtoMessage]]:
    if len(index) < _FOOTER_SIZE:
        raise index.error(0, f"it has {len(index)} bytes")
    begin = index.end - _FOOTER_SIZE
    if int.from_bytes(index.data[-8:], "little") != _MAGIC:
        raise index.error(begin, "its last bytes are not those of an index")
    # The metaindex block is not needed.
    _, at = _read_block(index, index, begin)
    block, _ = _read_block(index, index, at)
    previous: bytes | None = None
    # Shared prefixes allow long names in few bytes, so their total is limited.
    budget = _MAX_NAME_BYTES_PER_BYTE * len(index)
    end = 0
    for _, handle in _iterate_entries(block):
        block, _ = _read_block(index, handle, handle.start)
        # A small file could name one block many times, and each would be verified.
        if block.start < end:
            raise index.error(handle.start, "its blocks overlap")
        end = block.end
        for key, value in _iterate_entries(block):
            if previous is not None and key <= previous:
                raise block.error(value.start, "its names are not sorted")
            budget -= len(key)
            if budget < 0:
                problem = "its names are longer than any that TensorFlow writes"
                raise block.error(value.start, problem)
            previous = key
            yield key, value


def _read_block(index: ProtoMessage, handle: ProtoMessage, at: int) -> tuple[ProtoMessage, int]:
    """Reads a block handle at an offset; returns the block and the offset after the handle."""
    start, after = handle.varint(at)
    size, after = handle.varint(after)
    end = start + size
    if end + _TRAILER_SIZE > len(index) - _FOOTER_SIZE:
        raise index.error(at, "a block ends after the file")
    kind, stored = struct.unpack_from("<BI", index.data, end)
    if crc32c(memoryview(index.data)[start : end + 1]) != unmask_checksum(stored):
        raise index.error(start, "the checksum of the block is wrong")
    if kind != 0:
        problem = f"a block is compressed (kind {kind}), which TensorFlow never does"
        raise index.error(start, problem)
    return ProtoMessage(index.data, index.place, index.file, start, end), after


def _iterate_entries(block: ProtoMessage) -> Iterator[tuple[bytes, ProtoMessage]]:
    """Yields the names and values of a block; names omit the prefix shared with the one before."""
    if len(block) < 4:
        raise block.error(block.start, "a block has no end")
    restarts = int.from_bytes(block.data[block.end - 4 : block.end], "little")
    end = block.end - 4 * (restarts + 1)
    if end < block.start:
        raise block.error(block.start, "a block is shorter than it says")
    at, key = block.start, b""
    while at < end:
        begin = at
        shared, at = block.varint(at, end)
        rest, at = block.varint(at, end)
        size, at = block.varint(at, end)
        if shared > len(key) or rest + size > end - at:
            raise block.error(begin, "an entry is longer than its block")
        if shared + rest > _MAX_NAME_BYTES:
            raise block.error(begin, "a name is longer than any that TensorFlow writes")
        key = key[:shared] + block.data[at : at + rest]
        at += rest
        yield key, ProtoMessage(block.data, "the entry of a variable", block.file, at, at + size)
        at += size


def _read_entry(message: ProtoMessage, shards: int) -> BundleEntry:
    fields = message.last_fields()
    if 7 in fields:
        raise message.error(fields[7].start, "it holds slices of variables, which are not read")
    dtype, shard, start, size = (
        message.integer(fields[number]) if number in fields else 0 for number in (1, 3, 4, 5)
    )
    shape: tuple[int, ...] = ()
    if 2 in fields:
        shape = read_known_shape(message.message(fields[2], "the shape of a variable"))
    checksum = message.fixed32(fields[6]) if 6 in fields else 0
    if not 0 <= shard < shards:
        raise message.error(message.start, f"a tensor is in file {shard} of {shards}")
    if start < 0 or size < 0:
        raise message.error(message.start, f"a tensor is at the bytes {start} to {start + size}")
    spec = TensorSpec(name_dtype(dtype), shape)
    if spec.size is not None and size != spec.size:
        raise message.error(message.start, f"a tensor of {spec.size} bytes has {size}")
    return BundleEntry(spec.dtype, shape, shard, start, size, unmask_checksum(checksum))


def _read_shard_count(header: ProtoMessage) -> int:
    fields = header.last_fields()
    if 2 in fields and header.integer(fields[2]) != 0:
        raise header.error(fields[2].start, "it was written on a big-endian machine")
    shards = header.integer(fields[1]) if 1 in fields else 1
    if not 1 <= shards <= 99999:
        raise header.error(header.start, f"it names {shards} files")
    return shards


@dataclass(frozen=True)
class NewTensor:
    """Tensor to add to a bundle.

    Attributes:
      type: the dtype and the shape, without unknown sizes.
      blocks: yields the elements, in C order and little-endian; called once.
    """

    type: TensorSpec
    blocks: Callable[[], Iterator[memoryview]]


def append_tensors(prefix: str | os.PathLike[str], tensors: Mapping[str, NewTensor]) -> None:
    """Adds tensors with new names to a bundle.

    Only the index and the current block are in memory.

    Args:
      prefix: the prefix of the bundle, on disk.
      tensors: the tensors by key.

    Raises:
      FileFormatError: the bundle is damaged, or of an unsupported kind.
      SavingError: the number of bytes of a tensor does not match its type.
      OSError: the bundle cannot be read or written.
    """
    bundle = TensorBundle(prefix)
    entries = dict(bundle.raw)
    with open(bundle.shard(0), "r+b", buffering=0) as file:
        at = file.seek(0, os.SEEK_END)
        for key, tensor in tensors.items():
            size, checksum = _write_blocks(file.write, tensor.blocks())
            if size != tensor.type.size:
                raise SavingError(
                    f"{key} changed its size while it was written: expected {tensor.type} of "
                    f"{tensor.type.size} bytes, got {size}. Save weights that do not change, "
                    "or copies."
                )
            entries[key.encode()] = _encode_entry(tensor.type, at, size, checksum)
            at += size
    with open(bundle.index, "wb") as file:
        file.write(_encode_table(sorted(entries.items())))


def _write_blocks(
    write: Callable[[memoryview], int | None], blocks: Iterable[memoryview]
) -> tuple[int, int]:
    """Writes blocks; returns their total number of bytes and their checksum."""
    size = checksum = 0
    for block in blocks:
        for start in range(0, len(block), _PIECE_BYTES):
            piece = block[start : start + _PIECE_BYTES]
            checksum = crc32c(piece, checksum)
            size += len(piece)
            while piece:
                # A write may be partial.
                piece = piece[write(piece) :]
    return size, checksum


def _encode_entry(spec: TensorSpec, start: int, size: int, checksum: int) -> bytes:
    sizes = b"".join(
        bytes_field(2, varint_field(1, dimension) if dimension else b"")
        for dimension in spec.shape or ()
        if dimension is not None
    )
    fields = [varint_field(1, _NUMBERS[spec.dtype]), bytes_field(2, sizes)]
    fields += [varint_field(number, value) for number, value in ((4, start), (5, size)) if value]
    return b"".join([*fields, tag(6, FIXED32), struct.pack("<I", mask_checksum(checksum))])


def _encode_table(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    content = bytearray()
    handles: list[tuple[bytes, bytes]] = []

    def add(block: bytes) -> bytes:
        """Appends a block; returns its handle."""
        handle = varint(len(content)) + varint(len(block))
        whole = block + b"\0"  # uncompressed
        content.extend(whole + struct.pack("<I", mask_checksum(crc32c(whole))))
        return handle

    group: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in entries:
        group.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES:
            handles.append((key, add(_encode_block(group))))
            group, size = [], 0
    if group:
        handles.append((group[-1][0], add(_encode_block(group))))
    metaindex = add(_encode_block([]))
    footer = metaindex + add(_encode_block(handles))
    content += footer.ljust(_HANDLES_BYTES, b"\0") + struct.pack("<Q", _MAGIC)
    return bytes(content)


def _encode_block(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Encodes a block; names, except every 16th, omit the prefix shared with the one before."""
    content = bytearray()
    restarts = []
    previous = b""
    for i, (key, value) in enumerate(entries):
        shared = 0
        if i % _RESTART_INTERVAL == 0:
            restarts.append(len(content))
        else:
            pairs = zip(previous, key, strict=False)
            shared = next((n for n, (a, b) in enumerate(pairs) if a != b), len(previous))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value))
        content += key[shared:] + value
        previous = key
    restarts = restarts or [0]
    return bytes(content) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
