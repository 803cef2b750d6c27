"""Encodes and decodes dictionary keys that are not strings, for .jaxfn files."""

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
"""Maximum nesting depth of tuples in a key."""
_MAX_INTEGER_BYTES = 256
"""Maximum size of an integer key. Python can print such integers whatever its digit limit is."""

KeyKind: TypeAlias = int
"""Index into schema.KEY_KINDS."""


@dataclass(frozen=True)
class EncodedKey:
    """Dictionary key, encoded for a file.

    Attributes:
      kind: the kind, as an index into schema.KEY_KINDS.
      data: the bytes of a key that is not a tuple.
      items: the items of a tuple.
    """

    kind: KeyKind
    data: bytes = b""
    items: tuple[EncodedKey, ...] = ()


def encode_key(key: Hashable, depth: int = 1) -> EncodedKey | None:
    """Encodes a key for a file; None if a file cannot hold it.

    Files do not hold subclasses, since they would be read back as their base classes.
    """
    if key is None:
        return _make_encoded_key("none")
    kind = type(key)
    if kind is bool:
        return _make_encoded_key("boolean", bytes([bool(key)]))
    if isinstance(key, int) and kind is int:
        size = key.bit_length() // 8 + 1
        if size > _MAX_INTEGER_BYTES:
            return None
        return _make_encoded_key("integer", key.to_bytes(size, "little", signed=True))
    if isinstance(key, float) and kind is float:
        return _make_encoded_key("real", _REAL.pack(key))
    if isinstance(key, str) and kind is str:
        try:
            return _make_encoded_key("text", key.encode())
        except UnicodeEncodeError:  # a lone surrogate
            return None
    if isinstance(key, bytes) and kind is bytes:
        return _make_encoded_key("bytes", key)
    if isinstance(key, tuple) and kind is tuple and depth < _MAX_DEPTH:
        items = [encode_key(item, depth + 1) for item in key]
        complete = tuple(item for item in items if item is not None)
        if len(complete) == len(items):
            return EncodedKey(schema.KEY_KINDS.index("tuple"), b"", complete)
    return None


def _make_encoded_key(kind: str, data: bytes = b"") -> EncodedKey:
    return EncodedKey(schema.KEY_KINDS.index(kind), data)


def key_table(key: EncodedKey) -> Fields:
    """Makes the table of a key."""
    return {
        schema.Key.KIND: key.kind,
        schema.Key.DATA: key.data or None,
        schema.Key.ITEMS: list(map(key_table, key.items)),
    }


def unwritable_key_error(key: Hashable, place: str) -> SerializationError:
    """Returns the error for a key that a file cannot hold; `place` is the path to its dict."""
    try:
        shown = repr(key)
    except Exception as e:  # a custom __repr__ may raise anything; a long int raises ValueError
        shown = f"(its repr raises {type(e).__name__})"
    return SerializationError(
        f"{place} has the key {shown:.200} of type {type(key).__qualname__}. A file cannot hold "
        f"it. Use a str (in UTF-8), int (of up to {_MAX_INTEGER_BYTES} bytes), float, bool, None, "
        f"bytes, or a tuple of these (nested at most {_MAX_DEPTH} deep), and no subclass of them."
    )


def decode_key(table: Table, depth: int = 1) -> Hashable:
    """Reads the key in a table.

    Raises:
      FileFormatError: the table is damaged.
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
    # integers() charges the budget; a hostile file may refer to the same bytes a million times.
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
