"""Scope: what the values of a block stand for while TensorFlow's operations are made of it."""

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
from jax2tf_bridge.to_tensorflow._line_names import line_scope
from jax2tf_bridge.to_tensorflow._shape_guards import SizeAlgebra, largest_constant
from jax2tf_bridge.to_tensorflow.operations import _converter_integers
from jax2tf_bridge.to_tensorflow.operations._array import Array, has_dtype, tf_dtype
from shape_poly import Dim, DimExpr, DimOperation, SymbolicScope, symbolic_dim_bounds, variables_of


@dataclass(frozen=True)
class _SizesForConverters(SizeAlgebra):
    """Computes with sizes where FloorMod and FloorDiv of tf2onnx round towards zero."""

    def floordiv(self, left: Any, right: Any) -> Any:
        """Divides what is a multiple of the divisor, which is rounded nowhere."""
        rest = self.mod(left, right)
        return super().floordiv(self.add(left, self.multiply(rest, -1)), right)

    def mod(self, left: Any, right: Any) -> Any:
        """Adds the divisor to a remainder of any sign, and takes the remainder again."""
        return super().mod(self.add(super().mod(left, right), right), right)


_LIMITS = MappingProxyType(
    {"i32": (tf.int32.min, tf.int32.max), "i64": (tf.int64.min, tf.int64.max)}
)
"""The lowest and the highest number of each type that JAX computes sizes in."""
_MAX_SIZE = tf.int32.max
"""Maximum size of an axis: StableHLO reads sizes as int32."""
_MAX_FACTOR = 1 << 20
"""Maximum constant in int32 arithmetic that is taken to be about sizes, and not to wrap around."""

_MAX_DEPTH, _MAX_OPERATIONS = 1000, 1_000_000
"""How deep functions and regions may nest, and how many operations they may have when each call is
replaced by the function: far more than any model."""

Emitter: TypeAlias = (
    "Callable[[Scope, Operation, Sequence[Array]], Sequence[Array] | Array | Inlined]"
)
"""Makes TensorFlow's operations of one operation of the module, from its operands."""


@dataclass(frozen=True)
class Inlined:
    """A function's operations in the place of an operation, to be made next.

    An emitter that returns it, and does not run the block itself, adds no frames to Python's stack,
    however deep functions call each other.
    """

    scope: Scope
    block: Block
    arguments: Sequence[Array]


MIN_COMPUTED_AMOUNT = -(1 << 28)
"""Of numbers that are computed and no sizes, as padding: the least that is reckoned with. Sums of
several of them fit into 32 bits."""


CONTRADICTIONS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(TypeError, ValueError),
)
"""What comes of operations whose operands, types or regions are not what such operations have."""


