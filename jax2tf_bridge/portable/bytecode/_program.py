"""A StableHLO module as a tree: functions, operations, values and their attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable._dtypes import OF_ELEMENT_TYPES, find_dtype

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a tensor.

    Attributes:
      shape: sizes; None for one that is not known.
      element: the elements' type as MLIR prints it, as "f32", "i1", "ui8" or "complex<f64>".
    """

    shape: tuple[int | None, ...]
    element: str

    def __str__(self) -> str:
        sizes = "".join(f"{'?' if size is None else size}x" for size in self.shape)
        return f"tensor<{sizes}{self.element}>"


@dataclass(frozen=True, slots=True)
class OtherType:
    """A type of what is no tensor, as a token or a tuple: its text."""

    text: str

    def __str__(self) -> str:
        return self.text


ValueType: TypeAlias = TensorType | OtherType

_MOST_AXES = 32
"""Axes that an array has at most, in every release of NumPy."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value that an operation gives, or a block takes; two are equal if they are one."""

    type: ValueType

    @property
    def tensor(self) -> TensorType:
        """Its type, if it is a tensor.

        Raises:
          FileFormatError: it is none.
        """
        if isinstance(self.type, TensorType):
            return self.type
        raise FileFormatError(
            f"The StableHLO module cannot be read: a value is of type {self.type}, where a tensor "
            "is expected."
        )


