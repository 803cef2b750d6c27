"""Encodes dictionary keys that are no strings, for .jaxfn files."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.serialization._flatbuffer import Fields, Table
from jax2tf_bridge.serialization.jaxfn import _schema as schema

_REAL = struct.Struct("<d")
_MAX_DEPTH = 16
"""Of tuples in tuples."""
_MAX_INTEGER_BYTES = 256
"""Python prints integers of as many digits under all of its settings."""

KeyKind: TypeAlias = int
"""An index into schema.KEY_KINDS."""


@dataclass(frozen=True)
class EncodedKey:
    """Key as a file has it.

    Attributes:
      kind: by schema.KEY_KINDS.
      data: of all but tuples.
      items: of tuples.
    """

    kind: KeyKind
    data: bytes = b""
    items: tuple[EncodedKey, ...] = ()


def encode_key(key: Hashable, depth: int = 1) -> EncodedKey | None:
    """Encodes a key for a file; None if it is of a type that a file cannot hold.

    Subclasses are refused: they would be read as what they derive from.
    """
    if key is None:
        return _encoded("none")
    kind = type(key)
    if kind is bool:
        return _encoded("boolean", bytes([bool(key)]))
    if isinstance(key, int) and kind is int:
        size = key.bit_length() // 8 + 1
        if size > _MAX_INTEGER_BYTES:
            return None
        return _encoded("integer", key.to_bytes(size, "little", signed=True))
    if isinstance(key, float) and kind is float:
        return _encoded("real", _REAL.pack(key))
    if isinstance(key, str) and kind is str:
        try:
            return _encoded("text", key.encode())
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
    if isinstance(key, bytes) and kind is bytes:
        return _encoded("bytes", key)
    if isinstance(key, tuple) and kind is tuple and depth < _MAX_DEPTH:
        items = [encode_key(item, depth + 1) for item in key]
        complete = tuple(item for item in items if item is not None)
        if len(complete) == len(items):
            return EncodedKey(schema.KEY_KINDS.index("tuple"), b"", complete)
    return None


def _encoded(kind: str, data: bytes = b"") -> EncodedKey:
    return EncodedKey(schema.KEY_KINDS.index(kind), data)


def key_table(key: EncodedKey) -> Fields:
    """Makes the table of a key."""
    return {
        schema.Key.KIND: key.kind,
        schema.Key.DATA: key.data or None,
        schema.Key.ITEMS: list(map(key_table, key.items)),
    }


def unwritable_key(key: Hashable, place: str) -> SerializationError:
    """Returns the error for a key that a file cannot hold, at `place`."""
    try:
        shown = repr(key)
    except Exception as e:  # whatever the type's own method does, or an integer is too long
        shown = f"(its repr raises {type(e).__name__})"
    return SerializationError(
        f"{place} has the key {shown:.200} of type {type(key).__qualname__}. A file cannot hold "
        f"it. Use a str (in UTF-8), int (of up to {_MAX_INTEGER_BYTES} bytes), float, bool, None, "
        f"bytes, or a tuple of these (nested at most {_MAX_DEPTH} deep), and no subclass of them."
    )


def decode_key(table: Table, depth: int = 1) -> Hashable:
    """Reads the key in a table.

    Raises:
      FileFormatError: it is damaged.
    """
    number = table.integer(schema.Key.KIND)
    if number >= len(schema.KEY_KINDS):
        raise table.error(
            schema.Key.KIND, f"a kind of key below {len(schema.KEY_KINDS)}", f"{number}"
        )
    kind = schema.KEY_KINDS[number]
    if kind == "tuple":
        if depth >= _MAX_DEPTH:
            raise table.error(None, f"tuples nested at most {_MAX_DEPTH} deep", "more")
        return tuple(decode_key(item, depth + 1) for item in table.tables(schema.Key.ITEMS))
    # As integers, which count as read: a file may name the same bytes a million times.
    data = bytes(table.integers(schema.Key.DATA))
    if kind == "none":
        return None
    if kind == "bytes":
        return data
    if kind == "boolean" and data in (b"\0", b"\1"):
        return data == b"\1"
    if kind == "integer" and 0 < len(data) <= _MAX_INTEGER_BYTES:
        return int.from_bytes(data, "little", signed=True)
    if kind == "real" and len(data) == _REAL.size:
        return float(_REAL.unpack(data)[0])
    if kind == "text":
        try:
            return data.decode()
        except UnicodeDecodeError as e:
            raise table.error(schema.Key.DATA, "text in UTF-8", e.reason) from e
    raise table.error(schema.Key.DATA, f"the bytes of a key of kind {kind}", f"{data!r:.80}")
