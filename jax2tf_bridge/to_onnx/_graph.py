"""A graph of ONNX operations while it is built: tensors, nodes, constants and subgraphs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge.bytecode import InlinedCall


@dataclass(frozen=True, eq=False)
class OnnxDType:
    """A dtype, with the attributes of TensorFlow's that emitters read.

    Attributes:
      name: NumPy's name.
    """

    name: str

    def __repr__(self) -> str:
        return self.name

    @functools.cached_property
    def as_numpy_dtype(self) -> Any:
        """The NumPy dtype."""
        row = find_dtype(self.name)
        assert row is not None, "the table has all dtypes"
        return row.numpy()

    @property
    def size(self) -> int:
        """Number of bytes of an element."""
        return int(self.as_numpy_dtype.itemsize)

    @property
    def is_floating(self) -> bool:
        return "float" in self.name

    @property
    def is_complex(self) -> bool:
        return "complex" in self.name

    @property
    def is_integer(self) -> bool:
        return "int" in self.name

    @property
    def is_unsigned(self) -> bool:
        return self.name.startswith("uint")

    @property
    def real_dtype(self) -> OnnxDType:
        """The dtype of a part of complex numbers."""
        return DTYPES["float64" if self.name == "complex128" else "float32"]

    @property
    def min(self) -> Any:
        """The least number."""
        return self._info.min

    @property
    def max(self) -> Any:
        """The greatest finite number."""
        return self._info.max

    @property
    def _info(self) -> Any:
        if self.is_integer:
            return np.iinfo(self.as_numpy_dtype)
        return ml_dtypes.finfo(self.as_numpy_dtype)  # type: ignore[no-untyped-call]


DTYPES: Mapping[str, OnnxDType] = MappingProxyType(
    {
        name: OnnxDType(name)
        for name in (
            *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
        )
    }
)
"""The dtypes by name."""


class Shape(tuple["int | None", ...]):
    """Sizes of a tensor; None for those that are known at run time only."""

    __slots__ = ()

    @property
    def rank(self) -> int:
        return len(self)

    def as_list(self) -> list[int | None]:
        return list(self)

    def is_fully_defined(self) -> bool:
        return None not in self

    def __getitem__(self, key: Any) -> Any:
        result = super().__getitem__(key)
        return Shape(result) if isinstance(key, slice) else result


def broadcast_shapes(*shapes: Sequence[int | None]) -> Shape:
    """Returns the shape of an elementwise result."""
    rank = max(map(len, shapes))
    padded = [(*(1 for _ in range(rank - len(shape))), *shape) for shape in shapes]
    sizes: list[int | None] = []
    for column in zip(*padded, strict=True):
        large = [size for size in column if size not in (1, None)]
        sizes.append(large[0] if large else (None if None in column else 1))
    return Shape(sizes)


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Body of a loop, or a branch.

    Attributes:
      inputs: its arguments.
      outputs: its results.
      nodes: its nodes; they may use values of the enclosing graphs.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    nodes: list[OnnxNode]

    @functools.cached_property
    def used(self) -> frozenset[str]:
        """The names of the values of enclosing graphs that it uses."""
        used = {x.name for x in self.outputs}.union(*(node.values for node in self.nodes))
        own = {x.name for x in self.inputs}.union(*(node.outputs for node in self.nodes))
        return frozenset(used - own)


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """An operation.

    Attributes:
      name: a unique name, which begins with the user's line if it is known.
      operation: ONNX's name.
      inputs: the names of its operands; "" for one that is left out.
      outputs: the names of its results.
      attributes: numbers, strings, lists of numbers, or subgraphs.
      calls: the calls of the user's functions that the node is a part of, the outermost first.
      domain: the domain of the operation; "" for ONNX's own.
    """

    name: str
    operation: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    calls: tuple[InlinedCall, ...] = ()
    domain: str = ""

    @functools.cached_property
    def values(self) -> frozenset[str]:
        """The names of the values that it uses, those of its subgraphs included."""
        used = set(filter(None, self.inputs))
        for each in self.subgraphs:
            used |= each.used
        return frozenset(used)

    @property
    def subgraphs(self) -> Sequence[Subgraph]:
        return [x for x in self.attributes.values() if isinstance(x, Subgraph)]

    def with_subgraphs(
        self, change: Callable[[list[OnnxNode], set[str]], list[OnnxNode]]
    ) -> OnnxNode:
        """Returns the node with other nodes in its subgraphs.

        Args:
          change: returns the new nodes; takes the nodes and the names of the results.
        """
        if not self.subgraphs:
            return self
        attributes = {
            key: dataclasses.replace(x, nodes=change(x.nodes, {y.name for y in x.outputs}))
            if isinstance(x, Subgraph)
            else x
            for key, x in self.attributes.items()
        }
        return dataclasses.replace(self, attributes=attributes)


def _operator(name: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, y: x.graph.make(name, x, y)


def _reflected_operator(name: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, y: x.graph.make(name, y, x)


class Tensor:
    """A value of the graph. It has the attributes and operators of TensorFlow's tensors.

    Attributes:
      graph: the graph.
      name: the name of the value.
      dtype: the dtype.
      shape: the sizes.
      value: the elements of a constant, else None.
      wide: the same integers as int64, if they are sizes: ONNX's operations take sizes as int64.
      order: for a transposed tensor, the original and the order of its axes.
    """

    __slots__ = ("dtype", "graph", "name", "order", "shape", "value", "wide")

    def __init__(
        self,
        graph: OnnxGraph,
        name: str,
        dtype: OnnxDType,
        shape: Sequence[int | None],
        value: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """Stores a value that the graph has."""
        self.graph, self.name, self.dtype, self.value = graph, name, dtype, value
        self.shape = Shape(shape)
        self.wide: Tensor | None = None
        self.order: tuple[Tensor, tuple[int, ...]] | None = None

    def __repr__(self) -> str:
        return f"<{self.name}: {self.dtype}{list(self.shape)}>"

    def set_shape(self, shape: Sequence[int | None]) -> None:
        """Adds known sizes."""
        if len(shape) == len(self.shape):
            pairs = zip(self.shape, shape, strict=True)
            self.shape = Shape(new if old is None else old for old, new in pairs)

    def ref(self) -> str:
        """Returns a key for the tensor."""
        return self.name

    __add__ = _operator("add")
    __radd__ = _reflected_operator("add")
    __sub__ = _operator("subtract")
    __rsub__ = _reflected_operator("subtract")
    __mul__ = _operator("multiply")
    __rmul__ = _reflected_operator("multiply")
    __truediv__ = _operator("divide")
    __rtruediv__ = _reflected_operator("divide")
    __floordiv__ = _operator("math.floordiv")
    __mod__ = _operator("math.floormod")
    __matmul__ = _operator("linalg.matmul")
    __and__ = _operator("logical_and")
    __or__ = _operator("logical_or")
    __lt__ = _operator("less")
    __le__ = _operator("less_equal")
    __gt__ = _operator("greater")
    __ge__ = _operator("greater_equal")
    __getitem__ = _operator("getitem")

    def __neg__(self) -> Tensor:
        return self.graph.make("negative", self)

    def __invert__(self) -> Tensor:
        return self.graph.make("logical_not", self)

    def __eq__(self, other: object) -> Any:
        if other is None:  # slice(x) == slice(None)
            return False
        return self.graph.make("equal", self, other)

    def __ne__(self, other: object) -> Any:
        if other is None:
            return True
        return self.graph.make("not_equal", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("the elements of a tensor are not known while its graph is built")


class ComplexTensor(Tensor):
    """Complex numbers as two tensors, because ONNX has no operations on them.

    Attributes:
      real: the real parts.
      imag: the imaginary parts.
    """

    __slots__ = ("imag", "real")

    def __init__(self, real: Tensor, imag: Tensor) -> None:
        """Stores the parts."""
        dtype = DTYPES["complex128" if real.dtype.name == "float64" else "complex64"]
        shape = broadcast_shapes(real.shape, imag.shape)
        value = None
        if real.value is not None and imag.value is not None:
            value = (real.value + 1j * imag.value).astype(dtype.as_numpy_dtype)
        super().__init__(real.graph, f"{real.name}, {imag.name}", dtype, shape, value)
        self.real, self.imag = real, imag

    def set_shape(self, shape: Sequence[int | None]) -> None:
        """Adds known sizes."""
        super().set_shape(shape)
        self.real.set_shape(shape)
        self.imag.set_shape(shape)


_MAX_LOOKBACK = 16
"""Number of the newest nodes among which `find_last_maker` looks."""


@dataclass
class OnnxGraph:
    """A graph that grows.

    Attributes:
      find: returns the function of a name, such as "math.log".
      opset: the version of ONNX's operations.
      taken: the names that new values must not get.
      constants: the constants by name.
      own_constants: the names of those that are neither weights nor captured arrays.
      tensors: the values by name.
    """

    find: Callable[[OnnxGraph, str], Callable[..., Any]]
    opset: int
    taken: set[str] = field(default_factory=set)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    own_constants: set[str] = field(default_factory=set)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    _blocks: list[list[OnnxNode]] = field(default_factory=lambda: [[]])
    _shared: dict[Any, Tensor] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _scope: str = ""
    _calls: tuple[InlinedCall, ...] = ()

    @property
    def nodes(self) -> list[OnnxNode]:
        """The nodes of the outermost graph."""
        return self._blocks[0]

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Calls a function by its name."""
        return self.find(self, name)(*args, **options)

    def make(self, name: str, *args: Any, **options: Any) -> Tensor:
        """Calls a function that returns one tensor."""
        result = self.call(name, *args, **options)
        assert isinstance(result, Tensor), f"{name} returns one tensor"
        return result

    @contextlib.contextmanager
    def in_scope(self, name: str) -> Iterator[None]:
        """Begins the names of new nodes with a text."""
        before, self._scope = self._scope, name
        try:
            yield
        finally:
            self._scope = before

    @contextlib.contextmanager
    def in_calls(self, calls: tuple[InlinedCall, ...]) -> Iterator[None]:
        """Marks new nodes as parts of calls."""
        before, self._calls = self._calls, calls
        try:
            yield
        finally:
            self._calls = before

    def new_name(self, kind: str) -> str:
        """Returns a name that no value has."""
        names = (f"{self._scope}{kind}_{number}" for number in self._numbers)
        return next(name for name in names if name not in self.taken)

    def argument(self, name: str, dtype: OnnxDType, shape: Sequence[int | None]) -> Tensor:
        """Makes an argument of the graph or of a subgraph."""
        self.tensors[name] = tensor = Tensor(self, name, dtype, shape)
        return tensor

    def constant(self, value: np.ndarray[Any, Any], name: str | None = None) -> Tensor:
        """Makes a constant; equal ones without a name are shared."""
        value = np.asarray(value)
        dtype = DTYPES[value.dtype.name]
        if dtype.is_complex:
            names = (None, None) if name is None else (f"{name}.real", f"{name}.imag")
            return ComplexTensor(
                self.constant(value.real.copy(), names[0]),
                self.constant(value.imag.copy(), names[1]),
            )
        key = None
        if name is None:
            key = dtype.name, value.shape, hashlib.sha256(value.tobytes()).digest()
            if key in self._shared:
                return self._shared[key]
            with self.in_scope(""):
                name = self.new_name("constant")
        tensor = Tensor(self, name, dtype, value.shape, value)
        self.constants[tensor.name] = value
        self.tensors[tensor.name] = tensor
        if key is not None:
            self.own_constants.add(tensor.name)
            self._shared[key] = tensor
        return tensor

    def add(
        self,
        operation: str,
        inputs: Sequence[Tensor | None],
        dtype: OnnxDType,
        shape: Sequence[int | None],
        **attributes: Any,
    ) -> Tensor:
        """Adds an operation with one result."""
        (result,) = self.add_several(operation, inputs, [(dtype, shape)], **attributes)
        return result

    def add_several(
        self,
        operation: str,
        inputs: Sequence[Tensor | None],
        results: Sequence[tuple[OnnxDType, Sequence[int | None]]],
        **attributes: Any,
    ) -> list[Tensor]:
        """Adds an operation with several results."""
        name = self.new_name(operation)
        many = len(results) > 1
        outputs = [
            Tensor(self, f"{name}.{i}" if many else name, dtype, shape)
            for i, (dtype, shape) in enumerate(results)
        ]
        names = tuple("" if x is None else x.name for x in inputs)
        node = OnnxNode(
            name, operation, names, tuple(x.name for x in outputs), attributes, self._calls
        )
        self._blocks[-1].append(node)
        self.tensors.update((x.name, x) for x in outputs)
        return outputs

    def find_last_maker(self, x: Tensor, operation: str) -> OnnxNode | None:
        """Returns the node that makes a value, if it is of this kind and among the newest."""
        newest = self._blocks[-1][-_MAX_LOOKBACK:]
        makers = (node for node in newest if x.name in node.outputs)
        return next((node for node in makers if node.operation == operation), None)

    def new_subgraph(
        self, inputs: Sequence[Tensor], make: Callable[[], Sequence[Tensor]]
    ) -> Subgraph:
        """Makes a subgraph of the operations that `make` adds; its results are new values."""
        self._blocks.append([])
        try:
            # A result of a subgraph must not be an argument or a value of another graph.
            outputs = [self.add("Identity", [x], x.dtype, x.shape) for x in make()]
        finally:
            nodes = self._blocks.pop()
        return Subgraph(tuple(inputs), tuple(outputs), nodes)


def drop_unused(nodes: Sequence[OnnxNode], needed: set[str]) -> list[OnnxNode]:
    """Returns the nodes on which results depend; adds to `needed` what they use.

    Args:
      nodes: the nodes in the order of computation.
      needed: the names of the results; receives the names of all values that are used.
    """
    used: list[OnnxNode] = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            used.append(node.with_subgraphs(drop_unused))
            needed |= used[-1].values
    return used[::-1]
