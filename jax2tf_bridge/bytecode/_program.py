"""A StableHLO module as a tree: functions, operations, values and their attributes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from jax2tf_bridge._dtypes import DTYPES_BY_ELEMENT_TYPE, find_dtype
from jax2tf_bridge.errors import FileFormatError

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a tensor.

    Attributes:
      shape: the sizes; None for an unknown size.
      element: the element type as MLIR prints it: "f32", "i1", "ui8" or "complex<f64>".
    """

    shape: tuple[int | None, ...]
    element: str

    def __str__(self) -> str:
        sizes = "".join(f"{'?' if size is None else size}x" for size in self.shape)
        return f"tensor<{sizes}{self.element}>"


@dataclass(frozen=True, slots=True)
class OtherType:
    """A type that is not a tensor, such as a token or a tuple, as text."""

    text: str

    def __str__(self) -> str:
        return self.text


ValueType: TypeAlias = TensorType | OtherType

_MAX_AXES = 32
"""Maximum number of axes of an array in every NumPy release."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A result of an operation or an argument of a block, compared by identity."""

    type: ValueType

    @property
    def tensor(self) -> TensorType:
        """The value's tensor type.

        Raises:
          FileFormatError: the value is not a tensor.
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
      type: the tensor type, with known sizes.
      data: the elements in row-major order, little-endian, or a single repeated element. Bools are
        packed, eight to a byte.
    """

    type: TensorType
    data: memoryview = field(repr=False)

    def array(self) -> np.ndarray[Any, Any]:
        """Returns the elements as a read-only array, without a copy if possible.

        Integers of fewer than 8 bits have dtypes of ml_dtypes.

        Raises:
          FileFormatError: the number of bytes does not match the type.
        """
        import numpy as np

        shape = [size for size in self.type.shape if size is not None]
        if len(shape) < len(self.type.shape):
            raise self._make_error("whose sizes are not all known")
        if len(shape) > _MAX_AXES:
            raise self._make_error("which has more axes than an array can have")
        count = math.prod(shape)
        elements = self._elements(count)
        elements.flags.writeable = False
        try:
            if elements.size == count:
                return elements.reshape(shape)
            return np.broadcast_to(elements.reshape(()), shape)
        except ValueError:
            raise self._make_error("which is larger than an array can be") from None

    def _elements(self, count: int) -> np.ndarray[Any, Any]:
        """Returns the elements as a vector of size `count`, or 1 for a repeated element."""
        import numpy as np

        row = find_dtype(_dtype(self))
        if row is None:
            raise self._make_error("whose element type has no NumPy dtype")
        size = self.data.nbytes
        if row.kind == "bool":
            stored = np.frombuffer(self.data, np.uint8)
            if size == count:
                # Some releases of MLIR write a byte for each bool.
                return np.not_equal(stored, 0)
            if size == 1 and (count > 8 or stored[0] in (0, 255)):
                return np.not_equal(stored, 0)
            if size == -(-count // 8):
                return np.unpackbits(stored, count=count, bitorder="little").view(bool)
            raise self._make_error(f"which has {size} bytes")
        dtype = row.numpy()
        if size not in (count * dtype.itemsize, dtype.itemsize):
            raise self._make_error(f"which has {size} bytes")
        if row.kind == "int" and row.bits < 8:
            sign = np.uint8(1 << (row.bits - 1))
            stored = np.frombuffer(self.data, np.uint8) & np.uint8((1 << row.bits) - 1)
            return ((stored ^ sign).view(np.int8) - sign.view(np.int8)).astype(dtype)
        return np.require(np.frombuffer(self.data, dtype), requirements="A")

    def _make_error(self, why: str) -> FileFormatError:
        return FileFormatError(
            f"The StableHLO module cannot be read: it has a constant of type {self.type}, {why}."
        )


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An attribute of an unknown kind, described by its text."""

    text: str


Attribute: TypeAlias = (
    "bool | int | float | str | tuple[Attribute, ...] | Mapping[str, Attribute] | DenseElements"
    " | TensorType | OtherType | Unsupported"
)
"""An attribute. Enums are StableHLO's names, such as "EQ" or "TOTALORDER"; MLIR's unit is True."""


STOP_GRADIENT = "jax2tf.stop_gradient"
"""Name of the bridge's composite for lax.stop_gradient."""

_CALLEES = {"call": "callee", "composite": "decomposition"}
"""Attribute with the name of the called function, by operation."""


@dataclass(frozen=True, slots=True, eq=False)
class InlinedCall:
    """A call that was replaced by the operations of the called function.

    Attributes:
      name: the name of the function.
      source: the user's line of the call, if known.
    """

    name: str
    source: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operation.

    The methods read attributes; they raise FileFormatError if the attribute is missing or of
    another kind.

    Attributes:
      name: StableHLO's name without dialect and version: "add", "dot_general", "call", "return".
      operands: the values that it takes.
      results: the values that it returns.
      attributes: the attributes by their names in VHLO. These are StableHLO's names, except that
        fields of structures are separate attributes (`lhs_contracting_dimensions`).
      regions: the block of each region that is not empty.
      source: the user's line, such as "model.py:12", if known.
      calls: the calls of the user's functions that the operation replaces together with others,
        the outermost first.
    """

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: Mapping[str, Attribute]
    regions: tuple[Block, ...] = ()
    source: str | None = None
    calls: tuple[InlinedCall, ...] = ()

    @property
    def result_type(self) -> TensorType:
        """Type of the first result.

        Raises:
          FileFormatError: it is not a tensor.
        """
        return self.results[0].tensor

    @property
    def callee(self) -> str | None:
        """Name of the function that a call or a composite calls; None for other operations."""
        value = self.attributes.get(_CALLEES.get(self.name, ""))
        return value if isinstance(value, str) else None

    def ints(self, name: str, absent: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Reads an attribute that is a vector of integers.

        `absent` is the value for operations of older versions, which lack the attribute.
        """
        value = self.attributes.get(name, absent)
        if isinstance(value, DenseElements) and (row := find_dtype(_dtype(value))) is not None:
            if row.is_integer:
                return tuple(map(int, value.array().reshape(-1)))
        elif isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            return tuple(v for v in value if isinstance(v, int))
        raise self._make_error(name, "a vector of integers")

    def int(self, name: str) -> int:
        return self._read(name, int, "an integer")

    def flags(self, name: str) -> tuple[bool, ...]:
        value = self.attributes.get(name)
        if isinstance(value, DenseElements) and value.type.element == "i1":
            return tuple(map(bool, value.array().reshape(-1)))
        raise self._make_error(name, "a vector of booleans")

    def text(self, name: str) -> str:
        """Reads an attribute that is a string, or the name of an enum value."""
        return self._read(name, str, "a string")

    def flag(self, name: str) -> bool:
        return self._read(name, bool, "a boolean")

    def _read(self, name: str, kind: type[T], expected: str) -> T:
        value = self.attributes.get(name)
        if type(value) is kind:  # a bool is not an integer here
            return value
        raise self._make_error(name, expected)

    def _make_error(self, name: str, expected: str) -> FileFormatError:
        state = f"is {self.attributes[name]!r:.100}" if name in self.attributes else "is missing"
        return FileFormatError(
            f"The StableHLO module cannot be read: the attribute {name} of {self.name} {state}, "
            f"where {expected} is expected."
        )


def _dtype(value: DenseElements) -> str:
    element = value.type.element
    return "int64" if element == "index" else DTYPES_BY_ELEMENT_TYPE.get(element, "")


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A list of operations that ends with `return`, and the arguments that they use."""

    arguments: tuple[Value, ...]
    operations: tuple[Operation, ...]

    @property
    def returned(self) -> tuple[Value, ...]:
        return self.operations[-1].operands


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the module.

    Attributes:
      attributes: the attributes by their names in VHLO; "arg_attrs" is a list of dictionaries.
    """

    name: str
    body: Block
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A StableHLO module.

    Attributes:
      functions: the functions by name; "main" is the entry point.
    """

    functions: Mapping[str, Function]

    @property
    def main(self) -> Function:
        return self.functions["main"]

    def __str__(self) -> str:
        """Returns a text for people, close to MLIR's generic form, which cannot be read back.

        Each operation has a line, with the user's line as a comment. Values are numbered within
        each function. Constants of more than 8 different elements are written as dots.
        """
        lines = ["module {"]
        for function in self.functions.values():
            lines += _FunctionText().lines(function)
        return "\n".join([*lines, "}"]) + "\n"


_MAX_ELEMENTS = 8
"""Maximum number of elements of a constant that are written."""


class _FunctionText:
    """Formatter of a function; numbers its values."""

    def __init__(self) -> None:
        self._numbers: dict[Value, int] = {}

    def lines(self, function: Function) -> Iterator[str]:
        body = function.body
        results = _join(str(value.type) for value in body.returned)
        yield f"  func @{function.name}({self._arguments(body)}) -> ({results}) {{"
        yield from self._operations(body, "    ")
        yield "  }"

    def _name(self, value: Value) -> str:
        return f"%{self._numbers.setdefault(value, len(self._numbers))}"

    def _arguments(self, block: Block) -> str:
        return _join(f"{self._name(value)}: {value.type}" for value in block.arguments)

    def _operations(self, block: Block, indent: str) -> Iterator[str]:
        for operation in block.operations:
            yield from self._operation(operation, indent)

    def _operation(self, operation: Operation, indent: str) -> Iterator[str]:
        operands = _join(map(self._name, operation.operands))
        attributes = f" {_format(operation.attributes)}" if operation.attributes else ""
        start = f"{operation.name} {operands}".rstrip() + attributes
        results = operation.results
        types = f" : {_join(str(value.type) for value in results)}" if results else ""
        comment = f"  // {operation.source}" if operation.source else ""
        if results:
            start = f"{_join(map(self._name, results))} = {start}"
        if not operation.regions:
            yield f"{indent}{start}{types}{comment}"
            return
        for number, region in enumerate(operation.regions):
            yield f"{indent}{start} {{{comment}" if number == 0 else f"{indent}}}, {{"
            if region.arguments:
                yield f"{indent}^({self._arguments(region)}):"
            yield from self._operations(region, indent + "  ")
        yield f"{indent}}}{types}"


def _join(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _format(attribute: Attribute) -> str:
    match attribute:
        case DenseElements() if len(attribute.type.shape) == 1:
            return _format_elements(attribute)
        case DenseElements():
            return f"dense<{_format_elements(attribute)}>"
        case tuple():
            return f"[{_join(map(_format, attribute))}]"
        case Mapping():
            return f"{{{_join(f'{k} = {_format(v)}' for k, v in attribute.items())}}}"
        case bool():
            return str(attribute).lower()
        case str():
            return json.dumps(attribute)
        case _:
            return str(attribute)


def _format_elements(elements: DenseElements) -> str:
    try:
        array = elements.array()
    except FileFormatError:
        return "..."
    if array.ndim != 1 and array.size and not any(array.strides):
        return str(array.reshape(-1)[0])  # one number for all elements
    return str(array.tolist()) if array.size <= _MAX_ELEMENTS else "[...]"
