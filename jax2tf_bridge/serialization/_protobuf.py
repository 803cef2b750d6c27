"""Reads and writes protocol buffers without a schema, with checks and bounds.

A SavedModel may come from an untrusted source, and neither TensorFlow nor protobuf need be
installed. Each length is compared with the available bytes before it is used. Nested messages are
views, so a byte is read at most once per level of nesting.
See https://protobuf.dev/programming-guides/encoding for the format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jax2tf_bridge.errors import FileFormatError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of fields; the obsolete groups do not occur in these files."""

_KINDS = ("a number", "8 bytes", "bytes", "", "", "4 bytes")
_MAX_VARINT_BYTES = 10
_new = tuple.__new__


class ProtoField(NamedTuple):
    """Field of a message, with its position.

    Attributes:
      number: the field number.
      kind: VARINT, FIXED64, BYTES or FIXED32.
      value: the value of a VARINT; the offset of the content for other kinds.
      start: the offset of the field.
      end: the offset after the field.
    """

    number: int
    kind: int
    value: int
    start: int
    end: int


class ProtoMessage:
    """Message within a file.

    Every method raises FileFormatError, and no other exception, for bytes that are not a message or
    not of the requested type.

    Attributes:
      data: all bytes of the file.
      start, end: the offsets of the message.
      place: the name of the message in errors.
      file: the file that the bytes come from.
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
        """Makes an error for a problem at the offset `at`."""
        name = f" {self.file}" if self.file else ""
        return FileFormatError(
            f"The file{name} cannot be read: in {self.place}, at byte {at}, {problem}. It is cut "
            "short, damaged, or of another format: copy or write it again.",
            file=self.file,
        )

    def fields(self) -> Iterator[ProtoField]:
        """Yields the fields in their order in the file."""
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
                if size < 0x80:  # most numbers are short
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
            # The constructor of ProtoField is slow, and there are many fields.
            yield _new(ProtoField, (number, kind, value, start, at))

    def varint(self, at: int, end: int | None = None) -> tuple[int, int]:
        """Reads the varint at an offset, and returns it with the offset after it.

        Args:
          at: the offset.
          end: the limit; by default the end of the message.
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
        """Returns the message in a field."""
        self._expect(field, BYTES)
        return ProtoMessage(self.data, place, self.file, field.value, field.end)

    def messages(self, number: int, place: str) -> Iterator[ProtoMessage]:
        """Yields the messages in the fields of a number."""
        return (self.message(field, place) for field in self.fields() if field.number == number)

    def content(self, field: ProtoField) -> bytes:
        """Copies the bytes of a field."""
        self._expect(field, BYTES)
        return self.data[field.value : field.end]

    def view(self, field: ProtoField) -> memoryview:
        """Returns a view of the bytes of a field, without a copy."""
        self._expect(field, BYTES)
        return memoryview(self.data)[field.value : field.end]

    def text(self, field: ProtoField) -> str:
        """Reads the text of a field; invalid UTF-8 is replaced."""
        return self.content(field).decode(errors="replace")

    def integer(self, field: ProtoField) -> int:
        """Reads the signed 64-bit integer of a field."""
        self._expect(field, VARINT)
        return to_signed(field.value)

    def integers(self, field: ProtoField) -> Iterator[int]:
        """Reads the signed integers of a field, packed or single."""
        if field.kind == VARINT:
            yield to_signed(field.value)
            return
        self._expect(field, BYTES)
        at = field.value
        while at < field.end:
            value, at = self.varint(at, field.end)
            yield to_signed(value)

    def fixed32(self, field: ProtoField) -> int:
        """Reads the unsigned integer of a 4-byte field."""
        self._expect(field, FIXED32)
        return int.from_bytes(self.data[field.value : field.end], "little")

    def last(self, number: int) -> ProtoField | None:
        """Returns the last field of a number, which takes precedence; None without one."""
        return self.last_fields().get(number)

    def last_fields(self) -> dict[int, ProtoField]:
        """Returns the last field of each number, which takes precedence."""
        return {field.number: field for field in self.fields()}

    def text_of(self, number: int) -> str:
        """Reads the text of a field; "" if it is missing."""
        field = self.last(number)
        return "" if field is None else self.text(field)

    def integer_of(self, number: int) -> int:
        """Reads the integer of a field; 0 if it is missing."""
        field = self.last(number)
        return 0 if field is None else self.integer(field)

    def entry(self, field: ProtoField, place: str) -> tuple[str, ProtoMessage]:
        """Reads the key and the message of a map entry."""
        entry = self.message(field, place)
        fields = entry.last_fields()
        key = entry.text(fields[1]) if 1 in fields else ""
        if 2 in fields:
            return key, entry.message(fields[2], place)
        return key, ProtoMessage(self.data, place, self.file, field.end, field.end)

    def _expect(self, field: ProtoField, kind: int) -> None:
        if field.kind != kind:
            raise self.error(
                field.start,
                f"field {field.number} holds {_KINDS[field.kind]} instead of {_KINDS[kind]}",
            )


def to_signed(value: int) -> int:
    """Interprets 64 bits as a signed integer.

    >>> to_signed(2**64 - 1)
    -1
    """
    return value - 2**64 if value >= 2**63 else value


def varint(value: int) -> bytes:
    """Encodes a varint; a negative number takes 10 bytes."""
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def tag(number: int, kind: int) -> bytes:
    """Encodes the tag of a field."""
    return varint(number << 3 | kind)


def bytes_field(number: int, content: bytes | str) -> bytes:
    """Encodes a field of bytes, text, or an encoded message."""
    data = content.encode() if isinstance(content, str) else content
    return tag(number, BYTES) + varint(len(data)) + data


def varint_field(number: int, value: int) -> bytes:
    """Encodes a field of an integer."""
    return tag(number, VARINT) + varint(value)