class Scope:
    """Values of a block, in one graph; a region's scope sees those of the blocks around it.

    Attributes:
      name: the function's that is called, for messages.
      program: the module.
      emitters: for each operation of StableHLO, by its name.
      graph_functions: the TensorFlow functions that the module calls by their numbers.
      asserts: whether what the module asserts of its sizes is checked when it runs; otherwise
        whoever calls it has checked them.
      names_lines: whether operations are named after the user's lines.
      for_converters: whether operations are kept to those that tf2onnx and OpenVINO know.
      refuses_bits: whether Bitcast is an error, since no converter knows it.
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
        asserts: bool = False,
        names_lines: bool = False,
        for_converters: bool = False,
        refuses_bits: bool = False,
    ) -> None:
        """`variables` are the sizes that are not known: scalar tensors of int32, by name."""
        self.name, self.program, self.emitters = name, program, emitters
        self.graph_functions, self.asserts = graph_functions, asserts
        self.names_lines, self.for_converters = names_lines, for_converters
        self.refuses_bits = refuses_bits
        self._line: str | None = None  # of the call of what this scope is of
        self._constraints = constraints
        self._variables: dict[str, Any] = dict(variables)
        self._values: dict[Value, Array] = {}
        self._made: dict[Hashable, Any] = {}
        self._outer: Scope | None = None
        self._depth = 0
        self._budget = [_MAX_OPERATIONS]
        self._numbers = itertools.count()
        self._counters: set[str] = set()
        self._exceeds_32_bits = [False]

    def inner(self, *, other_graph: bool = False) -> Scope:
        """Makes the scope of a region, or of a function that is called.

        Args:
          other_graph: whether its operations are made in a graph within this one, so that nothing
            of this scope may use what is made there.
        """
        scope = Scope(
            self.name,
            self.program,
            self.emitters,
            {},
            self._constraints,
            self.graph_functions,
            asserts=self.asserts,
            names_lines=self.names_lines,
            for_converters=self.for_converters,
            refuses_bits=self.refuses_bits,
        )
        scope._outer, scope._depth = self, self._depth + 1
        scope._line = self._line
        scope._budget, scope._numbers = self._budget, self._numbers
        scope._counters = self._counters
        scope._exceeds_32_bits = self._exceeds_32_bits
        if not other_graph:
            scope._made, scope._variables = self._made, self._variables
        return scope

    def called(self) -> Scope:
        """Makes the scope of a function that is called: it sees no values of the caller."""
        scope = self.inner()
        # What is shared in this graph is in the new scope as well: so nobody looks through all
        # callers for it.
        scope._outer = self._outer
        return scope

    @property
    def is_for_any_converter(self) -> bool:
        """Returns whether a converter of LiteRT, ONNX or OpenVINO reads the operations.

        Such formats get the operation that they know for a purpose, and not a choice of two.
        """
        return self.for_converters or self.names_lines

    # Blocks and operations.

    def run(self, block: Block, arguments: Sequence[Array]) -> list[Array]:
        """Makes operations of a block; returns what it returns."""
        calls: list[tuple[Operation, _Frame]] = []
        frame = _Frame(self, block, arguments)
        while True:
            for operation in frame.operations:
                found = frame.scope._made_of(operation)
                if isinstance(found, Inlined):
                    taken, given = len(found.block.arguments), len(found.arguments)
                    if taken != given:
                        frame.scope.fail(operation, f"it gives {given} values for {taken}")
                    calls.append((operation, frame))
                    frame = _Frame(found.scope, found.block, found.arguments)
                    break
            else:
                returned = [frame.scope.array(value) for value in frame.block.returned]
                if not calls:
                    return returned
                operation, frame = calls.pop()
                frame.scope._bind(operation, returned)

    def _bind(self, operation: Operation, arrays: Sequence[Array]) -> None:
        if len(arrays) != len(operation.results):
            self.fail(operation, f"it gives {len(arrays)} values for {len(operation.results)}")
        self._values.update(zip(operation.results, arrays, strict=True))

    def _made_of(self, operation: Operation) -> Inlined | None:
        """Makes operations of one operation, or tells which function takes its place."""
        try:
            found = self._emit(operation)
        except BridgeError:
            raise
        except CONTRADICTIONS as e:
            if isinstance(e.__cause__ or e.__context__, RecursionError):
                raise RecursionError from e  # of Python's stack: inspect makes a TypeError of it
            # The reader does not compare operands, types and regions with what an operation is.
            self.fail(operation, f"its operands, types or regions do not fit it ({e})")
        if isinstance(found, Inlined):
            return found
        self._bind(operation, found)
        return None

    def _emit(self, operation: Operation) -> Sequence[Array] | Inlined:
        """Makes operations of one operation.

        Raises:
          ModuleError: TensorFlow has none for it.
        """
        emitter = self.emitters.get(operation.name)
        self._budget[0] -= 1
        if self._depth > _MAX_DEPTH or self._budget[0] < 0:
            self.fail(operation, "the module's functions call each other without an end")
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
                found = emitter(self, operation, operands)
        else:
            found = emitter(self, operation, operands)
        if self.refuses_bits and graph.version > version:
            # The version counts operations.
            made = graph.get_operations()[version - graph.version :]
            if any(each.type == "Bitcast" for each in made):
                self.fail(operation, "it needs Bitcast, which no converter of graphs knows")
        if isinstance(found, Inlined):
            found.scope._line = line
        return (found,) if isinstance(found, Array) else found

    def array(self, value: Value) -> Array:
        """Returns what a value stands for."""
        scope: Scope | None = self
        while scope is not None:
            if value in scope._values:
                return scope._values[value]
            scope = scope._outer
        raise AssertionError("operands come after what makes them")

    def fail(self, operation: Operation, reason: str) -> NoReturn:
        """Raises the error for an operation that TensorFlow's cannot express.

        Raises:
          ModuleError: always; `reason` says why, as part of a sentence.
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
        """Returns an array's tensor, which broadcasts to its sizes."""
        if array.computed is not None:
            return array.computed
        if (known := array.known) is not None:
            constant = _converter_integers.constant if self.for_converters else tf.constant
            return self.once(("known", array), lambda: constant(known))
        if (formula := array.formula) is not None:
            return self.once(("formula", array), lambda: formula.make(self))
        assert array.parts is not None, "an array has one of four forms"
        dtype = array.tf_dtype
        return self.once(("parts", array.parts, array.sizes, dtype), lambda: self._stack(array))

    def tensor(self, array: Array) -> tf.Tensor:
        """Returns an array's tensor with all its sizes; the broadcast is made once."""
        compact = self.compact(array)
        if self._is_full(array, compact):
            return compact
        return self.once(("full", array), lambda: self._broadcast(compact, array.sizes))

    def full(self, array: Array) -> Array:
        """Returns the array as one whose tensor has all its sizes."""
        tensor = self.tensor(array)
        return array if tensor is array.computed else Array(array.element, array.sizes, tensor)

    def constant(self, array: Array) -> np.ndarray[Any, Any] | None:
        """Returns an array's elements, where they are known, with all its sizes."""
        if array.known is not None and array.is_static:
            return np.broadcast_to(array.known, array.static_sizes())
        if array.parts is not None and all(isinstance(part, int) for part in array.parts):
            flat = np.array(array.parts, array.tf_dtype.as_numpy_dtype)
            return flat.reshape(array.static_sizes())
        return None

    def scalar(self, array: Array) -> Any:
        """Returns the one element of a scalar that is known, as a number; None if it is not."""
        constant = self.constant(array)
        return None if constant is None or constant.size != 1 else constant.reshape(-1)[0]

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns what was made for `key` in this scope or one around it; makes it at first."""
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
        """Computes a number that need not be a size; in int32, where that is exact."""
        if element == "i32" or self._is_exact_in_32_bits(number):
            return self.size(number)
        return self._in_64_bits(number)

    def _is_full(self, array: Array, compact: tf.Tensor) -> bool:
        if compact.shape.rank != array.rank:
            return False
        # A size of the compact form that is not 1 is the array's.
        return all(
            known != 1 or size == 1
            for known, size in zip(compact.shape.as_list(), array.sizes, strict=True)
        )

    def _broadcast(self, compact: tf.Tensor, sizes: tuple[Dim, ...]) -> tf.Tensor:
        lacking = len(sizes) - compact.shape.rank
        inner = Array("", sizes[lacking:], compact)
        if all(size == 1 for size in sizes[:lacking]) and self._is_full(inner, compact):
            # It lacks axes, and repeats nothing.
            # By a reshape: OpenVINO gets StridedSlice with new axes of constants wrong.
            return self.shaped(tf.reshape(compact, self.reshape_shape(sizes)), sizes)
        return self.shaped(tf.broadcast_to(compact, self.shape(sizes)), sizes)

    # Sizes.

    def shape(self, sizes: Sequence[Dim]) -> Any:
        """Returns sizes as TensorFlow takes a shape: a list of ints, or a tensor of int32."""
        found = [self.size(size) for size in sizes]
        if all(isinstance(size, int) for size in found):
            return found
        return self.once(("shape", tuple(sizes)), lambda: tf.stack(found))

    def reshape_shape(self, sizes: Sequence[Dim]) -> Any:
        """Returns sizes as tf.reshape takes them, where one of them may be left to it as -1."""
        unknown = [i for i, size in enumerate(sizes) if not isinstance(size, int)]
        if not unknown or 0 in sizes:
            return self.shape(sizes)
        # The one that would be computed; no other one may be 0.
        computed = [i for i in unknown if not _is_variable(sizes[i])]
        left = (computed or unknown)[-1]
        if any(self.bounds(sizes[i])[0] < 1 for i in unknown if i != left):
            return self.shape(sizes)
        return self.shape([-1 if i == left else size for i, size in enumerate(sizes)])

    def size(self, dimension: Dim) -> Any:
        """Returns a size: an int, or a scalar tensor of int32 that is computed once."""
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
        """Returns a number: an int, or a scalar tensor of int64 that is computed once."""
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
        """Returns whether operations within a sum of products have operands that fit into int32.

        Sums and products may wrap around before the result; other operations may not.
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
                found = scope._variables[name]
                return self.once(("variable", name), found) if callable(found) else found
            scope = scope._outer
        raise AssertionError(f"the size {name} comes before what defines it")

    def knows(self, dimension: Dim) -> bool:
        """Returns whether a size can be computed here: it may be one that a region made."""
        if not isinstance(dimension, DimExpr):
            return True
        names = set(dimension.variables())
        scope: Scope | None = self
        while scope is not None and names:
            names -= scope._variables.keys()
            scope = scope._outer
        return not names

    def new_size(self, tensor: tf.Tensor, *, least: int = 0) -> Dim:
        """Gives a size that is computed in the function a name of its own.

        Args:
          tensor: the size, a scalar of integers.
          least: that it may be.
        """
        return self._named(tensor, least)[1]

    def counter(self, tensor: tf.Tensor, least: int, end: Dim) -> Dim:
        """Does as `new_size` for a loop's counter, which is less than `end`."""
        name, size = self._named(tensor, least)
        limit = f"{size} <= {end - 1}"
        known = self._constraints or SymbolicScope()
        self._constraints = known.with_constraints(limit, check=False)
        self._counters.add(name)
        return size

    def fits(self, number: Dim, element: str) -> bool:
        """Returns whether a number has the same value in a type of integers, which wrap around.

        JAX computes sizes in int32 unless it has 64 bits, so int32 numbers that are made of sizes
        and small constants are taken to fit. Loop counters and large constants are used for more
        than sizes, in random numbers for instance.

        Args:
          number: the exact one.
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
        name = f"_size_{next(self._numbers)}"  # unlike any other, in scopes beside this one too
        number = tf.cast(tensor, tf.int32)
        variable = DimExpr.variable(name)
        if least == 1:
            self._variables[name] = number
            return name, variable
        # A variable is at least 1 in all that is known of expressions.
        size = variable + (least - 1)
        self._variables[name] = functools.partial(tf.add, number, 1 - least)
        self._made["size", size] = number
        return name, size

    def sizes_of(
        self, vector: Array, known: Sequence[int | None], *, least: int = 0
    ) -> tuple[Dim, ...]:
        """Reads a vector of integers as sizes, of which some are known from a type.

        Args:
          vector: the integers.
          known: those that the type has.
          least: that the others may be.
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
        """Notes on a tensor what is known of its shape, which TensorFlow may not have seen."""
        tensor.set_shape([size if isinstance(size, int) else None for size in sizes])
        return tensor

    def bounds(self, dimension: Dim) -> tuple[float, float]:
        """Returns bounds of a size, or of a number that is made of sizes, both inclusive."""
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
        """Makes an array of a tensor; sizes that are None are asked from the tensor itself."""
        shape: list[tf.Tensor] = []
        found: list[Dim] = []
        for axis, size in enumerate(sizes):
            if size is None:
                shape = shape or [tf.shape(tensor)]
                size = self.new_size(shape[0][axis])
            found.append(size)
        return self.made(tensor, element, found)

    def result(self, operation: Operation, tensor: tf.Tensor, sizes: Sequence[Dim]) -> Array:
        """Makes an array of an operation's first result, of a tensor that has all its sizes."""
        kind = operation.results[0].tensor
        return self.made(tensor, kind.element, typed(kind.shape, sizes))

    def made(self, tensor: tf.Tensor, element: str, sizes: Sequence[Dim]) -> Array:
        """Makes an array of a tensor, which may be compact."""
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


