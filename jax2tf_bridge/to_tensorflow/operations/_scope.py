"""Scope: maps the values of a block to arrays while it is converted to TensorFlow's operations."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.bytecode import Block, Operation, Program, TensorType, Value
from jax2tf_bridge.errors import BridgeError, ModuleError
from jax2tf_bridge.rewriting import INVALID_OPERATION_ERRORS
from jax2tf_bridge.to_tensorflow._line_names import line_scope
from jax2tf_bridge.to_tensorflow._shape_guards import SizeAlgebra, largest_constant
from jax2tf_bridge.to_tensorflow.operations import _converter_integers
from jax2tf_bridge.to_tensorflow.operations._array import Array, has_dtype, tf_dtype
from shape_poly import Dim, DimExpr, DimOperation, SymbolicScope, symbolic_dim_bounds, variables_of


@dataclass(frozen=True)
class _SizesForConverters(SizeAlgebra):
    """Arithmetic on sizes for converters: tf2onnx rounds FloorMod and FloorDiv towards zero."""

    def floordiv(self, left: Any, right: Any) -> Any:
        """Divides a multiple of the divisor, which needs no rounding."""
        rest = self.mod(left, right)
        return super().floordiv(self.add(left, self.multiply(rest, -1)), right)

    def mod(self, left: Any, right: Any) -> Any:
        """Adds the divisor to a remainder of any sign, then takes the remainder again."""
        return super().mod(self.add(super().mod(left, right), right), right)


_LIMITS = MappingProxyType(
    {"i32": (tf.int32.min, tf.int32.max), "i64": (tf.int64.min, tf.int64.max)}
)
"""Minimum and maximum of the types that JAX uses for sizes."""
_MAX_SIZE = tf.int32.max
"""Maximum size of an axis: StableHLO reads sizes as int32."""
_MAX_FACTOR = 1 << 20
"""Maximum constant for which int32 arithmetic counts as arithmetic on sizes, which never wraps."""

_MAX_OPERATIONS = 1_000_000
"""Maximum number of operations to convert, far above any model's."""

Emitter: TypeAlias = "Callable[[Scope, Operation, Sequence[Array]], Sequence[Array] | Array]"
"""Function that converts one operation of the module to TensorFlow's operations."""

MIN_COMPUTED_AMOUNT = -(1 << 28)
"""Assumed minimum of computed numbers that are not sizes, such as padding. Sums of several of them
fit into 32 bits."""


