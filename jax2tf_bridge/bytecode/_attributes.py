"""Reads attributes, either as far as a summary needs them or as Python values."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from jax2tf_bridge._dtypes import DTYPES_BY_ELEMENT_TYPE, find_dtype
from jax2tf_bridge.bytecode._layout import AttributeEntry, Cursor, Layout
from jax2tf_bridge.bytecode._program import (
    Attribute,
    DenseElements,
    OtherType,
    TensorType,
    Unsupported,
    ValueType,
)
from jax2tf_bridge.bytecode._types import Types, UnknownTypeError
from jax2tf_bridge.bytecode._vhlo import ENUMS

# Kinds of attributes, by dialect and code.
_STRINGS = frozenset({("builtin", 2), ("builtin", 3), ("vhlo", 14)})
_DICTIONARIES = frozenset({("builtin", 1), ("vhlo", 6)})
_TYPES = frozenset({("builtin", 6), ("vhlo", 17)})
_TENSOR = ("vhlo", 15)


@dataclass(frozen=True, slots=True)
class TensorData:
    """A constant's value: the index of its type, and its byte range in the section."""

    type: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class TypeReference:
    """An attribute that refers to a type by index."""

    type: int


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Pairs of a name and the index of an attribute."""

    entries: tuple[tuple[str, int], ...]


RawAttribute: TypeAlias = str | TensorData | TypeReference | Dictionary | None
"""An attribute of a kind that a summary needs, or None."""


class RawAttributes:
    """A table of attributes. References to attributes stay indices, so reading does not recurse."""

    def __init__(self, layout: Layout) -> None:
        self._table, self._strings = layout.attributes, layout.strings
        self._n_types = len(layout.types)
        self._known: dict[int, RawAttribute] = {}

    def read(self, index: int) -> RawAttribute:
        """Reads an attribute; returns None for kinds that a summary does not need.

        Raises:
          FileFormatError: the index is out of range, or the bytes are invalid for the kind.
        """
        if index not in self._known:
            self._known[index] = self._read(index)
        return self._known[index]

    def _read(self, index: int) -> RawAttribute:
        entry = self._table[index]
        kind, cursor = entry.kind, entry.cursor
        value: RawAttribute = None
        if kind in _STRINGS:
            return self.string(index)
        if kind == _TENSOR:
            type_index, size = cursor.index("type", self._n_types), cursor.count("bytes")
            value = TensorData(type_index, cursor.skip(size, "a tensor"), size)
        elif kind in _TYPES:
            value = TypeReference(cursor.index("type", self._n_types))
        elif kind in _DICTIONARIES:
            entries = []
            for _ in range(cursor.count("entries", 2)):
                name = self.string(cursor.varint())
                if name is None:
                    cursor.fail("a dictionary has a name that is not a string")
                entries.append((name, cursor.varint()))
            value = Dictionary(tuple(entries))
        else:
            return None
        cursor.check_finished()
        return value

    def string(self, index: int) -> str | None:
        """Reads a string attribute without following references; None if it is not a string."""
        # A dictionary may refer to itself, so this does not call `read`.
        entry = self._table[index]
        return self._strings[entry.cursor.varint()] if entry.kind in _STRINGS else None


_MAX_DEPTH = 50

_ARRAYS = frozenset({("builtin", 0), ("vhlo", 1)})
_SYMBOL, _UNIT = ("builtin", 4), ("builtin", 7)
_BOOLEAN, _FLOAT, _INTEGER = ("vhlo", 2), ("vhlo", 8), ("vhlo", 9)
_ALIAS, _BOUNDS, _ACCURACY = ("vhlo", 10), ("vhlo", 18), ("vhlo", 20)
_BUILTIN_INTEGER = ("builtin", 8)
_BUILTIN_INTEGER_TYPE, _BUILTIN_INDEX_TYPE = ("builtin", 0), ("builtin", 1)


class Attributes:
    """A table of attributes as Python values: numbers, strings, tensors, lists and dictionaries.

    The size of each value is limited, because attributes may share parts, so that a small table
    could expand to endless values.
    """

    def __init__(self, layout: Layout, raw: RawAttributes) -> None:
        self._table, self._type_table = layout.attributes, layout.types
        self._raw, self._types = raw, Types(layout, layout.max_characters)
        self._max_size = layout.max_characters
        self._known: dict[int, tuple[Attribute, int]] = {}

    def read(self, index: int) -> Attribute:
        """Reads an attribute.

        Raises:
          FileFormatError: the index is out of range, or the bytes are invalid for the kind.
        """
        return self._read(index, 0)[0]

    def type(self, index: int) -> ValueType:
        """Reads a type; an unknown type becomes an OtherType with a description.

        Raises:
          FileFormatError: the index is out of range, or the bytes are invalid for the kind.
        """
        try:
            return self._types.value(index)
        except UnknownTypeError as e:
            return OtherType(str(e))

    def _read(self, index: int, depth: int) -> tuple[Attribute, int]:
        """Reads an attribute; returns it with its expanded size."""
        weighted = self._known.get(index)
        if weighted is None:
            entry = self._table[index]
            if depth > _MAX_DEPTH:
                entry.cursor.fail(f"attributes are nested more than {_MAX_DEPTH} deep")
            weighted = self._known[index] = self._read_value(index, entry, depth)
            if weighted[1] > self._max_size:
                entry.cursor.fail(
                    "an attribute expands to more than a module of this size may hold"
                )
        return weighted

    def _read_value(self, index: int, entry: AttributeEntry, depth: int) -> tuple[Attribute, int]:
        raw = self._raw.read(index)
        if isinstance(raw, str):
            return raw, 1 + len(raw)
        if isinstance(raw, TensorData):
            return self._read_tensor(entry, raw), 1
        if isinstance(raw, TypeReference):
            kind = self.type(raw.type)
            size = len(kind.shape) if isinstance(kind, TensorType) else len(kind.text)
            return kind, 1 + size
        if isinstance(raw, Dictionary):
            items = [(name, self._read(i, depth + 1)) for name, i in raw.entries]
            weight = sum(1 + len(name) + inner for name, (_, inner) in items)
            return MappingProxyType({name: value for name, (value, _) in items}), weight
        cursor = entry.cursor
        if entry.kind in _ARRAYS:
            indices = [cursor.varint() for _ in range(cursor.count("attributes"))]
            cursor.check_finished()
            values = [self._read(i, depth + 1) for i in indices]
            return tuple(value for value, _ in values), sum(1 + inner for _, inner in values)
        value = self._read_simple(entry)
        if not isinstance(value, Unsupported):
            cursor.check_finished()
        return value, 20

    def _read_simple(self, entry: AttributeEntry) -> Attribute:
        kind, cursor = entry.kind, entry.cursor
        if kind in ENUMS:
            number = cursor.varint()
            name = ENUMS[kind].get(number)
            return name or Unsupported(f"variant {number} of attribute {entry.code} of vhlo")
        if kind == _BOOLEAN:
            return bool(cursor.varint())
        if kind == _INTEGER:
            return self._read_integer(cursor)
        if kind == _FLOAT:
            return self._read_float(cursor)
        if kind == _ACCURACY:
            return self._read_accuracy(cursor)
        if kind == _ALIAS:
            outputs, operand = _read_numbers(cursor), cursor.signed_varint()
            return MappingProxyType(
                {
                    "output_tuple_indices": outputs,
                    "operand_index": operand,
                    "operand_tuple_indices": _read_numbers(cursor),
                }
            )
        if kind == _BOUNDS:
            return _read_numbers(cursor)
        if kind == _SYMBOL:
            text = self._raw.read(cursor.varint())
            return text if isinstance(text, str) else Unsupported("a symbol that is not a string")
        if kind == _UNIT:
            return True
        if kind == _BUILTIN_INTEGER:
            return self._read_builtin_integer(cursor)
        return Unsupported(f"attribute {entry.code} of {entry.dialect}")

    def _read_tensor(self, entry: AttributeEntry, tensor: TensorData) -> Attribute:
        kind = self.type(tensor.type)
        if not isinstance(kind, TensorType):
            return Unsupported(f"a constant of type {kind}")
        data = memoryview(entry.cursor.data)[tensor.start : tensor.start + tensor.size]
        return DenseElements(kind, data)

    def _read_integer(self, cursor: Cursor) -> Attribute:
        element = str(self.type(cursor.varint()))
        if element == "index":
            return cursor.signed_varint()
        row = find_dtype(DTYPES_BY_ELEMENT_TYPE.get(element, ""))
        if row is None or not row.is_integer:
            return Unsupported(f"an integer of type {element}")
        return cursor.integer(row.bits, signed=row.kind == "int")

    def _read_builtin_integer(self, cursor: Cursor) -> Attribute:
        kind = self._type_table[cursor.varint()]
        if kind.kind == _BUILTIN_INDEX_TYPE:
            return cursor.signed_varint()
        if kind.kind != _BUILTIN_INTEGER_TYPE:
            return Unsupported(f"an integer of type {kind.code} of {kind.dialect}")
        width = kind.cursor.varint()
        bits, unsigned = width >> 2, width & 3 == 2
        if not 0 < bits <= 64:
            return Unsupported(f"an integer of {bits} bits")
        return bool(cursor.bits(1)) if bits == 1 else cursor.integer(bits, signed=not unsigned)

    def _read_float(self, cursor: Cursor) -> Attribute:
        element = str(self.type(cursor.varint()))
        row = find_dtype(DTYPES_BY_ELEMENT_TYPE.get(element, ""))
        if row is None or row.kind != "float":
            return Unsupported(f"a number of type {element}")
        import numpy as np

        bits = np.array([cursor.bits(row.bits)], f"u{-(-row.bits // 8)}")
        return float(bits.view(row.numpy())[0])

    def _read_accuracy(self, cursor: Cursor) -> Attribute:
        atol, rtol = cursor.float64(), cursor.float64()
        ulps = cursor.signed_varint()
        entry = self._table[cursor.varint()]
        if entry.kind == _ACCURACY:
            cursor.fail("the mode of an accuracy is an accuracy")
        mode = self._read_simple(entry)
        return MappingProxyType({"atol": atol, "rtol": rtol, "ulps": ulps, "mode": mode})


def _read_numbers(cursor: Cursor) -> tuple[int, ...]:
    return tuple(cursor.signed_varint() for _ in range(cursor.count("numbers")))