class _Frame:
    """A block of which operations are being made."""

    def __init__(self, scope: Scope, block: Block, arguments: Sequence[Array]) -> None:
        scope._values.update(zip(block.arguments, arguments, strict=True))
        self.scope, self.block = scope, block
        self.operations = iter(block.operations[:-1])


def _is_variable(size: Dim) -> bool:
    return any(size == DimExpr.variable(name) for name in variables_of(size))


def typed(known: Sequence[int | None], sizes: Sequence[Dim]) -> tuple[Dim, ...]:
    """Returns sizes with the numbers that a type has in their places.

    In a body that is applied to many elements at once the type has none of the axes.
    """
    if len(known) != len(sizes):
        return tuple(sizes)
    return tuple(
        size if number is None else number for number, size in zip(known, sizes, strict=True)
    )


def type_sizes(kind: TensorType) -> tuple[int, ...] | None:
    """Returns the sizes of a type, if all are numbers."""
    found = tuple(size for size in kind.shape if size is not None)
    return found if len(found) == len(kind.shape) else None


def broadcast_sizes(arrays: Sequence[Array]) -> tuple[Dim, ...]:
    """Returns the sizes of a result of an elementwise operation.

    Its operands have the same ones, but in a body that is applied to many elements at once, where
    some are scalars.
    """
    return functools.reduce(_broadcast_pair, (array.sizes for array in arrays))


def _broadcast_pair(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> tuple[Dim, ...]:
    if len(left) != len(right):
        return left if len(left) > len(right) else right
    # A number says more than an expression; a size of 1 may be repeated.
    return tuple(
        b if a == 1 or (isinstance(b, int) and b != 1) else a
        for a, b in zip(left, right, strict=True)
    )
