"""Sizes: numbers, or expressions in variables, which TensorFlow computes when the graph runs."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
from collections import ChainMap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from jax2tf_bridge.emitters._array import Arrays, Shape, plain
from jax2tf_bridge.emitters._ops import ops
from shape_poly import (
    ComparisonOperator,
    Dim,
    DimExpr,
    DimOperation,
    SymbolicScope,
    symbolic_dim_bounds,
    variables_of,
)
from shape_poly import operation as size_operation

_COMPARE: Mapping[ComparisonOperator, Callable[[Any, Any], Any]] = {
    ">=": ops.greater_equal,
    "<=": ops.less_equal,
    "==": ops.equal,
    ">": ops.greater,
    "<": ops.less,
    "!=": ops.not_equal,
}


def largest_constant(dimension: Dim) -> int:
    """Returns the largest absolute constant in a size, including those in nested operations."""
    return max((abs(constant) for constant in _constants(dimension)), default=0)


def _constants(dimension: Dim) -> Iterable[int]:
    if isinstance(dimension, int):
        yield dimension
        return
    for monomial, coefficient in dimension.terms:
        yield coefficient
        for atom, _ in monomial:
            if isinstance(atom, DimOperation):
                for operand in atom.operands:
                    yield from _constants(operand)


@dataclass(frozen=True)
class SizeAlgebra:
    """Computes with sizes, which are ints if known, else tensors of `dtype`."""

    dtype: ops.DType

    def constant(self, value: int) -> Any:
        """Returns the int; it becomes a tensor only in an operation with a tensor."""
        return value

    def add(self, left: Any, right: Any) -> Any:
        """Returns the sum."""
        return self._compute(operator.add, ops.add, left, right)

    def multiply(self, left: Any, right: Any) -> Any:
        """Returns the product."""
        return self._compute(operator.mul, ops.multiply, left, right)

    def floordiv(self, left: Any, right: Any) -> Any:
        """Returns the quotient rounded down; the result is arbitrary if an unknown divisor is 0."""
        return self._compute(operator.floordiv, ops.math.floordiv, left, _avoid_zero(right))

    def mod(self, left: Any, right: Any) -> Any:
        """Returns the remainder with the divisor's sign; arbitrary if an unknown divisor is 0."""
        return self._compute(operator.mod, ops.math.floormod, left, _avoid_zero(right))

    def maximum(self, left: Any, right: Any) -> Any:
        """Returns the larger operand."""
        return self._compute(max, ops.maximum, left, right)

    def minimum(self, left: Any, right: Any) -> Any:
        """Returns the smaller operand."""
        return self._compute(min, ops.minimum, left, right)

    def compare(self, comparison: ComparisonOperator, left: Any, right: Any) -> ops.Tensor:
        """Returns the result of the comparison as a bool tensor."""
        return _COMPARE[comparison](self._tensor(left), self._tensor(right))

    def _compute(
        self,
        int_operation: Callable[[int, int], int],
        tensor_operation: Callable[[ops.Tensor, ops.Tensor], ops.Tensor],
        left: Any,
        right: Any,
    ) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            return int_operation(left, right)
        return tensor_operation(self._tensor(left), self._tensor(right))

    def _tensor(self, value: Any) -> ops.Tensor:
        return ops.constant(value, self.dtype) if isinstance(value, int) else value


def _avoid_zero(divisor: Any) -> Any:
    """Replaces an unknown divisor of 0 by 1, so that the guard fails and not the kernel."""
    if isinstance(divisor, int):
        return divisor
    return ops.where(ops.equal(divisor, 0), ops.ones_like(divisor), divisor)


