"""Reads numbers and bytes from MLIR bytecode, with bounds checks."""

from __future__ import annotations

import struct
from typing import NoReturn

from jax2tf_bridge.errors import FileFormatError

# Size of a varint by its first byte, whose trailing zero bits count the bytes that follow.
VARINT_SIZES = bytes((first & -first).bit_length() if first else 9 for first in range(256))


_FLOATS = {16: ("<H", "<e"), 32: ("<I", "<f"), 64: ("<Q", "<d")}


def as_float(bits: int, width: int) -> float:
    """Returns the IEEE 754 float with these bits; `width` is 16, 32 or 64."""
    number, real = _FLOATS[width]
    value: float = struct.unpack(real, struct.pack(number, bits))[0]
    return value


class Cursor:
    """A position in one section, which advances as values are read.

    Attributes:
      data: the bytes that contain the section.
      at: the index of the next byte to read.
      end: the index of the first byte after the section.
      what: the name of the section, for messages.
      base: the offset of `data` in the module, for messages and alignment.
    """

    __slots__ = ("at", "base", "data", "end", "what")

    def __init__(
        self,
        data: bytes | memoryview,
        what: str,
        at: int = 0,
        end: int | None = None,
        base: int = 0,
    ) -> None:
        self.data, self.what, self.at, self.base = data, what, at, base
        self.end = len(data) if end is None else end

    def fail(self, problem: str) -> NoReturn:
        """Raises FileFormatError with the current position."""
        raise FileFormatError(
            f"The StableHLO module cannot be read: in {self.what}, at byte {self.base + self.at}, "
            f"{problem}. Write the file again; if it is whole, a newer jax2tf-bridge may read it."
        )

    @property
    def left(self) -> int:
        """The number of bytes left in the section."""
        return self.end - self.at

    def byte(self) -> int:
        """Reads the next byte."""
        if self.at >= self.end:
            self.fail("the data ends where a byte was expected")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        """Reads a variable-length integer: 1 to 9 bytes, at most 64 bits."""
        at = self.at
        if at >= self.end:
            self.fail("the data ends where a number was expected")
        first = self.data[at]
        if first & 1:
            self.at = at + 1
            return first >> 1
        size = VARINT_SIZES[first]
        if at + size > self.end:
            self.fail("the data ends within a number")
        self.at = at + size
        if size == 9:
            return int.from_bytes(self.data[at + 1 : at + 9], "little")
        return int.from_bytes(self.data[at : at + size], "little") >> size

    def signed_varint(self) -> int:
        """Reads a signed varint, whose lowest bit is the sign."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def bits(self, width: int) -> int:
        """Reads a number of `width` bits, at most 64, as an unsigned integer."""
        value = self.byte() if width <= 8 else self.signed_varint()
        return value & ((1 << width) - 1)

    def float64(self) -> float:
        """Reads a 64-bit float."""
        return as_float(self.bits(64), 64)

    def read_flagged(self) -> tuple[int, bool]:
        """Reads a varint; returns it without its lowest bit, and that bit as a flag."""
        value = self.varint()
        return value >> 1, bool(value & 1)

    def count(self, of: str, size: int = 1) -> int:
        """Reads the number of items that follow, of at least `size` bytes each."""
        value = self.varint()
        if value * size > self.left:
            self.fail(f"{value} {of} are announced, and {self.left} bytes are left")
        return value

    def index(self, of: str, length: int) -> int:
        """Reads an index into a table of `length` entries."""
        return self.checked_index(self.varint(), of, length)

    def checked_index(self, index: int, of: str, length: int) -> int:
        """Returns `index` if it is less than `length`; otherwise raises FileFormatError."""
        if index >= length:
            self.fail(f"{of} {index} is named, of {length}")
        return index

    def skip(self, size: int, of: str) -> int:
        """Skips `size` bytes; returns the position before them."""
        if size > self.left:
            self.fail(f"{of} of {size} bytes is announced, and {self.left} bytes are left")
        self.at += size
        return self.at - size

    def align(self, alignment: int) -> None:
        """Skips padding up to the next multiple of `alignment`."""
        if alignment < 1 or alignment & (alignment - 1):
            self.fail(f"the alignment {alignment} is no power of two")
        self.skip(-(self.base + self.at) % alignment, "padding")

    def split_off(self, size: int, what: str) -> Cursor:
        """Skips the next `size` bytes; returns a cursor over them."""
        start = self.skip(size, what)
        return Cursor(self.data, what, start, start + size, self.base)

    def check_finished(self) -> None:
        """Raises FileFormatError if bytes are left."""
        if self.left:
            self.fail(f"{self.left} bytes are left over")
