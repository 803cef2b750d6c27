"""Messages on a pipe: the number of their bytes, then these."""

from __future__ import annotations

import os
import struct

_SIZE = struct.Struct(">Q")


def write_frame(descriptor: int, message: bytes) -> None:
    """Writes a message to a pipe.

    Raises:
      OSError: nobody reads it any more.
    """
    for part in (_SIZE.pack(len(message)), message):
        view = memoryview(part)
        while view:
            # The system takes no more than 2 GiB in one call.
            view = view[os.write(descriptor, view[: 1 << 30]) :]


def read_frame(descriptor: int) -> bytes | None:
    """The next message of a pipe; None if it ended."""
    size = _read(descriptor, _SIZE.size)
    return None if size is None else _read(descriptor, _SIZE.unpack(size)[0])


def _read(descriptor: int, size: int) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = os.readv(descriptor, [view])
        if not got:
            return None
        view = view[got:]
    return bytes(data)
