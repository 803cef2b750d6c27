"""Types and shapes as TensorFlow's messages hold them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from jax2tf_bridge._utils._array_texts import array_type_text
from jax2tf_bridge.saved_model._dtypes import DTYPES, STORED_BITS
from jax2tf_bridge.saved_model._protobuf import Field, Message
from jax2tf_bridge.saved_model._schema import ShapeField, TensorField

Shape: TypeAlias = tuple[int | None, ...] | None
"""The sizes, None for those that are open; None alone if not even the rank is known."""

_OF_REFERENCES = 100
"""What is added to a dtype's number for a reference to such a tensor, as TensorFlow 1 has them."""

_MOST_DIMENSIONS = 254
"""TensorFlow has no tensors of a higher rank."""


@dataclass(frozen=True)
class TensorType:
    """A dtype by its name, and a shape.

    >>> str(TensorType("float32", (None, 28))), str(TensorType("int32", None))
    ('float32[?,28]', 'int32[...]')
    """

    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return array_type_text(self.dtype, self.shape)

    @property
    def size(self) -> int | None:
        """How many bytes its elements take; None if that is open."""
        bits = STORED_BITS.get(self.dtype)
        if bits is None or self.shape is None or None in self.shape:
            return None
        return math.prod(d for d in self.shape if d is not None) * bits // 8


def dtype_name(number: int) -> str:
    """A dtype by its number."""
    plain = number - _OF_REFERENCES if number > _OF_REFERENCES else number
    return DTYPES.get(plain, f"dtype {number}")


def read_shape(message: Message) -> Shape:
    """The shape in a TensorShapeProto."""
    sizes: list[int | None] = []
    unknown_rank = False
    for field in message.fields():
        if field.number == ShapeField.DIMENSIONS:
            if len(sizes) == _MOST_DIMENSIONS:
                raise message.error(field.start, f"a shape has more than {len(sizes)} dimensions")
            size = message.message(field, "the size of a dimension").integer_of(1)
            sizes.append(None if size < 0 else size)
        elif field.number == ShapeField.UNKNOWN_RANK:
            unknown_rank = message.integer(field) != 0
    return None if unknown_rank else tuple(sizes)


def read_known_shape(message: Message) -> tuple[int, ...]:
    """The shape in a TensorShapeProto in which nothing may be open."""
    shape = read_shape(message)
    if shape is None or None in shape:
        raise message.error(message.start, "a tensor has no known shape")
    return tuple(size for size in shape if size is not None)


def typed(message: Message, dtype: int, shape: int) -> TensorType:
    """The dtype and shape in two fields of a message.

    Args:
      message: a variable, a constant, or an input or output of a signature.
      dtype: the number of the field.
      shape: likewise.
    """
    found: Field | None = None
    number = 0
    for field in message.fields():
        if field.number == dtype:
            number = message.integer(field)
        elif field.number == shape:
            found = field
    sizes = () if found is None else read_shape(message.message(found, "a shape"))
    return TensorType(dtype_name(number), sizes)


def tensor_type(tensor: Message) -> TensorType:
    """The type of the array that a TensorProto holds."""
    return typed(tensor, TensorField.DTYPE, TensorField.SHAPE)