class Scope:
    """Values of a block, in one graph; the scope of a region also sees the enclosing blocks.

    Attributes:
      name: the name of the called function, for messages.
      program: the module.
      emitters: maps StableHLO's operations to emitters.
      graph_functions: the TensorFlow functions that the module calls, by number.
      names_lines: whether operations are named after the user's lines.
      for_converters: whether to use only operations that tf2onnx and OpenVINO support.
      refuses_bits: whether Bitcast is an error, because no converter supports it.
      callers: the functions of the module that are being called.
    """

    def __init__(
        self,
        name: str,
        program: Program,
        emitters: Mapping[str, Emitter],
        variables: Mapping[str, Any],
        constraints: SymbolicScope | None = None,
        graph_functions: Sequence[Callable[..., Any]] = (),
        *,
        names_lines: bool = False,
        for_converters: bool = False,
        refuses_bits: bool = False,
    ) -> None:
        """Stores the scope; `variables` maps unknown sizes to scalar int32 tensors."""
        self.name, self.program, self.emitters = name, program, emitters
        self.graph_functions = graph_functions
        self.names_lines, self.for_converters = names_lines, for_converters
        self.refuses_bits = refuses_bits
        self._line: str | None = None  # the line of the call to which this scope belongs
        self._constraints = constraints
        self._variables: dict[str, Any] = dict(variables)
        self._values: dict[Value, Array] = {}
        self._made: dict[Hashable, Any] = {}
        self._outer: Scope | None = None
        self.callers: frozenset[str] = frozenset()
        self._budget = [_MAX_OPERATIONS]
        self._numbers = itertools.count()
        self._counters: set[str] = set()
        self._exceeds_32_bits = [False]

    def inner(self, *, other_graph: bool = False) -> Scope:
        """Makes the scope of a region or of a called function.

        Args:
          other_graph: whether its operations belong to an inner graph, whose tensors this scope
            must not use.
        """
        scope = Scope(
            self.name,
            self.program,
            self.emitters,
            {},
            self._constraints,
            self.graph_functions,
            names_lines=self.names_lines,
            for_converters=self.for_converters,
            refuses_bits=self.refuses_bits,
        )
        scope._outer, scope.callers = self, self.callers
        scope._line = self._line
        scope._budget, scope._numbers = self._budget, self._numbers
        scope._counters = self._counters
        scope._exceeds_32_bits = self._exceeds_32_bits
        if not other_graph:
            scope._made, scope._variables = self._made, self._variables
        return scope

    def called(self, name: str, call: Operation) -> Scope:
        """Makes the scope of a called function, which does not see the caller's values."""
        scope = self.inner()
        scope.callers = self.callers | {name}
        scope._line = call.source or self._line
        # The cache is shared by the whole graph, so lookups need not walk the callers.
        scope._outer = self._outer
        return scope

    @property
    def is_for_any_converter(self) -> bool:
        """Returns whether a converter to LiteRT, ONNX or OpenVINO reads the operations.

        Converters get the single operation that they support, without a choice at run time.
        """
        return self.for_converters or self.names_lines

    # Blocks and operations.

    def run(self, block: Block, arguments: Sequence[Array]) -> list[Array]:
        """Converts a block, and returns its results."""
        self._values.update(zip(block.arguments, arguments, strict=True))
        for operation in block.operations[:-1]:
            arrays = self._convert(operation)
            if len(arrays) != len(operation.results):
                reason = f"it gives {len(arrays)} values for {len(operation.results)}"
                self.fail(operation, reason)
            self._values.update(zip(operation.results, arrays, strict=True))
        return [self.array(value) for value in block.returned]

    def _convert(self, operation: Operation) -> Sequence[Array]:
        try:
            return self._emit(operation)
        except BridgeError:
            raise
        except INVALID_OPERATION_ERRORS as e:
            if isinstance(e.__cause__ or e.__context__, RecursionError):
                raise RecursionError from e  # inspect makes a TypeError of it
            # The reader does not check operands, types and regions against the operation.
            self.fail(operation, f"its operands, types or regions do not fit it ({e})")

    def _emit(self, operation: Operation) -> Sequence[Array]:
        """Converts one operation.

        Raises:
          ModuleError: TensorFlow cannot express it.
        """
        emitter = self.emitters.get(operation.name)
        self._budget[0] -= 1
        if self._budget[0] < 0:
            self.fail(operation, f"the module has more than {_MAX_OPERATIONS:,} operations")
        if emitter is None:
            self.fail(operation, "there is no TensorFlow operation for it")
        for value in operation.results:
            if isinstance(value.type, TensorType) and not has_dtype(value.type.element):
                self.fail(operation, f"TensorFlow has no dtype for {value.type}")
        operands = [self.array(value) for value in operation.operands]
        line = operation.source or self._line
        graph = tf.compat.v1.get_default_graph()
        version = graph.version
        if self.names_lines and line is not None:
            with tf.name_scope(line_scope(line)):
                result = emitter(self, operation, operands)
        else:
            result = emitter(self, operation, operands)
        if self.refuses_bits and graph.version > version:
            # The version counts operations.
            made = graph.get_operations()[version - graph.version :]
            if any(each.type == "Bitcast" for each in made):
                self.fail(operation, "it needs Bitcast, which no converter of graphs knows")
        return (result,) if isinstance(result, Array) else result

    def array(self, value: Value) -> Array:
        """Returns the array of a value."""
        scope: Scope | None = self
        while scope is not None:
            if value in scope._values:
                return scope._values[value]
            scope = scope._outer
        raise AssertionError("operands come after what makes them")

    def fail(self, operation: Operation, reason: str) -> NoReturn:
        """Raises the error for an operation that TensorFlow cannot express.

        Raises:
          ModuleError: always; `reason` is a clause with the reason.
        """
        place = f" (at {operation.source})" if operation.source else ""
        name = operation.name if "." in operation.name else f"stablehlo.{operation.name}"
        if self.for_converters:
            raise ModuleError(
                f"{self.name} cannot be made of operations that converters know: {name}{place}: "
                f"{reason}. Write this part of the function with other operations."
            )
        raise ModuleError(
            f"{self.name} cannot be made of TensorFlow's own operations: "
            f"{name}{place}: {reason}. Export it for a target with XLA, or "
            "write this part of the function with other operations."
        )

    # Tensors.

    def compact(self, array: Array) -> tf.Tensor:
        """Returns the compact tensor of an array, which broadcasts to its sizes."""
        if array.computed is not None:
            return array.computed
        if (known := array.known) is not None:
            constant = _converter_integers.constant if self.for_converters else tf.constant
            return self.once(("known", array), lambda: constant(known))
        assert array.parts is not None, "an array has one of three forms"
        dtype = array.tf_dtype
        return self.once(("parts", array.parts, array.sizes, dtype), lambda: self._stack(array))

    def tensor(self, array: Array) -> tf.Tensor:
        """Returns the tensor of an array with all its sizes; the broadcast is cached."""
        compact = self.compact(array)
        if self._is_full(array, compact):
            return compact
        return self.once(("full", array), lambda: self._broadcast(compact, array.sizes))

    def full(self, array: Array) -> Array:
        """Returns the array with a tensor of all its sizes."""
        tensor = self.tensor(array)
        return array if tensor is array.computed else Array(array.element, array.sizes, tensor)

    def constant(self, array: Array) -> np.ndarray[Any, Any] | None:
        """Returns the known elements of an array with all its sizes; None if unknown."""
        if array.known is not None and array.is_static:
            return np.broadcast_to(array.known, array.static_sizes())
        if array.parts is not None and all(isinstance(part, int) for part in array.parts):
            flat = np.array(array.parts, array.tf_dtype.as_numpy_dtype)
            return flat.reshape(array.static_sizes())
        return None

    def scalar(self, array: Array) -> Any:
        """Returns the number of a known scalar; None if unknown."""
        constant = self.constant(array)
        return None if constant is None or constant.size != 1 else constant.reshape(-1)[0]

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns the cached object of `key` in this or an enclosing scope; makes it if missing."""
        scope: Scope | None = self
        while scope is not None:
            if key in scope._made:
                return scope._made[key]
            scope = scope._outer
        self._made[key] = made = make()
        return made

    def _stack(self, array: Array) -> tf.Tensor:
        assert array.parts is not None
        dtype = array.tf_dtype
        parts = [self._number(part, array.element) for part in array.parts]
        if all(isinstance(part, int) for part in parts):
            values = np.array(parts, dtype.as_numpy_dtype)
            return tf.constant(values.reshape(array.static_sizes()))
        if any(tf.is_tensor(part) and part.dtype == tf.int64 for part in parts):
            parts = [tf.cast(part, tf.int64) for part in parts]
        tensor = tf.stack(parts) if array.rank else parts[0]
        if array.rank > 1:
            tensor = tf.reshape(tensor, array.static_sizes())
        return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)

    def _number(self, number: Dim, element: str) -> Any:
        """Computes a number that may not be a size; in int32 if that is exact."""
        if element == "i32" or self._is_exact_in_32_bits(number):
            return self.size(number)
        return self._in_64_bits(number)

    def _is_full(self, array: Array, compact: tf.Tensor) -> bool:
        if compact.shape.rank != array.rank:
            return False
        # Sizes of the compact form other than 1 equal those of the array.
        return all(
            known != 1 or size == 1
            for known, size in zip(compact.shape.as_list(), array.sizes, strict=True)
        )

    def _broadcast(self, compact: tf.Tensor, sizes: tuple[Dim, ...]) -> tf.Tensor:
        lacking = len(sizes) - compact.shape.rank
        inner = Array("", sizes[lacking:], compact)
        if all(size == 1 for size in sizes[:lacking]) and self._is_full(inner, compact):
            # The tensor only lacks axes. A reshape adds them, because OpenVINO mishandles
            # StridedSlice with new axes of constants.
            return self.shaped(tf.reshape(compact, self.reshape_shape(sizes)), sizes)
        return self.shaped(tf.broadcast_to(compact, self.shape(sizes)), sizes)

    # Sizes.

    def shape(self, sizes: Sequence[Dim]) -> Any:
        """Returns sizes as a shape for TensorFlow: a list of ints, or an int32 tensor."""
        result = [self.size(size) for size in sizes]
        if all(isinstance(size, int) for size in result):
            return result
        return self.once(("shape", tuple(sizes)), lambda: tf.stack(result))

    def reshape_shape(self, sizes: Sequence[Dim]) -> Any:
        """Returns sizes for tf.reshape, where one of them may be -1."""
        unknown = [i for i, size in enumerate(sizes) if not isinstance(size, int)]
        if not unknown or 0 in sizes:
            return self.shape(sizes)
        # -1 replaces the computed size, if no other size can be 0.
        computed = [i for i in unknown if not _is_variable(sizes[i])]
        left = (computed or unknown)[-1]
        if any(self.bounds(sizes[i])[0] < 1 for i in unknown if i != left):
            return self.shape(sizes)
        return self.shape([-1 if i == left else size for i, size in enumerate(sizes)])

    def size(self, dimension: Dim) -> Any:
        """Returns a size: an int, or a cached scalar int32 tensor."""
        if not isinstance(dimension, DimExpr):
            return dimension
        return self.once(("size", dimension), lambda: self._compute(dimension))

    def _compute(self, dimension: DimExpr) -> Any:
        if self._exceeds_32_bits[0] and not self._has_exact_operands(dimension):
            number = self._in_64_bits(dimension)
            return number if isinstance(number, int) else tf.cast(number, tf.int32)
        values = {name: self._variable(name) for name in dimension.variables()}
        return dimension.evaluate_with(values, self._algebra(tf.int32))

    def _in_64_bits(self, dimension: Dim) -> Any:
        """Returns a number: an int, or a cached scalar int64 tensor."""
        if not isinstance(dimension, DimExpr):
            return dimension

        def make() -> Any:
            values = {name: self._variable_in_64_bits(name) for name in dimension.variables()}
            return dimension.evaluate_with(values, self._algebra(tf.int64))

        return self.once(("64 bits", dimension), make)

    def _algebra(self, dtype: tf.DType) -> SizeAlgebra:
        return _SizesForConverters(dtype) if self.for_converters else SizeAlgebra(dtype)

    def _variable_in_64_bits(self, name: str) -> Any:
        size = self._variable(name)
        if isinstance(size, int):
            return size
        return self.once(("variable in 64 bits", name), lambda: tf.cast(size, tf.int64))

    def _is_exact_in_32_bits(self, number: Dim) -> bool:
        return self.is_within(number, "i32") and self._has_exact_operands(number)

    def _has_exact_operands(self, number: Dim) -> bool:
        """Returns whether the operands of divisions, maxima and minima fit into int32.

        Sums and products may wrap around temporarily; other operations may not.
        """
        if not isinstance(number, DimExpr):
            return True
        return all(
            self._is_exact_in_32_bits(operand)
            for monomial, _ in number.terms
            for atom, _ in monomial
            if isinstance(atom, DimOperation)
            for operand in atom.operands
        )

    def _variable(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope._variables:
                result = scope._variables[name]
                return self.once(("variable", name), result) if callable(result) else result
            scope = scope._outer
        raise AssertionError(f"the size {name} comes before what defines it")

    def knows(self, dimension: Dim) -> bool:
        """Returns whether a size can be computed here; sizes of an inner region cannot."""
        if not isinstance(dimension, DimExpr):
            return True
        names = set(dimension.variables())
        scope: Scope | None = self
        while scope is not None and names:
            names -= scope._variables.keys()
            scope = scope._outer
        return not names

    def new_size(self, tensor: tf.Tensor, *, least: int = 0) -> Dim:
        """Makes a new variable for a computed size.

        Args:
          tensor: the size, a scalar integer tensor.
          least: the minimum of the size.
        """
        return self._named(tensor, least)[1]

    def counter(self, tensor: tf.Tensor, least: int, end: Dim) -> Dim:
        """Makes a new variable for a loop's counter, which is less than `end`."""
        name, size = self._named(tensor, least)
        limit = f"{size} <= {end - 1}"
        known = self._constraints or SymbolicScope()
        self._constraints = known.with_constraints(limit, check=False)
        self._counters.add(name)
        return size

    def fits(self, number: Dim, element: str) -> bool:
        """Returns whether a number does not wrap around in an integer type.

        JAX computes sizes in int32 unless x64 is enabled, so int32 numbers computed from sizes and
        small constants are assumed to fit. Loop counters and large constants also have other uses,
        for instance in random numbers.

        Args:
          number: the exact number.
          element: "i32" or "i64".
        """
        if self.is_within(number, element):
            if element == "i64" and not self.is_within(number, "i32"):
                self._exceeds_32_bits[0] = True
            return True
        if element != "i32" or not isinstance(number, DimExpr):
            return False
        lowest, highest = _LIMITS[element]
        lower, upper = self.bounds(number)
        return (
            lower <= highest
            and upper >= lowest
            and self._counters.isdisjoint(number.variables())
            and largest_constant(number) <= _MAX_FACTOR
        )

    def is_within(self, number: Dim, element: str) -> bool:
        lowest, highest = _LIMITS[element]
        lower, upper = self.bounds(number)
        return bool(lower >= lowest and upper <= highest)

    def _named(self, tensor: tf.Tensor, least: int) -> tuple[str, Dim]:
        name = f"_size_{next(self._numbers)}"  # unique, also among sibling scopes
        number = tf.cast(tensor, tf.int32)
        variable = DimExpr.variable(name)
        if least == 1:
            self._variables[name] = number
            return name, variable
        # Expressions assume that a variable is at least 1.
        size = variable + (least - 1)
        self._variables[name] = functools.partial(tf.add, number, 1 - least)
        self._made["size", size] = number
        return name, size

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
                self.once(
                    ("element", vector, i, least),
                    functools.partial(self._element, tensor, i, least),
                )
                if size is None
                else size
                for i, size in enumerate(known)
            )
        return typed(known, parts)

    def _element(self, vector: tf.Tensor, place: int, least: int) -> Dim:
        return self.new_size(vector[place], least=least)

    def shaped(self, tensor: tf.Tensor, sizes: Sequence[Dim]) -> tf.Tensor:
        """Sets the known static shape of a tensor, which TensorFlow may not have inferred."""
        tensor.set_shape([size if isinstance(size, int) else None for size in sizes])
        return tensor

    def bounds(self, dimension: Dim) -> tuple[float, float]:
        """Returns inclusive bounds of a size or of a number computed from sizes."""
        if not isinstance(dimension, DimExpr):
            return dimension, dimension
        ranges = {name: self._range(name) for name in dimension.variables()}
        return symbolic_dim_bounds(dimension, self._constraints, ranges=ranges)

    def _range(self, name: str) -> tuple[int, int]:
        scope: Scope | None = self
        while scope is not None:
            if isinstance(size := scope._variables.get(name), int):
                return size, size
            scope = scope._outer
        return 1, _MAX_SIZE

    # New arrays.

    def measured(self, tensor: tf.Tensor, element: str, sizes: Sequence[Dim | None]) -> Array:
        """Makes an array from a tensor; None sizes are computed from the tensor."""
        shape: list[tf.Tensor] = []
        result: list[Dim] = []
        for axis, size in enumerate(sizes):
            if size is None:
                shape = shape or [tf.shape(tensor)]
                size = self.new_size(shape[0][axis])
            result.append(size)
        return self.made(tensor, element, result)

    def result(self, operation: Operation, tensor: tf.Tensor, sizes: Sequence[Dim]) -> Array:
        """Makes the array of an operation's first result from a tensor with all its sizes."""
        kind = operation.results[0].tensor
        return self.made(tensor, kind.element, typed(kind.shape, sizes))

    def made(self, tensor: tf.Tensor, element: str, sizes: Sequence[Dim]) -> Array:
        """Makes an array from a tensor, which may be compact."""
        if tensor.dtype != tf_dtype(element):
            raise AssertionError(f"a tensor of {tensor.dtype} was made for {element}")
        if tensor.shape.rank == len(sizes) and self._may_be_full(tensor, sizes):
            self.shaped(tensor, sizes)
        return Array(element, tuple(sizes), tensor)

    def _may_be_full(self, tensor: tf.Tensor, sizes: Sequence[Dim]) -> bool:
        return all(
            size == 1
            or (known != 1 and (known is None or not isinstance(size, int)))
            or known == size
            for known, size in zip(tensor.shape.as_list(), sizes, strict=True)
        )


