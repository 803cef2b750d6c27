"""Reads dtypes, shapes and arrays from TensorFlow's messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge._dtypes import ALL_DTYPES, find_kind
from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.saved_model._schema import ShapeField, TensorProtoField
from jax2tf_bridge.serialization import VARINT, ProtoField, ProtoMessage

STRING = "string"
"""Dtype of texts; its elements have no fixed size."""

_TENSORFLOW_DTYPES = {
    7: (STRING, 0),
    11: ("qint8", 8),
    12: ("quint8", 8),
    13: ("qint32", 32),
    15: ("qint16", 16),
    16: ("quint16", 16),
    20: ("resource", 0),
    21: ("variant", 0),
}
_NUMBERS = [(row, row.tensorflow) for row in ALL_DTYPES if row.tensorflow is not None]

DTYPES: Mapping[int, str] = MappingProxyType(
    {number: name for number, (name, _) in _TENSORFLOW_DTYPES.items()}
    | {number: row.name for row, number in _NUMBERS}
)
"""Maps the numbers in types.proto to the names of dtypes."""

STORED_BITS: Mapping[str, int] = MappingProxyType(
    {name: bits for name, bits in _TENSORFLOW_DTYPES.values() if bits}
    # Elements of fewer than 8 bits take a byte each.
    | {row.name: max(8, row.bits) for row, _ in _NUMBERS}
)
"""Number of bits of a stored element, for dtypes of a fixed size."""


Shape: TypeAlias = tuple[int | None, ...] | None
"""Shape with None for unknown sizes; None if the rank is unknown."""

_REFERENCE_OFFSET = 100
"""Offset of the dtype numbers of TensorFlow 1's references."""

_MAX_RANK = 254
"""Maximum rank of a tensor in TensorFlow."""


@dataclass(frozen=True)
class TensorSpec:
    """Dtype, by its name, and shape of a tensor.

    >>> str(TensorSpec("float32", (None, 28))), str(TensorSpec("int32", None))
    ('float32[?,28]', 'int32[...]')
    """

    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return array_type_text(self.dtype, self.shape)

    @property
    def size(self) -> int | None:
        """Size of all elements in bytes; None if unknown."""
        bits = STORED_BITS.get(self.dtype)
        if bits is None or self.shape is None or None in self.shape:
            return None
        return math.prod(d for d in self.shape if d is not None) * bits // 8


def name_dtype(number: int) -> str:
    """Returns the name of a dtype by its number in types.proto."""
    plain = number - _REFERENCE_OFFSET if number > _REFERENCE_OFFSET else number
    return DTYPES.get(plain, f"dtype {number}")


def read_shape(message: ProtoMessage) -> Shape:
    """Reads a TensorShapeProto."""
    sizes: list[int | None] = []
    unknown_rank = False
    for field in message.fields():
        if field.number == ShapeField.DIMENSIONS:
            if len(sizes) == _MAX_RANK:
                raise message.error(field.start, f"a shape has more than {len(sizes)} dimensions")
            size = message.message(field, "the size of a dimension").integer_of(1)
            sizes.append(None if size < 0 else size)
        elif field.number == ShapeField.UNKNOWN_RANK:
            unknown_rank = message.integer(field) != 0
    return None if unknown_rank else tuple(sizes)


def read_known_shape(message: ProtoMessage) -> tuple[int, ...]:
    """Reads a TensorShapeProto without unknown sizes."""
    shape = read_shape(message)
    if shape is None or None in shape:
        raise message.error(message.start, "a tensor has no known shape")
    return tuple(size for size in shape if size is not None)


def read_spec(message: ProtoMessage, dtype: int, shape: int) -> TensorSpec:
    """Reads a dtype and a shape from two fields of a message.

    Args:
      message: a variable, a constant, or an input or output of a signature.
      dtype: the field number of the dtype.
      shape: the field number of the shape.
    """
    fields = message.last_fields()
    number = message.integer(fields[dtype]) if dtype in fields else 0
    sizes = read_shape(message.message(fields[shape], "a shape")) if shape in fields else ()
    return TensorSpec(name_dtype(number), sizes)


def read_tensor_spec(tensor: ProtoMessage) -> TensorSpec:
    """Reads the type of a TensorProto."""
    return read_spec(tensor, TensorProtoField.DTYPE, TensorProtoField.SHAPE)


