"""Scope: maps the values of a block to arrays while it is converted to TensorFlow's operations."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import Any, NoReturn, TypeAlias

import numpy as np

from jax2tf_bridge.bytecode import Block, Operation, Program, TensorType, Value
from jax2tf_bridge.emitters._array import (
    Array,
    Arrays,
    Shape,
    graph_dtype,
    has_dtype,
    is_narrow_float,
)
from jax2tf_bridge.emitters._ops import NoOperationError, get_builder, make_line_scope, ops
from jax2tf_bridge.emitters._sizes import Cache, Sizes, fill_sizes
from jax2tf_bridge.emitters.formulas import converter_forms, converter_integers
from jax2tf_bridge.errors import BridgeError, ModuleError
from jax2tf_bridge.rewriting import INVALID_OPERATION_ERRORS
from shape_poly import Dim, SymbolicScope

_MAX_OPERATIONS = 1_000_000
"""Maximum number of operations to convert, far above any model's."""

Emitter: TypeAlias = "Callable[[Scope, Operation, Arrays], Arrays | Array]"
"""Function that converts one operation of the module to TensorFlow's operations."""


@dataclass(eq=False)
class Scope:
    """Values of a block, in one graph; the scope of a region also sees the enclosing blocks.

    Attributes:
      name: the name of the called function, for messages.
      program: the module.
      emitters: maps StableHLO's operations to emitters.
      variables: maps unknown sizes to scalar int32 tensors.
      constraints: the constraints on the variables.
      graph_functions: the TensorFlow functions that the module calls, by number.
      names_lines: whether operations are named after the user's lines.
      for_converters: whether to use only operations that tf2onnx and OpenVINO support.
      for_onnx: whether the graph is ONNX's.
      refuses_bits: whether Bitcast is an error, because no converter supports it.
      cache: the objects that are made once in the graph.
      sizes: the sizes in the graph.
      callers: the functions of the module that are being called.
    """

    name: str
    program: Program
    emitters: Mapping[str, Emitter]
    variables: InitVar[Mapping[str, Any]]
    constraints: InitVar[SymbolicScope | None] = None
    graph_functions: Sequence[Callable[..., Any]] = ()
    _: KW_ONLY
    names_lines: bool = False
    for_converters: bool = False
    for_onnx: bool = False
    refuses_bits: bool = False
    cache: Cache = field(default_factory=Cache, init=False)
    sizes: Sizes = field(init=False)
    callers: frozenset[str] = field(default=frozenset(), init=False)
    _line: str | None = field(default=None, init=False)
    """The line of the call to which this scope belongs."""
    _values: ChainMap[Value, Array] = field(default_factory=ChainMap, init=False)
    _budget: list[int] = field(default_factory=lambda: [_MAX_OPERATIONS], init=False)

    def __post_init__(
        self, variables: Mapping[str, Any], constraints: SymbolicScope | None
    ) -> None:
        self.sizes = Sizes(self.cache, variables, constraints, for_converters=self.for_converters)

    def new_region(self, *, other_graph: bool = False) -> Scope:
        """Makes the scope of a region or of a called function.

        Args:
          other_graph: whether its operations belong to an inner graph, whose tensors this scope
            must not use.
        """
        scope = copy.copy(self)
        scope._values = self._values.new_child()
        if other_graph:
            scope.cache = Cache(self.cache)
            scope.sizes = self.sizes.inner(scope.cache)
        return scope

    def new_call(self, name: str, call: Operation) -> Scope:
        """Makes the scope of a called function, which does not see the caller's values."""
        scope = self.new_region()
        scope.callers = self.callers | {name}
        scope._line = call.source or self._line
        scope._values = self._values.parents.new_child()
        return scope

    @property
    def runtime(self) -> str:
        """Name of the runtime of the graph's operations, for messages."""
        return "ONNX" if self.for_onnx else "TensorFlow"

    @property
    def is_converted_by_bridge(self) -> bool:
        """Returns whether the bridge replaces operations of the finished graph.

        It does so for LiteRT, and for frozen graphs (TensorFlow.js, Core ML).
        """
        return self.names_lines and not self.for_onnx

    @property
    def for_litert(self) -> bool:
        """Returns whether LiteRT's converter reads the graph."""
        return self.is_converted_by_bridge and not self.for_converters

    @property
    def for_frozen_graph(self) -> bool:
        """Returns whether the graph is for TensorFlow.js or Core ML, which have exact integers."""
        return self.for_converters and self.names_lines

    @property
    def is_for_any_converter(self) -> bool:
        """Returns whether a converter to LiteRT, ONNX or OpenVINO reads the operations.

        Converters get the single operation that they support, without a choice at run time.
        """
        return self.for_converters or self.for_onnx or self.names_lines

    # Blocks and operations.

    def run(self, block: Block, arguments: Arrays) -> list[Array]:
        """Converts a block, and returns its results."""
        self._values.update(zip(block.arguments, arguments, strict=True))
        for operation in block.operations[:-1]:
            arrays = self._convert(operation)
            if len(arrays) != len(operation.results):
                reason = f"it has {len(operation.results)} results, and not {len(arrays)}"
                self.fail(operation, reason)
            self._values.update(zip(operation.results, arrays, strict=True))
        return [self.array(value) for value in block.returned]

    def _convert(self, operation: Operation) -> Arrays:
        try:
            return self._emit(operation)
        except BridgeError:
            raise
        except NoOperationError as e:
            self.fail(operation, str(e))
        except INVALID_OPERATION_ERRORS as e:
            if isinstance(e.__cause__ or e.__context__, RecursionError):
                raise RecursionError from e  # inspect makes a TypeError of it
            # The reader does not check operands, types and regions against the operation.
            self.fail(operation, f"its operands, types or regions do not fit it ({e})")

    def _emit(self, operation: Operation) -> Arrays:
        """Converts one operation.

        Raises:
          ModuleError: TensorFlow cannot express it.
        """
        emitter = self.emitters.get(operation.name)
        self._budget[0] -= 1
        if self._budget[0] < 0:
            self.fail(operation, f"the module has more than {_MAX_OPERATIONS:,} operations")
        if emitter is None:
            self.fail(operation, f"there is no {self.runtime} operation for it")
        for value in (*operation.operands, *operation.results):
            if isinstance(value.type, TensorType) and not has_dtype(value.type.element):
                self.fail(operation, f"{self.runtime} has no operations for {value.type}")
        operands = [self.array(value) for value in operation.operands]
        line = operation.source or self._line
        scope = make_line_scope(line) if self.names_lines and line is not None else None
        builder = get_builder()
        with (
            contextlib.nullcontext() if builder is None else builder.in_calls(operation.calls),
            contextlib.nullcontext() if scope is None else ops.name_scope(scope),
            self._check_bits(operation) if self.refuses_bits else contextlib.nullcontext(),
        ):
            result = emitter(self, operation, operands)
        return (result,) if isinstance(result, Array) else result

    @contextlib.contextmanager
    def _check_bits(self, operation: Operation) -> Iterator[None]:
        """Raises if a TensorFlow graph gets a Bitcast."""
        graph = ops.compat.v1.get_default_graph()
        version = graph.version  # which counts operations
        yield
        operations = (
            graph.get_operations()[version - graph.version :] if graph.version > version else ()
        )
        if any(each.type == "Bitcast" for each in operations):
            self.fail(operation, "it needs Bitcast, which no converter of graphs supports")

    def array(self, value: Value) -> Array:
        """Returns the array of a value."""
        for values in self._values.maps:  # faster than the lookup of a ChainMap
            if value in values:
                array = values[value]
                if is_narrow_float(array.element):
                    array = self._values[value] = self.capture(array)
                return array
        raise AssertionError("an operand is used before its operation")

    def capture(self, array: Array) -> Array:
        """Returns an array for the current graph, which may be a branch or loop of the array's.

        TensorFlow captures tensors of the outer graph, but none of 8-bit floats.
        """
        if not is_narrow_float(array.element) or get_builder() is not None:
            return array
        if array.computed is None:
            return replace(array)  # the cache has the constant of an outer graph for `array`
        graph = array.computed.graph
        if graph is ops.compat.v1.get_default_graph():
            return array
        with graph.as_default():
            carried = ops.cast(array.computed, ops.float32)
        return replace(array, computed=ops.cast(carried, array.graph_dtype), origin=None)

    def carry(self, array: Array) -> ops.Tensor:
        """Returns the tensor of an array as branches and loops pass it: 8-bit floats as float32."""
        tensor = self.tensor(array)
        if is_narrow_float(array.element) and get_builder() is None:
            tensor = ops.cast(tensor, ops.float32)
        return tensor

    def called_block(self, operation: Operation) -> Block:
        """Returns the body of the function that a custom call has as its computation."""
        names = operation.attributes.get("called_computations")
        if isinstance(names, tuple) and len(names) == 1 and isinstance(names[0], str):
            function = self.program.functions.get(names[0].removeprefix("@"))
            if function is not None:
                return function.body
        self.fail(operation, f"its computation is {names!r:.100}")

    def fail(self, operation: Operation, reason: str) -> NoReturn:
        """Raises the error for an operation that TensorFlow cannot express.

        Raises:
          ModuleError: always; `reason` is a clause with the reason.
        """
        place = f" (at {operation.source})" if operation.source else ""
        name = operation.name if "." in operation.name else f"stablehlo.{operation.name}"
        advice = "Write"
        if self.for_onnx:
            operations = "ONNX's operations"
        elif self.for_converters:
            operations = "operations that converters support"
        else:
            operations = "TensorFlow's own operations"
            advice = "Write" if self.for_litert else "Export it for a target with XLA, or write"
        raise ModuleError(
            f"{self.name} cannot be made of {operations}: {name}{place}: {reason}. {advice} "
            "this part of the function with other operations."
        )

    # Tensors.

    def compact(self, array: Array) -> ops.Tensor:
        """Returns the compact tensor of an array, which broadcasts to its sizes."""
        if array.computed is not None:
            return array.computed
        known = array.known
        assert known is not None, "an array has one of two forms"
        if array.numbers is None:
            key = "sizes", tuple(known.flat), known.shape, array.element
            return self.cache.get_or_make(key, lambda: self._stack(known, array.element))
        constant = converter_integers.constant if self.for_converters else ops.constant
        return self.cache.get_or_make(("known", array), lambda: constant(known))

    def data(self, array: Array, most: float = math.inf) -> Any:
        """Returns the compact elements: a NumPy array if they are known and at most `most`.

        Otherwise they are a tensor. Functions that move elements then treat both alike.
        """
        known = array.known
        return self.compact(array) if known is None or known.size > most else known

    def tensor(self, array: Array) -> ops.Tensor:
        """Returns the tensor of an array with all its sizes; the broadcast is cached."""
        compact = self.compact(array)
        if self._is_full(array, compact):
            return compact
        return self.cache.get_or_make(
            ("full", array), lambda: self._broadcast(compact, array.sizes)
        )

    def full(self, array: Array) -> Array:
        """Returns the array with a tensor of all its sizes."""
        tensor = self.tensor(array)
        return array if tensor is array.computed else Array(array.element, array.sizes, tensor)

    def _stack(self, sizes: np.ndarray[Any, Any], element: str) -> ops.Tensor:
        dtype = graph_dtype(element)
        parts = [self.sizes.compute_exactly(size, element) for size in sizes.flat]
        if all(isinstance(part, int) for part in parts):
            return ops.constant(np.array(parts, dtype.as_numpy_dtype).reshape(sizes.shape))
        if any(ops.is_tensor(part) and part.dtype == ops.int64 for part in parts):
            parts = [ops.cast(part, ops.int64) for part in parts]
        tensor = ops.stack(parts) if sizes.ndim else parts[0]
        if sizes.ndim > 1:
            tensor = ops.reshape(tensor, sizes.shape)
        return tensor if tensor.dtype == dtype else ops.cast(tensor, dtype)

    def _is_full(self, array: Array, compact: ops.Tensor) -> bool:
        if compact.shape.rank != array.rank:
            return False
        # Sizes of the compact form other than 1 equal those of the array.
        return all(
            known != 1 or size == 1
            for known, size in zip(compact.shape.as_list(), array.sizes, strict=True)
        )

    def _broadcast(self, compact: ops.Tensor, sizes: tuple[Dim, ...]) -> ops.Tensor:
        lacking = len(sizes) - compact.shape.rank
        inner = Array("", sizes[lacking:], compact)
        if all(size == 1 for size in sizes[:lacking]) and self._is_full(inner, compact):
            # The tensor only lacks axes. A reshape adds them, because OpenVINO mishandles
            # StridedSlice with new axes of constants.
            return self.set_shape(ops.reshape(compact, self.sizes.reshape_shape(sizes)), sizes)
        return self.set_shape(ops.broadcast_to(compact, self.sizes.shape(sizes)), sizes)

    def choose(self, flag: ops.Tensor, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
        """Returns x where the flag is set, else y."""
        has_own = self.for_converters and not self.for_frozen_graph
        return converter_forms.choose(flag, x, y) if has_own else ops.where(flag, x, y)

    # Sizes.

    def sizes_of(
        self, vector: Array, known: Sequence[int | None], *, least: int = 0
    ) -> tuple[Dim, ...]:
        """Reads a vector of integers as sizes.

        Args:
          vector: the integers.
          known: the sizes that are known from a type.
          least: the minimum of the others.
        """
        parts = vector.integers
        if parts is None:
            tensor = self.tensor(vector)
            parts = tuple(
                self.cache.get_or_make(
                    ("element", vector, i, least),
                    functools.partial(self._element, tensor, i, least),
                )
                if size is None
                else size
                for i, size in enumerate(known)
            )
        return fill_sizes(known, parts)

    def result_sizes(self, operation: Operation, *shape: Array) -> tuple[Dim, ...]:
        """Returns the sizes of an operation's last result, from its type and an operand's numbers.

        Args:
          operation: the operation.
          *shape: the operand with the sizes, if the operation has one.
        """
        kind = operation.results[-1].tensor
        if shape:
            return self.sizes_of(shape[0], kind.shape)
        sizes = tuple(size for size in kind.shape if size is not None)
        if len(sizes) < len(kind.shape):
            self.fail(operation, f"its type {kind} has unknown sizes")
        return sizes

    def _element(self, vector: ops.Tensor, place: int, least: int) -> Dim:
        return self.sizes.new_size(vector[place], least=least)

    def set_shape(self, tensor: ops.Tensor, sizes: Shape) -> ops.Tensor:
        """Sets the known static shape of a tensor, which TensorFlow may not have inferred."""
        tensor.set_shape([size if isinstance(size, int) else None for size in sizes])
        return tensor

    # New arrays.

    def measure(self, tensor: ops.Tensor, element: str, sizes: Sequence[Dim | None]) -> Array:
        """Makes an array from a tensor; None sizes are computed from the tensor.

        The tensor may be one that `carry` returned.
        """
        tensor = self._receive(tensor, element)
        shape: list[ops.Tensor] = []
        result: list[Dim] = []
        for axis, size in enumerate(sizes):
            if size is None:
                shape = shape or [ops.shape(tensor)]
                size = self.sizes.new_size(shape[0][axis])
            result.append(size)
        return self.new_array(tensor, element, result)

    def _receive(self, tensor: ops.Tensor, element: str) -> ops.Tensor:
        dtype = graph_dtype(element)
        was_carried = is_narrow_float(element) and tensor.dtype != dtype
        return ops.cast(tensor, dtype) if was_carried else tensor

    def result(self, operation: Operation, tensor: ops.Tensor, sizes: Shape) -> Array:
        """Makes the array of an operation's first result from a tensor with all its sizes."""
        kind = operation.result_type
        return self.new_array(tensor, kind.element, fill_sizes(kind.shape, sizes))

    def new_arrays(
        self, tensors: Iterable[ops.Tensor], arrays: Iterable[Array], sizes: Shape | None = None
    ) -> list[Array]:
        """Makes arrays from tensors, with the element types and by default the sizes of others."""
        return [
            self.new_array(
                self._receive(tensor, array.element),
                array.element,
                array.sizes if sizes is None else sizes,
            )
            for tensor, array in zip(tensors, arrays, strict=True)
        ]

    def loop(
        self,
        counter: ops.Tensor,
        goes_on: Callable[[ops.Tensor], ops.Tensor],
        step: Callable[[Scope, ops.Tensor, list[Array]], tuple[ops.Tensor, Arrays]],
        arrays: Arrays,
        *,
        is_open: bool = False,
    ) -> list[ops.Tensor]:
        """Repeats a step on arrays, and returns the tensors of the last ones.

        Args:
          counter: the first value of the loop's counter, a scalar of int32.
          goes_on: returns whether another step follows, from the counter.
          step: gets the scope of the body, the counter and the arrays; returns the next ones.
          arrays: the first arrays, which have the same sizes in each step.
          is_open: whether their first axis has as many elements as the counter says instead.
        """

        def body(counter: ops.Tensor, *tensors: ops.Tensor) -> tuple[ops.Tensor, ...]:
            inner = self.new_region(other_graph=True)
            sizes = (inner.sizes.new_size(counter), *arrays[0].sizes[1:]) if is_open else None
            following, results = step(inner, counter, inner.new_arrays(tensors, arrays, sizes))
            return (following, *map(inner.carry, results))

        tensors = [self.carry(array) for array in arrays]
        shapes = [ops.TensorShape([None, *x.shape[1:]]) if is_open else x.shape for x in tensors]
        _, *results = ops.while_loop(
            lambda counter, *_: goes_on(counter),
            body,
            (counter, *tensors),
            shape_invariants=(ops.TensorShape([]), *shapes),
        )
        return list(results)

    def new_array(self, tensor: ops.Tensor, element: str, sizes: Shape) -> Array:
        """Makes an array from a tensor, which may be compact."""
        if tensor.dtype != graph_dtype(element):
            raise AssertionError(f"a tensor of {tensor.dtype} was made for {element}")
        if tensor.shape.rank == len(sizes) and self._may_be_full(tensor, sizes):
            self.set_shape(tensor, sizes)
        return Array(element, tuple(sizes), tensor)

    def _may_be_full(self, tensor: ops.Tensor, sizes: Shape) -> bool:
        return all(
            size == 1
            or (known != 1 and (known is None or not isinstance(size, int)))
            or known == size
            for known, size in zip(tensor.shape.as_list(), sizes, strict=True)
        )


@dataclass(frozen=True)
class OperationEmitter:
    """An emitter that the table in `operations` finds.

    Attributes:
      names: the names of its rows in `jax2tf_bridge._operations`.
      emit: converts an operation.
      for_converters: converts one for tf2onnx and OpenVINO, if they need another emitter.
    """

    names: tuple[str, ...]
    emit: Emitter
    for_converters: Emitter | None

    def __call__(self, scope: Scope, operation: Operation, operands: Arrays) -> Arrays | Array:
        emit = (scope.for_converters and self.for_converters) or self.emit
        return emit(scope, operation, operands)


def emits(
    *names: str, for_converters: Emitter | None = None
) -> Callable[[Emitter], OperationEmitter]:
    """Makes a function the emitter of the rows `names` of `jax2tf_bridge._operations`.

    Args:
      names: the names of operations, composites and custom calls.
      for_converters: another emitter for tf2onnx and OpenVINO.
    """
    return lambda emit: OperationEmitter(names, emit, for_converters)