def _is_variable(size: Dim) -> bool:
    return any(size == DimExpr.variable(name) for name in variables_of(size))


def typed(known: Sequence[int | None], sizes: Sequence[Dim]) -> tuple[Dim, ...]:
    """Returns sizes, replaced by numbers that the type has.

    In a body that is applied to many elements at once, the type lacks all axes.
    """
    if len(known) != len(sizes):
        return tuple(sizes)
    return tuple(
        size if number is None else number for number, size in zip(known, sizes, strict=True)
    )


def type_sizes(kind: TensorType) -> tuple[int, ...] | None:
    """Returns the sizes of a type if all are numbers, else None."""
    numbers = tuple(size for size in kind.shape if size is not None)
    return numbers if len(numbers) == len(kind.shape) else None


def broadcast_sizes(arrays: Sequence[Array]) -> tuple[Dim, ...]:
    """Returns the sizes of the result of an elementwise operation.

    The operands have equal sizes, but in a body that is applied to many elements at once some are
    scalars.
    """
    return functools.reduce(_broadcast_pair, (array.sizes for array in arrays))


def _broadcast_pair(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> tuple[Dim, ...]:
    if len(left) != len(right):
        return left if len(left) > len(right) else right
    # Numbers are preferred to expressions; a size of 1 may be repeated.
    return tuple(
        b if a == 1 or (isinstance(b, int) and b != 1) else a
        for a, b in zip(left, right, strict=True)
    )
