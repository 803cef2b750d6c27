"""Adds tensors to a checkpoint of TensorFlow, without TensorFlow and without copying the tensors.

See _tensor_bundle for the format. The elements are appended to the first data file in pieces, whose
checksums are computed while they are in the processor's cache, and the index is rewritten.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.saved_model._crc32c import crc32c, mask_checksum
from jax2tf_bridge.saved_model._protobuf import FIXED32, bytes_field, tag, varint, varint_field
from jax2tf_bridge.saved_model._tensor_bundle import MAGIC, TensorBundle
from jax2tf_bridge.saved_model._tensors import DTYPES, TensorType

_PIECE = 1 << 20
_BLOCK_BYTES = 1 << 18
_RESTART_INTERVAL = 16
_HANDLES_BYTES = 40
_NUMBERS = {name: number for number, name in DTYPES.items()}


@dataclass(frozen=True)
class NewTensor:
    """Tensor to add to a bundle.

    Attributes:
      type: the dtype and the shape, without unknown sizes.
      blocks: yields the elements, in C order and little-endian; called once.
    """

    type: TensorType
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
            size, checksum = _write(file.write, tensor.blocks())
            if size != tensor.type.size:
                raise SavingError(
                    f"{key} became another array while it was written: expected {tensor.type} of "
                    f"{tensor.type.size} bytes, got {size}. Save weights that stay as they are, "
                    "or copies."
                )
            entries[key.encode()] = _entry(tensor.type, at, size, checksum)
            at += size
    with open(bundle.index, "wb") as file:
        file.write(_table(sorted(entries.items())))


def _write(
    write: Callable[[memoryview], int | None], blocks: Iterable[memoryview]
) -> tuple[int, int]:
    """Writes blocks; returns their total number of bytes and their checksum."""
    size = checksum = 0
    for block in blocks:
        for start in range(0, len(block), _PIECE):
            piece = block[start : start + _PIECE]
            checksum = crc32c(piece, checksum)
            size += len(piece)
            while piece:
                # A write may be partial.
                piece = piece[write(piece) :]
    return size, checksum


def _entry(kind: TensorType, start: int, size: int, checksum: int) -> bytes:
    """Encodes a BundleEntryProto."""
    sizes = b"".join(
        bytes_field(2, varint_field(1, dimension) if dimension else b"")
        for dimension in kind.shape or ()
        if dimension is not None
    )
    fields = [varint_field(1, _NUMBERS[kind.dtype]), bytes_field(2, sizes)]
    fields += [varint_field(number, value) for number, value in ((4, start), (5, size)) if value]
    return b"".join([*fields, tag(6, FIXED32), struct.pack("<I", mask_checksum(checksum))])


def _table(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Encodes a table with sorted names."""
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
            handles.append((key, add(_block(group))))
            group, size = [], 0
    if group:
        handles.append((group[-1][0], add(_block(group))))
    about = add(_block([]))
    footer = about + add(_block(handles))
    content += footer.ljust(_HANDLES_BYTES, b"\0") + struct.pack("<Q", MAGIC)
    return bytes(content)


def _block(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
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
