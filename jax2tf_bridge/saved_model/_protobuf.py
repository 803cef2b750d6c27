"""Reads and writes protocol buffers: checked and bounded, without a schema.

A SavedModel may come from anywhere, and neither TensorFlow nor protobuf need be installed: so each
length is compared with the bytes that are there before it is followed. Messages lie within one
another, so that no byte is read more often than it is nested in what is asked for.
https://protobuf.dev/programming-guides/encoding describes the format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jax2tf_bridge.errors import FileFormatError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of fields; no file that is read here has groups, which are older."""

_KINDS = ("a number", "8 bytes", "bytes", "", "", "4 bytes")
_MAX_VARINT_BYTES = 10
_new = tuple.__new__


class ProtoField(NamedTuple):
    """A field of a message, where it stands.

    Attributes:
      number: which field of the message.
      kind: VARINT, FIXED64, BYTES or FIXED32.
      value: of a VARINT; of others where the content begins.
      start: the field's first byte.
      end: the first byte after it.
    """

    number: int
    kind: int
    value: int
    start: int
    end: int


class ProtoMessage:
    """A message within a file.

    Every method raises FileFormatError for bytes that are no message, or hold something else than
    what is asked for; and no other exception, whatever the bytes.

    Attributes:
      data: all bytes of the file.
      start, end: where the message lies in them.
      place: how messages of errors call it.
      file: where the bytes were read from.
    """

    __slots__ = ("data", "end", "file", "place", "start")

    def __init__(
        self,
        data: bytes,
        place: str,
        file: str | None = None,
        start: int = 0,
        end: int | None = None,
    ) -> None:
        self.data, self.place, self.file = data, place, file
        self.start, self.end = start, len(data) if end is None else end

    def __len__(self) -> int:
        return self.end - self.start

    def error(self, at: int, problem: str) -> FileFormatError:
        """Makes the error for a problem at the byte `at`."""
        name = f" {self.file}" if self.file else ""
        return FileFormatError(
            f"The file{name} cannot be read: in {self.place}, at byte {at}, {problem}. It is cut "
            "short, damaged, or of another format: copy or write it again.",
            file=self.file,
        )

    def fields(self) -> Iterator[ProtoField]:
        """Yields the fields in the order in which they stand."""
        data, at, end = self.data, self.start, self.end
        while at < end:
            start = at
            tag = data[at]
            if tag < 0x80:
                at += 1
            else:
                tag, at = self.varint(at)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise self.error(start, "a field has the number 0")
            if kind == BYTES:
                size = data[at] if at < end else 0x80
                if size < 0x80:  # most are short
                    at += 1
                else:
                    size, at = self.varint(at)
                if size > end - at:
                    raise self.error(
                        start, f"a field of {size} bytes is announced, and {end - at} are left"
                    )
                value, at = at, at + size
            elif kind == VARINT:
                value, at = self.varint(at)
            elif kind in (FIXED64, FIXED32):
                value, at = at, at + (8 if kind == FIXED64 else 4)
                if at > end:
                    raise self.error(start, "the data ends within a number")
            else:
                raise self.error(start, f"a field is of the kind {kind}, which is not used")
            # Field's own constructor is slow, and there are many fields.
            yield _new(ProtoField, (number, kind, value, start, at))

    def varint(self, at: int, end: int | None = None) -> tuple[int, int]:
        """Reads the number that begins at a byte, and returns where the next byte is.

        Args:
          at: the first byte.
          end: where the number has to end; without it, with the message.
        """
        data, end = self.data, self.end if end is None else end
        value = shift = 0
        for _ in range(_MAX_VARINT_BYTES):
            if at >= end:
                raise self.error(at, "the data ends within a number")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (2**64 - 1), at
            shift += 7
        raise self.error(at, "a number is longer than 64 bits")

    def message(self, field: ProtoField, place: str) -> ProtoMessage:
        """Returns the message that a field holds."""
        self._expect(field, BYTES)
        return ProtoMessage(self.data, place, self.file, field.value, field.end)

    def messages(self, number: int, place: str) -> Iterator[ProtoMessage]:
        """Yields the messages in the fields of a number."""
        return (self.message(field, place) for field in self.fields() if field.number == number)

    def content(self, field: ProtoField) -> bytes:
        """Copies the bytes that a field holds."""
        self._expect(field, BYTES)
        return self.data[field.value : field.end]

    def view(self, field: ProtoField) -> memoryview:
        """Returns the bytes that a field holds, where they are: nothing is copied."""
        self._expect(field, BYTES)
        return memoryview(self.data)[field.value : field.end]

    def text(self, field: ProtoField) -> str:
        """Reads the text that a field holds; bytes that are no text are replaced."""
        return self.content(field).decode(errors="replace")

    def integer(self, field: ProtoField) -> int:
        """Reads the signed number of 64 bits that a field holds."""
        self._expect(field, VARINT)
        return signed(field.value)

    def integers(self, field: ProtoField) -> Iterator[int]:
        """Reads the signed numbers that a field holds, packed or alone."""
        if field.kind == VARINT:
            yield signed(field.value)
            return
        self._expect(field, BYTES)
        at = field.value
        while at < field.end:
            value, at = self.varint(at, field.end)
            yield signed(value)

    def fixed32(self, field: ProtoField) -> int:
        """Reads the number without a sign that a field of 4 bytes holds."""
        self._expect(field, FIXED32)
        return int.from_bytes(self.data[field.value : field.end], "little")

    def last(self, number: int) -> ProtoField | None:
        """Finds the last field of a number, which is the one that counts."""
        found = None
        for field in self.fields():
            if field.number == number:
                found = field
        return found

    def text_of(self, number: int) -> str:
        """Reads the text of a field; "" if there is none."""
        field = self.last(number)
        return "" if field is None else self.text(field)

    def integer_of(self, number: int) -> int:
        """Reads the number of a field; 0 if there is none."""
        field = self.last(number)
        return 0 if field is None else self.integer(field)

    def entry(self, field: ProtoField, place: str) -> tuple[str, ProtoMessage]:
        """Reads the key and the value of a field that is an entry of a map to messages."""
        entry = self.message(field, place)
        key = ""
        value: ProtoMessage | None = None
        for part in entry.fields():
            if part.number == 1:
                key = entry.text(part)
            elif part.number == 2:
                value = entry.message(part, place)
        if value is None:
            value = ProtoMessage(self.data, place, self.file, field.end, field.end)
        return key, value

    def _expect(self, field: ProtoField, kind: int) -> None:
        if field.kind != kind:
            raise self.error(
                field.start,
                f"field {field.number} holds {_KINDS[field.kind]} instead of {_KINDS[kind]}",
            )


def signed(value: int) -> int:
    """Reads 64 bits as a signed number.

    >>> signed(2**64 - 1)
    -1
    """
    return value - 2**64 if value >= 2**63 else value


def varint(value: int) -> bytes:
    """Writes a number; a negative one takes 10 bytes."""
    value &= 2**64 - 1
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def tag(number: int, kind: int) -> bytes:
    """Writes what stands before a field's content."""
    return varint(number << 3 | kind)


def bytes_field(number: int, content: bytes | str) -> bytes:
    """Writes a field of bytes, text, or a message that is written already."""
    data = content.encode() if isinstance(content, str) else content
    return tag(number, BYTES) + varint(len(data)) + data


def varint_field(number: int, value: int) -> bytes:
    """Writes a field of a number."""
    return tag(number, VARINT) + varint(value)
