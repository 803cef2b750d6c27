"""Encodes pytree structures and dictionary keys as vectors of numbers, for .jaxfn files."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType, NoneType
from typing import Any, TypeAlias

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable import LEAF, NodeCodec, TreeSpec
from jax2tf_bridge.serialization._flatbuffer import MAX_DEPTH, Fields, FlatBufferTable
from jax2tf_bridge.serialization._node_data import read_definition, write_definition
from jax2tf_bridge.serialization._stored_types import StoredNames, make_fitting_codec
from jax2tf_bridge.serialization.jaxfn import _format
from jax2tf_bridge.serialization.jaxfn._format import (
    FileRecord,
    KeyRecord,
    NodeTypeRecord,
    TreesRecord,
)
from jax2tf_bridge.serialization.jaxfn._pools import Pool, look_up, look_up_optional, optional_bytes

_NONE = TreeSpec("none")
_KINDS_WITH_KEYS = (_format.DICT, _format.NAMEDTUPLE, _format.NAMED_CUSTOM)
_KINDS_WITH_TYPE = (_format.NAMEDTUPLE, _format.CUSTOM, _format.NAMED_CUSTOM)


@dataclass(frozen=True)
class StructureName:
    """Name of a structure for messages.

    Attributes:
      text: the name, such as "the result".
      argument_names: the names of the positional arguments, if the structure is (args, kwargs).
    """

    text: str
    argument_names: tuple[str, ...] | None = None


# Path to a node: the path to its parent, the parent, and the index among its children. It is only
# formatted for errors, since that is slow.
_Place: TypeAlias = "tuple[_Place, TreeSpec, int] | StructureName"


@dataclass(frozen=True)
class EncodedType:
    name: str
    serialized_name: str
    auxdata: bytes | None


class TreeWriter:
    """Encoder of the structures of one file. It pools the keys, types and texts that they share."""

    def __init__(self, texts: Pool[str]) -> None:
        self._kinds = bytearray()
        self._counts: list[int] = []
        self._key_indices: list[int] = []
        self._type_indices: list[int] = []
        self._texts = texts
        self._keys = Pool[EncodedKey]()
        self._types = Pool[EncodedType]()
        self._names = StoredNames()

    def make_table(self) -> Fields:
        return {
            TreesRecord.KINDS: self._kinds,
            TreesRecord.COUNTS: self._counts,
            TreesRecord.KEYS: self._key_indices,
            TreesRecord.TYPES: self._type_indices,
        }

    def make_key_tables(self) -> list[Fields]:
        return list(map(_make_key_table, self._keys.values()))

    def make_type_tables(self) -> list[Fields]:
        return [
            {
                NodeTypeRecord.NAME: self._texts.index(node_type.name),
                NodeTypeRecord.SERIALIZED_NAME: self._texts.optional_index(
                    node_type.serialized_name or None
                ),
                NodeTypeRecord.AUXDATA: node_type.auxdata,
            }
            for node_type in self._types.values()
        ]

    def add(self, spec: TreeSpec, root: StructureName) -> int:
        """Encodes a structure after the others; returns the number of its leaves.

        Raises:
          SerializationError: a file cannot hold a key of the structure or its depth, or the
            structure is invalid.
        """
        kinds = self._kinds
        start = len(kinds)
        pending: list[tuple[TreeSpec, _Place, int]] = [(spec, root, 1)]
        while pending:
            node, where, depth = pending.pop()
            if node.kind == "leaf":
                kinds.append(_format.LEAF)
            elif node.kind == "none":
                kinds.append(_format.NONE)
            elif depth > MAX_DEPTH:
                raise SerializationError(
                    f"{root.text} has containers nested more than {MAX_DEPTH} deep, which is the "
                    "maximum in a file."
                )
            else:
                self._add_container(node, where)
                # Reversed, so that the first child is popped next.
                for i in range(len(node.children) - 1, -1, -1):
                    pending.append((node.children[i], (where, node, i), depth + 1))
        return kinds.count(_format.LEAF, start)

    def _add_container(self, node: TreeSpec, where: _Place) -> None:
        kind = _format.NODE_KINDS.index(node.kind)
        if kind == _format.CUSTOM and node.keys:
            kind = _format.NAMED_CUSTOM
        key_count = len(node.children) if kind in _KINDS_WITH_KEYS else 0
        if len(node.keys) != key_count or len(set(node.keys)) != key_count:
            raise SerializationError(
                f"{_format_path(where)} is not a valid structure: its {node.kind} has "
                f"{len(node.children)} children and the keys {node.keys!r:.200}."
            )
        self._kinds.append(kind)
        self._counts.append(len(node.children))
        self._key_indices += [self._add_key(key, where) for key in node.keys]
        if kind in _KINDS_WITH_TYPE:
            self._type_indices.append(self._add_type(node, where))

    def _add_key(self, key: Hashable, where: _Place) -> int:
        encoded_key = _encode_key(key)
        if encoded_key is None:
            raise _make_key_error(key, _format_path(where))
        if isinstance(key, str):
            return self._texts.index(key)
        return _format.KEY_INDEX_FLAG | self._keys.index(encoded_key)

    def _add_type(self, node: TreeSpec, where: _Place) -> int:
        try:
            return self._types.index(_make_encoded_type(self._names.add_stored_type(node)))
        except SerializationError as e:
            raise SerializationError(f"{_format_path(where)}: {e}") from e


def _make_encoded_type(node: TreeSpec) -> EncodedType:
    stored_type = node.stored_type
    if node.serialized_name or stored_type is None:
        return EncodedType(node.name, node.serialized_name, node.auxdata)
    if stored_type.is_registered:
        return EncodedType(node.name, stored_type.name, stored_type.auxdata)
    return EncodedType(node.name, "", write_definition(stored_type))


def _format_path(where: _Place) -> str:
    ancestors: list[tuple[TreeSpec, int]] = []
    while not isinstance(where, StructureName):
        where, node, i = where
        ancestors.insert(0, (node, i))
    steps = [_format_step(node, i) for node, i in ancestors]
    if where.argument_names is not None and len(ancestors) > 1:
        (_, args_or_kwargs), (node, i) = ancestors[:2]
        name = str(node.keys[i]) if args_or_kwargs else where.argument_names[i]
        return name + "".join(steps[2:])
    return where.text + "".join(steps)


def _format_step(node: TreeSpec, i: int) -> str:
    if node.kind == "dict":
        return f"[{node.keys[i]!r:.80}]"
    return f".{node.keys[i]}" if node.keys else f"[{i}]"


class TreeReader:
    def __init__(self, file: FlatBufferTable, texts: Sequence[str]) -> None:
        """Reads the keys and types that the structures share; `file` is the root table."""
        self._texts = texts
        self._keys = [_decode_key(table) for table in file.tables(FileRecord.KEYS)]
        self._types = [
            _read_node_type(table, texts) for table in file.tables(FileRecord.NODE_TYPES)
        ]
        self._codecs: dict[tuple[Hashable, ...], NodeCodec | None] = {}

    def decode(self, table: FlatBufferTable) -> list[TreeSpec]:
        kinds = table.integers(TreesRecord.KINDS)
        counts = list(table.integers(TreesRecord.COUNTS))
        keys = list(table.integers(TreesRecord.KEYS))
        types = list(table.integers(TreesRecord.TYPES))
        _check_depth(kinds, counts, table)
        # Decode from the last node to the first, so that the children of a node come before it.
        # They are then at the end of `specs`, with the first child last.
        specs: list[TreeSpec] = []
        for kind in reversed(kinds):
            if kind == _format.LEAF:
                specs.append(LEAF)
                continue
            if kind == _format.NONE:
                specs.append(_NONE)
                continue
            if kind >= len(_format.NODE_KINDS):
                raise table.error(
                    TreesRecord.KINDS, f"kinds below {len(_format.NODE_KINDS)}", f"{kind}"
                )
            if not counts or counts[-1] > len(specs):
                raise table.error(TreesRecord.COUNTS, "each node's number of children", "others")
            count = counts.pop()
            first = len(specs) - count
            children = tuple(specs[: first - 1 if first else None : -1])
            del specs[first:]
            names = self._pop_keys(keys, count, table) if kind in _KINDS_WITH_KEYS else ()
            spec = TreeSpec(_format.NODE_KINDS[kind], "", names, children)
            specs.append(self._add_type(spec, types, table) if kind in _KINDS_WITH_TYPE else spec)
        if counts or keys or types:
            raise table.error(None, "only the counts, keys and types of the nodes", "more")
        return specs[::-1]

    def _pop_keys(
        self, indices: list[int], count: int, table: FlatBufferTable
    ) -> tuple[Hashable, ...]:
        """Removes the last `count` indices and returns the keys at them."""
        first = len(indices) - count
        if first < 0:
            raise table.error(TreesRecord.KEYS, "a key for each child", f"{-first} too few")
        flag, keys = _format.KEY_INDEX_FLAG, []
        for index in indices[first:]:
            pool: Sequence[Hashable] = self._keys if index & flag else self._texts
            if index & ~flag >= len(pool):
                raise table.error(
                    TreesRecord.KEYS, f"indices below {len(pool)}", f"{index & ~flag}"
                )
            keys.append(pool[index & ~flag])
        del indices[first:]
        if len(set(keys)) != count:
            raise table.error(TreesRecord.KEYS, "keys that differ", f"{keys!r:.200}")
        return tuple(keys)

    def _add_type(self, spec: TreeSpec, indices: list[int], table: FlatBufferTable) -> TreeSpec:
        index = indices.pop() if indices else len(self._types)
        if index >= len(self._types):
            raise table.error(TreesRecord.TYPES, f"indices below {len(self._types)}", f"{index}")
        if spec.kind == "namedtuple" and not all(isinstance(key, str) for key in spec.keys):
            raise table.error(TreesRecord.KEYS, "a named tuple's fields", f"{spec.keys!r:.200}")
        node_type = self._types[index]
        # For a type that was not registered, auxdata holds its qualified name and static data.
        definition = None if node_type.serialized_name else read_definition(node_type.auxdata)
        typed_spec = replace(
            spec,
            name=node_type.name,
            serialized_name=node_type.serialized_name,
            auxdata=node_type.auxdata if definition is None else None,
            stored_type=definition,
        )
        key = (node_type, spec.kind, spec.keys, len(spec.children))
        if key not in self._codecs:
            self._codecs[key] = make_fitting_codec(typed_spec)
        return replace(typed_spec, codec=self._codecs[key])


def _check_depth(kinds: Sequence[int], counts: Sequence[int], table: FlatBufferTable) -> None:
    if len(counts) <= MAX_DEPTH:
        return
    remaining: list[int] = []
    child_counts = iter(counts)
    for kind in kinds:
        while remaining and not remaining[-1]:
            remaining.pop()
        if remaining:
            remaining[-1] -= 1
        if kind > _format.NONE:
            remaining.append(next(child_counts, 0))
            if len(remaining) > MAX_DEPTH:
                raise table.error(None, f"containers nested at most {MAX_DEPTH} deep", "more")


def _read_node_type(table: FlatBufferTable, texts: Sequence[str]) -> EncodedType:
    return EncodedType(
        look_up(table, NodeTypeRecord.NAME, texts),
        look_up_optional(table, NodeTypeRecord.SERIALIZED_NAME, texts) or "",
        optional_bytes(table, NodeTypeRecord.AUXDATA),
    )


_REAL = struct.Struct("<d")
_MAX_DEPTH = 16
"""Maximum nesting depth of tuples in a key."""
_MAX_INTEGER_BYTES = 256
"""Maximum size of an integer key. Python can print such integers whatever its digit limit is."""

_KEY_ENCODINGS: Mapping[type, tuple[str, Callable[[Any], bytes]]] = MappingProxyType(
    {
        NoneType: ("none", lambda key: b""),
        bool: ("boolean", lambda key: bytes([key])),
        int: (
            "integer",
            lambda key: key.to_bytes(key.bit_length() // 8 + 1, "little", signed=True),
        ),
        float: ("real", _REAL.pack),
        str: ("text", str.encode),
        bytes: ("bytes", bytes),
    }
)
"""Maps the type of a key that is not a tuple to its kind, and to the function that encodes it."""


@dataclass(frozen=True)
class EncodedKey:
    """Dictionary key, encoded for a file.

    Attributes:
      kind: the kind, as an index into _format.KEY_KINDS.
      data: the bytes of a key that is not a tuple.
      items: the items of a tuple.
    """

    kind: int
    data: bytes = b""
    items: tuple[EncodedKey, ...] = ()


def _encode_key(key: Hashable, depth: int = 1) -> EncodedKey | None:
    """Encodes a key for a file; None if a file cannot hold it.

    Files do not hold subclasses, since they would be read back as their base classes.
    """
    if isinstance(key, tuple) and type(key) is tuple and depth < _MAX_DEPTH:
        items = [_encode_key(item, depth + 1) for item in key]
        complete = tuple(item for item in items if item is not None)
        if len(complete) == len(items):
            return EncodedKey(_format.KEY_KINDS.index("tuple"), b"", complete)
    encoding = _KEY_ENCODINGS.get(type(key))
    if encoding is None:
        return None
    kind, encode = encoding
    try:
        data = encode(key)
    except UnicodeEncodeError:  # a lone surrogate
        return None
    if kind == "integer" and len(data) > _MAX_INTEGER_BYTES:
        return None
    return EncodedKey(_format.KEY_KINDS.index(kind), data)


def _make_key_table(key: EncodedKey) -> Fields:
    return {
        KeyRecord.KIND: key.kind,
        KeyRecord.DATA: key.data or None,
        KeyRecord.ITEMS: list(map(_make_key_table, key.items)),
    }


def _make_key_error(key: Hashable, place: str) -> SerializationError:
    """Returns the error for a key that a file cannot hold; `place` is the path to its dict."""
    try:
        key_text = repr(key)
    except Exception as e:  # a custom __repr__ may raise anything; a long int raises ValueError
        key_text = f"(its repr raises {type(e).__name__})"
    return SerializationError(
        f"{place} has the key {key_text:.200} of type {type(key).__qualname__}. A file cannot hold "
        f"it. Use a str (in UTF-8), int (of up to {_MAX_INTEGER_BYTES} bytes), float, bool, None, "
        f"bytes, or a tuple of these (nested at most {_MAX_DEPTH} deep), and no subclass of them."
    )


def _decode_key(table: FlatBufferTable, depth: int = 1) -> Hashable:
    number = table.integer(KeyRecord.KIND)
    if number >= len(_format.KEY_KINDS):
        raise table.error(
            KeyRecord.KIND, f"a kind of key below {len(_format.KEY_KINDS)}", f"{number}"
        )
    kind = _format.KEY_KINDS[number]
    if kind == "tuple":
        if depth >= _MAX_DEPTH:
            raise table.error(None, f"tuples nested at most {_MAX_DEPTH} deep", "more")
        return tuple(_decode_key(item, depth + 1) for item in table.tables(KeyRecord.ITEMS))
    data = optional_bytes(table, KeyRecord.DATA) or b""
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
            raise table.error(KeyRecord.DATA, "text in UTF-8", e.reason) from e
    raise table.error(KeyRecord.DATA, f"the bytes of a key of kind {kind}", f"{data!r:.80}")
