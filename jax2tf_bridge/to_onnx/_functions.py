"""Shared parts of functions under TensorFlow's names: registration, dtypes, conversions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from jax2tf_bridge.emitters import NoOperationError
from jax2tf_bridge.to_onnx._graph import (
    DTYPES,
    OnnxDType,
    OnnxGraph,
    Shape,
    Tensor,
    broadcast_shapes,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NAMES = "tensorflow_names"


def function(*names: str) -> Callable[[_Function], _Function]:
    """Marks a function that stands for those of TensorFlow; its first argument is the graph."""

    def mark(call: _Function) -> _Function:
        setattr(call, _NAMES, names)
        return call

    return mark


def list_names(value: object) -> tuple[str, ...]:
    """Returns the names of a function; none if it is not marked."""
    names: tuple[str, ...] = getattr(value, _NAMES, ())
    return names


# Kernels: the dtypes of ONNX Runtime's operations on CPUs, measured in release 1.31 with opset 18.
# Other dtypes are cast to the first one that represents all of their numbers.

_INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
_FLOATS = "float16 float32 float64"
_OF_NUMBERS = f"{_INTEGERS} {_FLOATS}"
_KERNELS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        name: frozenset(dtypes.split())
        for names, dtypes in (
            ("Abs Sign Add Sub Mul Div Mod", _OF_NUMBERS),
            ("Less Greater LessOrEqual GreaterOrEqual", _OF_NUMBERS),
            ("Neg", f"int8 int16 int32 int64 {_FLOATS}"),
            ("Ceil Floor Round Sqrt Exp Log Sin Cos Tanh Sigmoid Reciprocal", _FLOATS),
            ("Softmax LogSoftmax IsNaN", _FLOATS),
            ("Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Erf", "float16 float32"),
            ("IsInf", "float32 float64"),
            ("Max Min", f"int8 int32 int64 uint8 uint32 uint64 {_FLOATS}"),
            ("ArgMax ArgMin", f"int8 int32 int64 uint8 {_FLOATS}"),
            ("Pow ReduceSum ReduceProd ReduceMean CumSum Einsum", f"int32 int64 {_FLOATS}"),
            ("ReduceMax ReduceMin", f"int8 int32 int64 uint8 {_FLOATS}"),
            ("MatMul", f"int32 int64 uint32 uint64 {_FLOATS}"),
            ("BitShift", "uint8 uint32 uint64"),
            ("Where", f"int8 int32 int64 uint8 uint32 {_FLOATS}"),
            ("Pad", f"bool int8 int32 int64 uint8 uint32 uint64 {_FLOATS}"),
            ("Range", "int32 int64 float32 float64"),
            ("TopK", f"int8 int16 int32 int64 uint8 {_FLOATS}"),
            ("Trilu", "bool int32 int64 float16 float32 float64"),
            ("Conv ConvTranspose AveragePool", "float16 float32"),
            ("MaxPool", f"int8 uint8 {_FLOATS}"),
            ("Relu", f"int8 int32 int64 {_FLOATS}"),
        )
        for name in names.split()
    }
)
_WIDER: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "bool": ("int8", "int32", "uint8"),
        "int8": ("int32",),
        "int16": ("int32",),
        "uint8": ("int32", "uint32"),
        "uint16": ("int32", "uint32"),
        "uint32": ("int64", "uint64"),
        "float16": ("float32",),
    }
)
_EQUAL_BITS: Mapping[str, str] = MappingProxyType({"uint64": "int64"})


def find_kernel(operation: str, dtype: OnnxDType, *, keeps_bits: bool = False) -> OnnxDType:
    """Returns the dtype in which ONNX Runtime computes an operation.

    Args:
      operation: ONNX's name.
      dtype: the dtype of the operands.
      keeps_bits: whether the operation moves elements or adds modulo 2**64, so that integers with
        or without a sign make no difference.

    Raises:
      NoOperationError: there is none.
    """
    kernels = _KERNELS.get(operation)
    if kernels is None or dtype.name in kernels:
        return dtype
    candidates = [*_WIDER.get(dtype.name, ())]
    if keeps_bits and dtype.name in _EQUAL_BITS:
        candidates.append(_EQUAL_BITS[dtype.name])
    for name in candidates:
        if name in kernels:
            return DTYPES[name]
    raise NoOperationError(f"ONNX Runtime has no {operation} of {dtype.name}")


def as_dtype(value: Any) -> OnnxDType:
    """Returns the dtype of a name, a NumPy dtype or a dtype.

    Raises:
      TypeError: ONNX has no such dtype.
    """
    if isinstance(value, OnnxDType):
        return value
    name = value if isinstance(value, str) else np.dtype(value).name
    dtype = DTYPES.get(name)
    if dtype is None or name == "bfloat16":
        raise TypeError(f"ONNX has no dtype {name}")
    return dtype


def to_tensor(graph: OnnxGraph, value: Any, dtype: OnnxDType | None = None) -> Tensor:
    """Converts a number, an array, or a list of numbers and tensors to a tensor."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(x, Tensor) for x in value):
        return graph.make("stack", value)
    if dtype is None and not hasattr(value, "dtype"):
        array = np.asarray(value)
        default = {"i": np.int32, "f": np.float32}.get(array.dtype.kind, array.dtype)
        return graph.constant(array.astype(default))
    array = np.asarray(value)
    if dtype is not None and array.dtype.name != dtype.name:
        array = array.astype(dtype.as_numpy_dtype)
    return graph.constant(array)


