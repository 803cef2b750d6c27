"""Constants of a graph, TensorProto messages, as arrays of NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jax2tf_bridge.portable._dtypes import kind_of
from jax2tf_bridge.saved_model._protobuf import VARINT, Field, Message
from jax2tf_bridge.saved_model._schema import TensorField
from jax2tf_bridge.saved_model._tensors import dtype_name, read_known_shape

_MOST_BYTES = 1 << 28
# tensor.proto: the fields of values, and how they are on the wire.
_FLOATS = {5: "<f4", 6: "<f8", 9: "<c8", 12: "<c16"}
_SIGNED, _UNSIGNED, _STRINGS = frozenset({7, 10, 11, 13}), frozenset({16, 17}), 8
_BYTES, _VERSION = 18, 3


def texts(tensor: Message) -> tuple[str, ...]:
    """The texts of a constant.

    Raises:
      FileFormatError: it is damaged.
    """
    return tuple(tensor.text(field) for field in tensor.fields() if field.number == _STRINGS)


def constant(tensor: Message, dtype_of: Callable[[str], Any]) -> np.ndarray[Any, Any]:
    """The array of a constant; a large one is a view into the file's bytes.

    Args:
      tensor: the TensorProto.
      dtype_of: gives NumPy's dtype for a name.

    Raises:
      FileFormatError: it is damaged, or of a dtype that is not read.
    """
    number = 0
    shape: tuple[int, ...] = ()
    content = memoryview(b"")
    found: list[np.ndarray[Any, Any]] = []
    for field in tensor.fields():
        if field.number == TensorField.DTYPE:
            number = tensor.integer(field)
        elif field.number == TensorField.SHAPE:
            shape = read_known_shape(tensor.message(field, "a shape"))
        elif field.number == TensorField.CONTENT:
            content = tensor.view(field)
        elif field.number in _FLOATS:
            found.append(_floats(tensor, field))
        elif field.number in _SIGNED:
            found.append(np.array([*tensor.integers(field)], np.int64))
        elif field.number in _UNSIGNED:
            found.append(np.array([v % 2**64 for v in tensor.integers(field)], np.uint64))
        elif field.number == _BYTES:
            found.append(np.frombuffer(tensor.view(field), np.uint8))
        elif field.number != _VERSION:
            problem = f"a constant has values in the field {field.number}, which is not read"
            raise tensor.error(field.start, problem)
    name = dtype_name(number)
    try:
        dtype = np.dtype(dtype_of(name))
    except (TypeError, AttributeError) as e:
        problem = f"a constant has the dtype {name!r}, which is not read"
        raise tensor.error(tensor.start, problem) from e
    size = math.prod(shape)
    if len(content):
        if len(content) != size * dtype.itemsize:
            problem = "a constant has not as many elements as its shape says"
            raise tensor.error(tensor.start, problem)
        return _shaped(tensor, np.frombuffer(content, dtype), shape)
    values = np.concatenate(found) if found else np.zeros(0)
    if len(values) < size and size * dtype.itemsize > _MOST_BYTES:
        raise tensor.error(tensor.start, f"a constant has {size} elements")
    if kind_of(name) == "float" and dtype.itemsize < 4:
        # Of short floats the file has the bits.
        values = values.astype(f"u{dtype.itemsize}").view(dtype)
    array = np.zeros(size, dtype)
    array[: len(values)] = values[:size].astype(dtype)
    if len(values):
        # The last stands for all that are missing.
        array[len(values) :] = array[len(values) - 1 : len(values)]
    return _shaped(tensor, array, shape)


def _shaped(
    tensor: Message, array: np.ndarray[Any, Any], shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Gives an array its shape; TensorFlow has some that NumPy has not."""
    try:
        return array.reshape(shape)
    except ValueError as e:
        problem = f"a constant has the shape {shape}, which NumPy's arrays cannot have"
        raise tensor.error(tensor.start, problem) from e


def _floats(tensor: Message, field: Field) -> np.ndarray[Any, Any]:
    """The values of a field, packed or alone."""
    dtype = np.dtype(_FLOATS[field.number])
    size = 0 if field.kind == VARINT else field.end - field.value
    if field.kind == VARINT or size % dtype.itemsize:
        raise tensor.error(field.start, "a constant's values are cut short")
    return np.frombuffer(tensor.data, dtype, size // dtype.itemsize, field.value)