@dataclass(frozen=True, slots=True, eq=False)
class DenseElements:
    """A constant tensor.

    Attributes:
      type: of the tensor; its sizes are known.
      data: the elements in row-major order, little-endian, or one element for all; bits of eight
        to a byte, where the elements are bool.
    """

    type: TensorType
    data: memoryview = field(repr=False)

    def array(self) -> np.ndarray[Any, Any]:
        """Views the elements as an array, read-only, without a copy where that is possible.

        Integers of fewer than 8 bits are as ml_dtypes has them.

        Raises:
          FileFormatError: the bytes are not as many as the type says.
        """
        import numpy as np

        shape = [size for size in self.type.shape if size is not None]
        if len(shape) < len(self.type.shape):
            raise self._wrong("of which not all sizes are known")
        if len(shape) > _MOST_AXES:
            raise self._wrong("which has more axes than an array can have")
        count = math.prod(shape)
        elements = self._elements(count)
        elements.flags.writeable = False
        try:
            if elements.size == count:
                return elements.reshape(shape)
            return np.broadcast_to(elements.reshape(()), shape)
        except ValueError:
            raise self._wrong("which is larger than an array can be") from None

    def _elements(self, count: int) -> np.ndarray[Any, Any]:
        """Views the elements as a vector of `count`, or of the one that stands for all."""
        import numpy as np

        row = find_dtype(_dtype(self))
        if row is None:
            raise self._wrong("whose elements are of no dtype of arrays")
        size = self.data.nbytes
        if row.kind == "bool":
            stored = np.frombuffer(self.data, np.uint8)
            if size == count:
                # A byte for each, as some releases of MLIR write them.
                return np.not_equal(stored, 0)
            if size == 1 and (count > 8 or stored[0] in (0, 255)):
                return np.not_equal(stored, 0)
            if size == -(-count // 8):
                return np.unpackbits(stored, count=count, bitorder="little").view(bool)
            raise self._wrong(f"and has {size} bytes")
        dtype = row.numpy()
        if size not in (count * dtype.itemsize, dtype.itemsize):
            raise self._wrong(f"and has {size} bytes")
        if row.kind == "int" and row.bits < 8:
            sign = np.uint8(1 << (row.bits - 1))
            stored = np.frombuffer(self.data, np.uint8) & np.uint8((1 << row.bits) - 1)
            return ((stored ^ sign).view(np.int8) - sign.view(np.int8)).astype(dtype)
        return np.require(np.frombuffer(self.data, dtype), requirements="A")

    def _wrong(self, why: str) -> FileFormatError:
        return FileFormatError(
            f"The StableHLO module cannot be read: it has a constant of type {self.type}, {why}."
        )


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An attribute of a kind that is not known here; its text says which."""

    text: str


Attribute: TypeAlias = (
    "bool | int | float | str | tuple[Attribute, ...] | Mapping[str, Attribute] | DenseElements"
    " | TensorType | OtherType | Unsupported"
)
"""Enums are the names that StableHLO prints, as "EQ" or "TOTALORDER"; MLIR's unit is True."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operation.

    Attributes:
      name: in StableHLO, without its dialect and version: "add", "dot_general", "call", "return".
      operands: what it takes.
      results: what it gives.
      attributes: by their names in VHLO, which are StableHLO's, but for structures, whose fields
        stand alone (`lhs_contracting_dimensions`).
      regions: one block each; a region without a block is not there.
      source: where the user wrote it, as "model.py:12", if it is known.
    """

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: Mapping[str, Attribute]
    regions: tuple[Block, ...] = ()
    source: str | None = None

    def ints(self, name: str, absent: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Reads an attribute that is a vector of integers.

        Args:
          name: of the attribute.
          absent: its value in operations of older versions, which lack it.

        Raises:
          FileFormatError: there is none of this name, or it is no such vector.
        """
        value = self.attributes.get(name, absent)
        if isinstance(value, DenseElements) and (row := find_dtype(_dtype(value))) is not None:
            if row.is_integer:
                return tuple(map(int, value.array().reshape(-1)))
        elif isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            return tuple(v for v in value if isinstance(v, int))
        raise self._wrong(name, "a vector of integers")

    def int(self, name: str) -> int:
        """Reads an attribute that is an integer.

        Raises:
          FileFormatError: there is none of this name, or it is no integer.
        """
        value = self.attributes.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self._wrong(name, "an integer")

    def flags(self, name: str) -> tuple[bool, ...]:
        """Reads an attribute that is a vector of what is true or false.

        Raises:
          FileFormatError: there is none of this name, or it is no such vector.
        """
        value = self.attributes.get(name)
        if isinstance(value, DenseElements) and value.type.element == "i1":
            return tuple(map(bool, value.array().reshape(-1)))
        raise self._wrong(name, "a vector of what is true or false")

    def text(self, name: str) -> str:
        """Reads an attribute that is a string, or the name of a variant.

        Raises:
          FileFormatError: there is none of this name, or it is no string.
        """
        value = self.attributes.get(name)
        if isinstance(value, str):
            return value
        raise self._wrong(name, "a string")

    def flag(self, name: str) -> bool:
        """Reads an attribute that is true or false.

        Raises:
          FileFormatError: there is none of this name, or it is neither.
        """
        value = self.attributes.get(name)
        if isinstance(value, bool):
            return value
        raise self._wrong(name, "true or false")

    def _wrong(self, name: str, expected: str) -> FileFormatError:
        found = f"is {self.attributes[name]!r:.100}" if name in self.attributes else "is missing"
        return FileFormatError(
            f"The StableHLO module cannot be read: the attribute {name} of {self.name} {found}, "
            f"where {expected} is expected."
        )


def _dtype(value: DenseElements) -> str:
    element = value.type.element
    return "int64" if element == "index" else OF_ELEMENT_TYPES.get(element, "")


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A list of operations, of which the last is `return`, and the values that they start from."""

    arguments: tuple[Value, ...]
    operations: tuple[Operation, ...]

    @property
    def returned(self) -> tuple[Value, ...]:
        """The values that the block gives."""
        return self.operations[-1].operands


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the module.

    Attributes:
      attributes: by their names in VHLO, as "arg_attrs", a list of dictionaries.
    """

    name: str
    body: Block
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A StableHLO module that was read as a whole.

    Attributes:
      functions: by their names; "main" is the one that is called from outside.
    """

    functions: Mapping[str, Function]

    @property
    def main(self) -> Function:
        """The function that is called from outside."""
        return self.functions["main"]