class Cache:
    """Objects that are made once in a graph; an inner graph also finds those of the outer ones."""

    def __init__(self, outer: Cache | None = None) -> None:
        self._objects: ChainMap[Hashable, Any] = (
            ChainMap() if outer is None else outer._objects.new_child()
        )

    def get_or_make(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns the object of a key; makes it if missing."""
        for objects in self._objects.maps:  # faster than the lookup of a ChainMap
            if key in objects:
                return objects[key]
        self._objects[key] = new = make()
        return new

    def add(self, key: Hashable, value: Any) -> None:
        """Adds an object that exists."""
        self._objects[key] = value


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


_LIMITS = MappingProxyType({"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1)})
"""Minimum and maximum of the types that JAX uses for sizes."""
_MAX_SIZE = 2**31 - 1
"""Maximum size of an axis: StableHLO reads sizes as int32."""
_MAX_FACTOR = 1 << 20
"""Maximum constant for which int32 arithmetic counts as arithmetic on sizes, which never wraps."""

MIN_COMPUTED_AMOUNT = -(1 << 28)
"""Assumed minimum of computed numbers that are not sizes, such as padding. Sums of several of them
fit into 32 bits."""


class Sizes:
    """Sizes in one graph: what is known of their variables, and the tensors that compute them."""

    def __init__(
        self,
        cache: Cache,
        variables: Mapping[str, Any],
        constraints: SymbolicScope | None,
        *,
        for_converters: bool,
    ) -> None:
        """Stores what is known.

        Args:
          cache: the cache of the graph.
          variables: maps variables to ints, scalar int32 tensors, or functions that make these.
          constraints: the constraints on the variables.
          for_converters: whether tf2onnx or OpenVINO reads the graph.
        """
        self._cache, self._for_converters = cache, for_converters
        self._variables: ChainMap[str, Any] = ChainMap(dict(variables))
        self._constraints = constraints
        # Inner graphs share the following with the enclosing one.
        self._numbers = itertools.count()
        self._counters: set[str] = set()
        self._exceeds_32_bits = [False]

    def inner(self, cache: Cache) -> Sizes:
        sizes = copy.copy(self)
        sizes._cache, sizes._variables = cache, self._variables.new_child()
        return sizes

    def shape(self, sizes: Shape) -> Any:
        """Returns sizes as a shape for TensorFlow: a list of ints, or an int32 tensor."""
        result = [self.size(size) for size in sizes]
        if all(isinstance(size, int) for size in result):
            return result
        return self._cache.get_or_make(("shape", tuple(sizes)), lambda: ops.stack(result))

    def reshape_shape(self, sizes: Shape) -> Any:
        """Returns sizes for ops.reshape, where one of them may be -1."""
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
        return self._cache.get_or_make(("size", dimension), lambda: self._compute(dimension))

    def number(self, dimension: Dim, dtype: ops.DType) -> ops.Tensor:
        """Returns a size as a scalar tensor of a dtype."""
        size = self.size(dimension)
        if isinstance(size, int):
            return ops.constant(np.array(size).astype(dtype.as_numpy_dtype), dtype)
        return ops.cast(size, dtype)

    def _compute(self, dimension: DimExpr) -> Any:
        if self._exceeds_32_bits[0] and not self._has_exact_operands(dimension):
            number = self._in_64_bits(dimension)
            return number if isinstance(number, int) else ops.cast(number, ops.int32)
        values = {name: self._variable(name) for name in dimension.variables()}
        return dimension.evaluate_with(values, self._algebra(ops.int32))

    def _in_64_bits(self, dimension: Dim) -> Any:
        """Returns a number: an int, or a cached scalar int64 tensor."""
        if not isinstance(dimension, DimExpr):
            return dimension

        def make() -> Any:
            values = {name: self._variable_in_64_bits(name) for name in dimension.variables()}
            return dimension.evaluate_with(values, self._algebra(ops.int64))

        return self._cache.get_or_make(("64 bits", dimension), make)

    def _algebra(self, dtype: ops.DType) -> SizeAlgebra:
        return _SizesForConverters(dtype) if self._for_converters else SizeAlgebra(dtype)

    def _variable_in_64_bits(self, name: str) -> Any:
        size = self._variable(name)
        if isinstance(size, int):
            return size
        return self._cache.get_or_make(
            ("variable in 64 bits", name), lambda: ops.cast(size, ops.int64)
        )

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
        assert name in self._variables, f"the size {name} is used before its definition"
        size = self._variables[name]
        return self._cache.get_or_make(("variable", name), size) if callable(size) else size

    def knows(self, dimension: Dim) -> bool:
        """Returns whether a size can be computed here; sizes of an inner region cannot."""
        return all(name in self._variables for name in variables_of(dimension))

    def new_size(self, tensor: ops.Tensor, *, least: int = 0) -> Dim:
        """Makes a new variable for a computed size.

        Args:
          tensor: the size, a scalar integer tensor.
          least: the minimum of the size.
        """
        return self._add_variable(tensor, least)[1]

    def counter(self, tensor: ops.Tensor, least: int, end: Dim) -> Dim:
        """Makes a new variable for a loop's counter, which is less than `end`."""
        name, size = self._add_variable(tensor, least)
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

    def _add_variable(self, tensor: ops.Tensor, least: int) -> tuple[str, Dim]:
        name = f"_size_{next(self._numbers)}"  # unique, also among sibling scopes
        number = ops.cast(tensor, ops.int32)
        variable = DimExpr.variable(name)
        if least == 1:
            self._variables[name] = number
            return name, variable
        # Expressions assume that a variable is at least 1.
        size = variable + (least - 1)
        self._variables[name] = functools.partial(ops.add, number, 1 - least)
        self._cache.add(("size", size), number)
        return name, size

    def compute_exactly(self, number: Dim, element: str) -> Any:
        """Computes a number that may not be a size; in int32 if that is exact."""
        if element == "i32" or self._is_exact_in_32_bits(number):
            return self.size(number)
        return self._in_64_bits(number)

    def bounds(self, dimension: Dim) -> tuple[float, float]:
        """Returns inclusive bounds of a size or of a number computed from sizes."""
        if not isinstance(dimension, DimExpr):
            return dimension, dimension
        ranges = {name: self._range(name) for name in dimension.variables()}
        return symbolic_dim_bounds(dimension, self._constraints, ranges=ranges)

    def _range(self, name: str) -> tuple[int, int]:
        size = next((sizes[name] for sizes in self._variables.maps if name in sizes), None)
        return (size, size) if isinstance(size, int) else (1, _MAX_SIZE)

    def compare(self, direction: str, left: Dim, right: Dim) -> bool | None:
        """Compares two sizes; None if the result depends on the variables."""
        lower, upper = self.bounds(left - right)
        verdicts: Mapping[str, tuple[bool, bool]] = {
            "EQ": (lower == upper == 0, lower > 0 or upper < 0),
            "NE": (lower > 0 or upper < 0, lower == upper == 0),
            "LT": (upper < 0, lower >= 0),
            "LE": (upper <= 0, lower > 0),
            "GT": (lower > 0, upper <= 0),
            "GE": (lower >= 0, upper < 0),
        }
        holds, fails = verdicts[direction]
        return True if holds else False if fails else None

    def maximum(self, left: Dim, right: Dim) -> Dim:
        """Returns the larger one of two sizes."""
        at_least = self.compare("GE", left, right)
        if at_least is not None:
            return left if at_least else right
        return plain(size_operation("max", left, right))


def _is_variable(size: Dim) -> bool:
    return any(size == DimExpr.variable(name) for name in variables_of(size))


def fill_sizes(known: Sequence[int | None], sizes: Shape) -> tuple[Dim, ...]:
    """Returns sizes, replaced by numbers that the type has.

    In a body that is applied to many elements at once, the type lacks all axes.
    """
    if len(known) != len(sizes):
        return tuple(sizes)
    return tuple(
        size if number is None else number for number, size in zip(known, sizes, strict=True)
    )


def find_broadcast_sizes(arrays: Arrays) -> tuple[Dim, ...]:
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
