"""Reads numbers and bytes from MLIR bytecode, never past the end."""

from __future__ import annotations

import struct
from typing import NoReturn

from jax2tf_bridge.errors import FileFormatError

# How many bytes a varint takes, by its first byte: the trailing zero bits count the bytes to come.
VARINT_SIZES = bytes((first & -first).bit_length() if first else 9 for first in range(256))


_FLOATS = {16: ("<H", "<e"), 32: ("<I", "<f"), 64: ("<Q", "<d")}


def as_float(bits: int, width: int) -> float:
    """Returns the float of IEEE 754 that has these bits, of which there are 16, 32 or 64."""
    number, real = _FLOATS[width]
    value: float = struct.unpack(real, struct.pack(number, bits))[0]
    return value


class Cursor:
    """A place in one section; it moves forward as values are read.

    Attributes:
      data: all bytes in which the section lies.
      at: the next byte to be read.
      end: the first byte after the section.
      what: what is read, for messages.
      base: where `data` begins in the module, for messages and alignment.
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
        """Raises the error of this place."""
        raise FileFormatError(
            f"The StableHLO module cannot be read: in {self.what}, at byte {self.base + self.at}, "
            f"{problem}. Write the file again; if it is whole, a newer jax2tf-bridge may read it."
        )

    @property
    def left(self) -> int:
        """Counts the bytes that are left in the section."""
        return self.end - self.at

    def byte(self) -> int:
        """Reads the next byte."""
        if self.at >= self.end:
            self.fail("the data ends where a byte was expected")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        """Reads the next number: 1 to 9 bytes, of 64 bits at most."""
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
        """Reads the next signed number, of which the lowest bit is the sign."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def bits(self, width: int) -> int:
        """Reads a number of known width, of 64 bits at most, as one without a sign."""
        value = self.byte() if width <= 8 else self.signed_varint()
        return value & ((1 << width) - 1)

    def float64(self) -> float:
        """Reads a float of 64 bits."""
        return as_float(self.bits(64), 64)

    def flagged(self) -> tuple[int, bool]:
        """Reads the next number: without its lowest bit, and that bit."""
        value = self.varint()
        return value >> 1, bool(value & 1)

    def count(self, of: str, size: int = 1) -> int:
        """Reads how many things of `size` bytes or more follow."""
        value = self.varint()
        if value * size > self.left:
            self.fail(f"{value} {of} are announced, and {self.left} bytes are left")
        return value

    def index(self, of: str, length: int) -> int:
        """Reads an index into a table of `length` entries."""
        return self.checked_index(self.varint(), of, length)

    def checked_index(self, index: int, of: str, length: int) -> int:
        """Gives `index` back, if a table of `length` entries has it."""
        if index >= length:
            self.fail(f"{of} {index} is named, of {length}")
        return index

    def skip(self, size: int, of: str) -> int:
        """Passes over `size` bytes; gives where they began."""
        if size > self.left:
            self.fail(f"{of} of {size} bytes is announced, and {self.left} bytes are left")
        self.at += size
        return self.at - size

    def align(self, alignment: int) -> None:
        """Passes over the padding up to the next multiple of `alignment`."""
        if alignment < 1 or alignment & (alignment - 1):
            self.fail(f"the alignment {alignment} is no power of two")
        self.skip(-(self.base + self.at) % alignment, "padding")

    def part(self, size: int, what: str) -> Cursor:
        """Passes over the next `size` bytes, and gives a cursor over them."""
        start = self.skip(size, what)
        return Cursor(self.data, what, start, start + size, self.base)

    def finished(self) -> None:
        """Raises if bytes are left."""
        if self.left:
            self.fail(f"{self.left} bytes are left over")
