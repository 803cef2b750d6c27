"""Constants of a graph, TensorProto messages, as arrays of NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jax2tf_bridge.saved_model._protobuf import (
    Value,
    WireError,
    as_bytes,
    as_number,
    fields,
    numbers,
    signed,
)
from jax2tf_bridge.saved_model._tensor_bundle import DTYPES, known_shape

_MOST_BYTES = 1 << 28
# tensor.proto: the fields of values, and how they are on the wire.
_FLOATS = {5: "<f4", 6: "<f8", 9: "<c8", 12: "<c16"}
_SIGNED, _UNSIGNED, _HALVES, _STRINGS = frozenset({7, 10, 11}), frozenset({16, 17}), 13, 8


def texts(message: memoryview) -> tuple[str, ...]:
    """The texts of a constant.

    Raises:
      WireError: it is damaged.
    """
    return tuple(str(as_bytes(v), "utf-8", "replace") for n, v in fields(message) if n == _STRINGS)


def constant(message: memoryview, dtype_of: Callable[[str], Any]) -> np.ndarray[Any, Any]:
    """The array of a constant.

    Args:
      message: the TensorProto.
      dtype_of: gives NumPy's dtype for a name.

    Raises:
      WireError: it is damaged, or of a dtype that is not read.
    """
    name = ""
    shape: tuple[int, ...] = ()
    content = memoryview(b"")
    found: list[np.ndarray[Any, Any]] = []
    for number, value in fields(message):
        if number == 1:
            name = DTYPES.get(as_number(value), "")
        elif number == 2:
            shape = known_shape(as_bytes(value))
        elif number == 4:
            content = as_bytes(value)
        elif number in _FLOATS:
            found.append(np.frombuffer(_floats(value, number), _FLOATS[number]))
        elif number in _SIGNED or number == _HALVES:
            found.append(np.array([signed(v) for v in numbers(value)], np.int64))
        elif number in _UNSIGNED:
            found.append(np.array([*numbers(value)], np.uint64))
    try:
        dtype = np.dtype(dtype_of(name))
    except (TypeError, AttributeError) as e:
        raise WireError(f"a constant has the dtype {name or 'unknown'!r}, which is not read") from e
    size = math.prod(shape)
    if size * dtype.itemsize > _MOST_BYTES:
        raise WireError(f"a constant has {size} elements")
    if len(content):
        if len(content) != size * dtype.itemsize:
            raise WireError("a constant has not as many elements as its shape says")
        return np.frombuffer(content, dtype).reshape(shape)
    values = np.concatenate(found) if found else np.zeros(0)
    if name in ("bfloat16", "float16"):
        values = values.astype(np.uint16).view(dtype)
    array = np.zeros(size, dtype)
    array[: len(values)] = values[:size].astype(dtype)
    if len(values):
        # The last stands for all that are missing.
        array[len(values) :] = array[len(values) - 1 : len(values)]
    return array.reshape(shape)


def _floats(value: Value, number: int) -> bytes:
    """Packed values; a single one may be on the wire as a number."""
    if isinstance(value, int):
        return value.to_bytes(4 if number in (5, 9) else 8, "little")
    if len(value) % np.dtype(_FLOATS[number]).itemsize:
        raise WireError("a constant's values are cut short")
    return bytes(value)
