"""Reads and writes TFRecord files, which are sequences of byte strings.

A record has its length in eight bytes, their checksum, the content, and the content's checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from jax2tf_bridge.saved_model._crc32c import crc32c, mask_checksum
from jax2tf_bridge.storage import AnyPath

_HEAD, _CHECKSUM = struct.Struct("<QI"), struct.Struct("<I")


def count_records(path: AnyPath, at_most: int) -> tuple[int, str | None]:
    """Counts records without reading them; also returns a problem, if there is one."""
    count = 0
    with path.open("rb") as file:
        try:
            for _ in _spans(file):
                if count == at_most:
                    return count, f"it has more than {at_most:,} records"
                count += 1
        except ValueError as e:
            return count, str(e)
    return count, None


def read_records(path: AnyPath) -> Iterator[bytes]:
    """Yields the records of a file.

    Raises:
      ValueError: the file is damaged; the text completes a sentence.
      OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for number, (start, length) in enumerate(_spans(file)):
            file.seek(start - _HEAD.size)
            head = file.read(_HEAD.size)
            content = file.read(length)
            (checksum,) = _CHECKSUM.unpack(file.read(_CHECKSUM.size))
            if head != _head(length) or checksum != mask_checksum(crc32c(content)):
                raise ValueError(f"its record {number} does not have its checksum")
            yield content


def write_records(path: AnyPath, records: Iterable[bytes]) -> None:
    """Writes records to a file."""
    with path.open("wb") as file:
        for record in records:
            file.write(_head(len(record)))
            file.write(record)
            file.write(_CHECKSUM.pack(mask_checksum(crc32c(record))))


def _head(length: int) -> bytes:
    return _HEAD.pack(length, mask_checksum(crc32c(length.to_bytes(8, "little"))))


def _spans(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yields the offset and the length of each record, which lie within the file."""
    size, at = file.seek(0, 2), 0
    while at < size:
        file.seek(at)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise ValueError("it ends within a record's length")
        length, _ = _HEAD.unpack(head)
        start = at + _HEAD.size
        at = start + length + _CHECKSUM.size
        if at > size:
            raise ValueError("it ends within a record")
        yield start, length