_MAX_TENSOR_BYTES = 1 << 28
# The value fields of tensor.proto, and their encodings.
_FLOATS = {5: "<f4", 6: "<f8", 9: "<c8", 12: "<c16"}
_SIGNED, _UNSIGNED, _STRINGS = frozenset({7, 10, 11, 13}), frozenset({16, 17}), 8
_BYTES, _VERSION = 18, 3


def read_strings(tensor: ProtoMessage) -> tuple[bytes, ...]:
    """Reads the strings that a constant stores; the last one repeats for all later elements.

    Raises:
      FileFormatError: the constant is damaged.
    """
    return tuple(tensor.content(field) for field in tensor.fields() if field.number == _STRINGS)


def read_array(tensor: ProtoMessage, dtype_of: Callable[[str], Any]) -> np.ndarray[Any, Any]:
    """Reads the array of a constant; a large array is a view of the file's bytes.

    Args:
      tensor: the TensorProto.
      dtype_of: converts a name to NumPy's dtype.

    Raises:
      FileFormatError: the constant is damaged, or has an unsupported dtype.
    """
    number = 0
    shape: tuple[int, ...] = ()
    content = memoryview(b"")
    pieces: list[np.ndarray[Any, Any]] = []
    for field in tensor.fields():
        if field.number == TensorProtoField.DTYPE:
            number = tensor.integer(field)
        elif field.number == TensorProtoField.SHAPE:
            shape = read_known_shape(tensor.message(field, "a shape"))
        elif field.number == TensorProtoField.CONTENT:
            content = tensor.view(field)
        elif field.number in _FLOATS:
            pieces.append(_read_floats(tensor, field))
        elif field.number in _SIGNED:
            pieces.append(np.array([*tensor.integers(field)], np.int64))
        elif field.number in _UNSIGNED:
            pieces.append(np.array([v % 2**64 for v in tensor.integers(field)], np.uint64))
        elif field.number == _BYTES:
            pieces.append(np.frombuffer(tensor.view(field), np.uint8))
        elif field.number != _VERSION:
            problem = f"a constant has values in the field {field.number}, which is not read"
            raise tensor.error(field.start, problem)
    name = name_dtype(number)
    try:
        dtype = np.dtype(dtype_of(name))
    except (TypeError, AttributeError) as e:
        problem = f"a constant has the dtype {name!r}, which is not read"
        raise tensor.error(tensor.start, problem) from e
    size = math.prod(shape)
    if len(content):
        if len(content) != size * dtype.itemsize:
            problem = "the number of elements of a constant does not match its shape"
            raise tensor.error(tensor.start, problem)
        return _reshape(tensor, np.frombuffer(content, dtype), shape)
    for piece in pieces:
        if piece.dtype.kind in "fc" and piece.dtype != dtype:
            raise tensor.error(tensor.start, f"a constant of {name} has values of {piece.dtype}")
    values = np.concatenate(pieces) if pieces else np.zeros(0)
    if len(values) < size and size * dtype.itemsize > _MAX_TENSOR_BYTES:
        raise tensor.error(tensor.start, f"a constant has {size} elements")
    if find_kind(name) == "float" and dtype.itemsize < 4:
        # The file stores narrow floats as their bits.
        values = values.astype(f"u{dtype.itemsize}").view(dtype)
    array = np.zeros(size, dtype)
    array[: len(values)] = values[:size].astype(dtype)
    if len(values):
        # The last value repeats for all missing ones.
        array[len(values) :] = array[len(values) - 1 : len(values)]
    return _reshape(tensor, array, shape)


def _reshape(
    tensor: ProtoMessage, array: np.ndarray[Any, Any], shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    try:
        return array.reshape(shape)
    except ValueError as e:
        problem = f"a constant has the shape {shape}, which NumPy's arrays cannot have"
        raise tensor.error(tensor.start, problem) from e


def _read_floats(tensor: ProtoMessage, field: ProtoField) -> np.ndarray[Any, Any]:
    dtype = np.dtype(_FLOATS[field.number])
    size = 0 if field.kind == VARINT else field.end - field.value
    if field.kind == VARINT or size % dtype.itemsize:
        raise tensor.error(field.start, "a constant's values are cut short")
    return np.frombuffer(tensor.data, dtype, size // dtype.itemsize, field.value)