def to_tensors(graph: OnnxGraph, *values: Any) -> list[Tensor]:
    """Converts operands of one dtype; numbers get the dtype of the tensors."""
    dtype = next((x.dtype for x in values if isinstance(x, Tensor)), None)
    return [to_tensor(graph, x, dtype) for x in values]


def cast(graph: OnnxGraph, x: Tensor, dtype: OnnxDType) -> Tensor:
    """Converts the elements; floats are rounded towards zero."""
    if x.dtype is dtype:
        return x
    if x.value is not None and not (x.dtype.is_floating and dtype.is_integer):
        return graph.constant(x.value.astype(dtype.as_numpy_dtype))
    if dtype.name == "int64" and x.wide is not None:
        return x.wide
    return graph.add("Cast", [x], dtype, x.shape, to=dtype)


def compute(
    graph: OnnxGraph,
    operation: str,
    operands: Sequence[Tensor],
    shape: Sequence[int | None],
    *,
    keeps_bits: bool = False,
    **attributes: Any,
) -> Tensor:
    """Adds an operation on operands of one dtype, in a dtype with a kernel."""
    dtype = operands[0].dtype
    within = find_kernel(operation, dtype, keeps_bits=keeps_bits)
    widened = [cast(graph, x, within) for x in operands]
    return cast(graph, graph.add(operation, widened, within, shape, **attributes), dtype)


def elementwise(
    graph: OnnxGraph, operation: str, *values: Any, keeps_bits: bool = False, **attributes: Any
) -> Tensor:
    """Adds an operation that broadcasts its operands."""
    operands = to_tensors(graph, *values)
    shape = broadcast_shapes(*(x.shape for x in operands))
    return compute(graph, operation, operands, shape, keeps_bits=keeps_bits, **attributes)


def as_sizes(graph: OnnxGraph, sizes: Any) -> Tensor:
    """Converts sizes, a list of numbers and scalars or a vector, to a vector of int64."""
    vector = to_tensor(graph, sizes)
    if vector.value is not None and not vector.value.size:
        return graph.constant(np.zeros(0, np.int64))
    return cast(graph, vector, DTYPES["int64"])


def read_sizes(sizes: Any) -> Shape | None:
    """Returns sizes as far as they are known; None if not even their number is."""
    if isinstance(sizes, Tensor):
        if sizes.value is not None:
            return Shape(int(size) for size in sizes.value)
        count = sizes.shape[0]
        return None if count is None else Shape([None] * count)
    sizes = list(sizes) if not isinstance(sizes, np.ndarray) else sizes.tolist()
    return Shape(
        (None if x.value is None else int(x.value)) if isinstance(x, Tensor) else int(x)
        for x in sizes
    )


def make_indices(graph: OnnxGraph, *numbers: int) -> Tensor:
    """Makes a constant vector of int64."""
    return graph.constant(np.array(numbers, np.int64))
