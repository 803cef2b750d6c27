"""Reads types from bytecode, as the text that StableHLO prints."""

from __future__ import annotations

from jax2tf_bridge._dtypes import ALL_DTYPES
from jax2tf_bridge.bytecode._layout import Cursor, Layout
from jax2tf_bridge.bytecode._program import OtherType, TensorType, ValueType

_DYNAMIC = -(1 << 63)
_MAX_DEPTH = 50

# VHLO's types by code; types without parameters map to their names.
_NAMES = {
    **{
        row.vhlo: row.element_type
        for row in ALL_DTYPES
        if row.vhlo is not None and row.element_type
    },
    **{9: "index", 22: "!stablehlo.token", 26: "!shape.witness", 33: "none", 34: "tf32"},
}
_COMPLEX, _FUNCTION, _TENSOR, _BOUNDED_TENSOR = 1, 8, 20, 21
_TUPLE, _UNRANKED_TENSOR, _BUFFER, _FUTURE = 23, 25, 41, 42
_QUANTIZED, _QUANTIZED_PER_AXIS = 24, 30
_BOUNDS = ("vhlo", 18)


class UnknownTypeError(Exception):
    """An unknown type, described by the text."""


class Types:
    """A table of types.

    The total length of the texts is limited to `max_characters`, because types may share parts, so
    that a small table could expand to endless text.
    """

    def __init__(self, layout: Layout, max_characters: int) -> None:
        self._table, self._attributes = layout.types, layout.attributes
        self._characters_left = max_characters
        self._known: dict[int, str] = {}
        self._unknown: dict[int, str] = {}
        self._values: dict[int, ValueType] = {}

    def text(self, index: int) -> str:
        """Prints the type as StableHLO does.

        Raises:
          UnknownTypeError: the type or a part of it is unknown, or the texts exceed the limit.
          FileFormatError: the bytes are invalid for the kind of type.
        """
        return self._text(index, 0)

    def function(self, index: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Reads the argument and result types of a function type.

        Raises:
          UnknownTypeError, FileFormatError: as for `text`.
        """
        entry = self._table[index]
        if entry.kind != ("vhlo", _FUNCTION):
            raise UnknownTypeError(f"the type {entry.code} of {entry.dialect} for a function")
        inputs, outputs = self._read_list(entry.cursor, 0), self._read_list(entry.cursor, 0)
        entry.cursor.check_finished()
        return inputs, outputs

    def value(self, index: int) -> ValueType:
        """Reads the type of a value; bounded tensors become an OtherType.

        Raises:
          UnknownTypeError, FileFormatError: as for `text`.
        """
        value_type = self._values.get(index)
        if value_type is None:
            entry = self._table[index]
            if entry.kind == ("vhlo", _TENSOR):
                shape = read_sizes(entry.cursor)
                element = self._text(entry.cursor.index("type", len(self._table)), 1)
                entry.cursor.check_finished()
                value_type = TensorType(tuple(shape), element)
            else:
                value_type = OtherType(self.text(index))
            self._values[index] = value_type
        return value_type

    def _text(self, index: int, depth: int) -> str:
        if index in self._unknown:
            raise UnknownTypeError(self._unknown[index])
        if index not in self._known:
            try:
                self._known[index] = self._read(index, depth)
            except UnknownTypeError as e:
                self._unknown[index] = str(e)
                raise
        return self._known[index]

    def _read(self, index: int, depth: int) -> str:
        entry = self._table[index]
        if depth > _MAX_DEPTH:
            entry.cursor.fail(f"types are nested more than {_MAX_DEPTH} deep")
        if entry.dialect != "vhlo" or entry.code is None:
            raise UnknownTypeError(f"type {entry.code} of {entry.dialect}")
        text = self._print_vhlo(entry.code, entry.cursor, depth)
        entry.cursor.check_finished()
        return text

    def _print_vhlo(self, code: int, cursor: Cursor, depth: int) -> str:
        if code in _NAMES:
            return _NAMES[code]
        if code == _BOUNDED_TENSOR:
            bounds = self._print_bounds(cursor.varint())
            inner = self._print_dimensions(cursor) + self._print_inner(cursor, depth)
            return f"tensor<{inner}{bounds}>"
        if code in (_TENSOR, _BUFFER):
            kind = "tensor" if code == _TENSOR else "memref"
            return f"{kind}<{self._print_dimensions(cursor)}{self._print_inner(cursor, depth)}>"
        if code == _COMPLEX:
            return f"complex<{self._print_inner(cursor, depth)}>"
        if code == _UNRANKED_TENSOR:
            return f"tensor<*x{self._print_inner(cursor, depth)}>"
        if code in (_QUANTIZED, _QUANTIZED_PER_AXIS):
            return self._print_quantized(cursor, depth, per_axis=code == _QUANTIZED_PER_AXIS)
        if code in (_TUPLE, _FUTURE):
            kind = "tuple" if code == _TUPLE else "!stablehlo.future"
            return f"{kind}<{', '.join(self._read_list(cursor, depth))}>"
        if code == _FUNCTION:
            inputs, outputs = self._read_list(cursor, depth), self._read_list(cursor, depth)
            results = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
            return f"({', '.join(inputs)}) -> {results}"
        raise UnknownTypeError(f"type {code} of vhlo")

    def _print_quantized(self, cursor: Cursor, depth: int, *, per_axis: bool) -> str:
        """Prints a quantized type without the range of its integers."""
        signed = cursor.varint() & 1
        storage, expressed = self._print_inner(cursor, depth), self._print_inner(cursor, depth)
        axis = None
        if per_axis:
            axis = cursor.varint()
            _skip_range(cursor)
            scales = [cursor.float64() for _ in range(cursor.count("scales"))]
            points = [cursor.signed_varint() for _ in range(cursor.count("zero points"))]
        else:
            scales, points = [cursor.float64()], [cursor.signed_varint()]
            _skip_range(cursor)
        if len(scales) != len(points):
            cursor.fail(f"a type has {len(scales)} scales, and {len(points)} zero points")
        parameters = [f"{s:e}:{z}" if z else f"{s:e}" for s, z in zip(scales, points, strict=True)]
        stored = storage if signed else storage.replace("i", "u", 1)
        if axis is None:
            return f"!quant.uniform<{stored}:{expressed}, {parameters[0]}>"
        return f"!quant.uniform<{stored}:{expressed}:{axis}, {{{','.join(parameters)}}}>"

    def _print_inner(self, cursor: Cursor, depth: int) -> str:
        text = self._text(cursor.index("type", len(self._table)), depth + 1)
        # Counted before the text becomes part of another text.
        self._characters_left -= len(text)
        if self._characters_left < 0:
            raise UnknownTypeError("types of more text than a module of this size may have")
        return text

    def _read_list(self, cursor: Cursor, depth: int) -> tuple[str, ...]:
        return tuple(self._print_inner(cursor, depth) for _ in range(cursor.count("types")))

    def _print_dimensions(self, cursor: Cursor) -> str:
        return "".join(f"{size}x" for size in _print_sizes(cursor))

    def _print_bounds(self, index: int) -> str:
        entry = self._attributes[index]
        if entry.kind != _BOUNDS:
            raise UnknownTypeError(f"a tensor with the encoding {entry.code} of {entry.dialect}")
        bounds = ", ".join(_print_sizes(entry.cursor))
        entry.cursor.check_finished()
        self._characters_left -= len(bounds)
        return f", #stablehlo.bounds<{bounds}>"


def read_sizes(cursor: Cursor) -> list[int | None]:
    """Reads the sizes of a tensor; None for an unknown size."""
    numbers = [cursor.signed_varint() for _ in range(cursor.count("sizes"))]
    if numbers and min(numbers) < 0 and any(_DYNAMIC != size < 0 for size in numbers):
        cursor.fail(f"a tensor has the size {min(numbers)}")
    return [None if size == _DYNAMIC else size for size in numbers]


def _print_sizes(cursor: Cursor) -> list[str]:
    return ["?" if size is None else str(size) for size in read_sizes(cursor)]


def _skip_range(cursor: Cursor) -> None:
    for _ in ("least", "greatest"):
        cursor.varint()
