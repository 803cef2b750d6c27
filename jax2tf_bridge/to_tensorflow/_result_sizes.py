"""Checks for results that are too large: modules compute sizes in 32 bits, which may wrap."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.to_tensorflow._shape_guards import Guards, SizeAlgebra
from shape_poly import Dim, DimExpr, symbolic_dim_bounds

Shapes = Sequence[tuple[Dim, ...]]

_MAX_SIZE = 2**31 - 1
_MIN_WRAPPING_SIZE = 2**32
"""Sizes from here on may wrap to a valid size; smaller ones become negative, which XLA detects."""
_MAX_SHOWN = 10**30


class ResultSizes:
    """Checks of the result sizes of one call.

    Attributes:
      name: the name of the function, for messages.
      results, arguments: their shapes in the portable function.
    """

    def __init__(self, name: str, results: Shapes, arguments: Shapes) -> None:
        """Takes the symbolic shapes of the results and arguments."""
        self.name, self.results, self.arguments = name, tuple(results), tuple(arguments)

    def check(self, known: Sequence[Sequence[int | None]]) -> None:
        """Raises if a known size is so large that the module would compute another one.

        Args:
          known: the sizes of the results, None for each unknown size.

        Raises:
          ShapeError: a size does not fit into 32 bits.
        """
        for i, (shape, sizes) in enumerate(zip(self.results, known, strict=True)):
            for dimension, size in zip(shape, sizes, strict=True):
                if (
                    size is not None
                    and size >= _MIN_WRAPPING_SIZE
                    and dimension in self._find_computed()
                ):
                    raise ShapeError(
                        f"{self._problem(dimension)}. Result {i} would have this size, "
                        f"{_format_size(size)} here. Call it with smaller sizes."
                    )

    def guard(self, values: Mapping[str, Any], guards: Guards) -> None:
        """Adds guards that check the unknown sizes at run time.

        Args:
          values: the values of the variables: ints, or tensors of int32 or int64.
          guards: receives one guard for each size that may wrap.
        """
        for dimension in _list_wrapping_sizes(self.results, self.arguments):
            names = sorted(dimension.variables())
            if not values.keys() >= set(names):
                continue  # the sizes contradict each other, which another guard reports
            if all(isinstance(values[name], int) for name in names):
                continue
            sizes = {
                name: value if isinstance(value, int) else tf.cast(value, tf.int32)
                for name, value in values.items()
            }
            arithmetic = CheckedArithmetic()
            dimension.evaluate_with(sizes, arithmetic)
            message: list[Any] = [f"{self._problem(dimension)}. Call it with smaller sizes than "]
            for i, name in enumerate(names):
                message += [f"{', ' if i else ''}{name} =", values[name]]
            guards.require(">=", arithmetic.room, 0, message)

    def _find_computed(self) -> frozenset[Dim]:
        return _find_computed(self.results, self.arguments)

    def _problem(self, dimension: Dim) -> str:
        return (
            f"{self.name} computes sizes in 32 bits, as every function that JAX exports, and "
            f"{dimension} does not fit"
        )


def _format_size(size: int) -> str:
    # Python refuses to write integers with thousands of digits.
    return str(size) if size < _MAX_SHOWN else "more than 10^30"


def _find_computed(results: Shapes, arguments: Shapes) -> frozenset[Dim]:
    """Returns the result sizes that the module computes; sizes of arguments are not computed."""
    argument_sizes = {d for shape in arguments for d in shape}
    return (
        frozenset(d for shape in results for d in shape if isinstance(d, DimExpr)) - argument_sizes
    )


@functools.lru_cache(maxsize=1024)
def _list_wrapping_sizes(results: Shapes, arguments: Shapes) -> tuple[DimExpr, ...]:
    """Returns the result sizes that may wrap around for some sizes of the arguments."""
    computed = [d for d in _find_computed(results, arguments) if isinstance(d, DimExpr)]
    return tuple(d for d in sorted(computed, key=str) if _may_wrap(d))


def _may_wrap(dimension: DimExpr) -> bool:
    ranges = dict.fromkeys(dimension.variables(), (1, _MAX_SIZE))
    _, upper = symbolic_dim_bounds(dimension, ranges=ranges)
    return upper >= _MIN_WRAPPING_SIZE


class CheckedArithmetic:
    """An algebra of sizes, ints or int32 tensors, that detects overflow.

    Attributes:
      room: the distance to overflow, negative if a size overflowed. An int while it depends on
        known sizes only, else a tensor.
    """

    def __init__(self) -> None:
        """Starts with full room, because nothing is computed yet."""
        self.room: Any = _MAX_SIZE
        self._plain = SizeAlgebra(tf.int32)

    def constant(self, value: int) -> Any:
        """Returns `value` unchanged."""
        return value

    def add(self, left: Any, right: Any) -> Any:
        """Returns the sum."""
        plain, (left, right) = self._plain, self._limit(left, right)
        if not (isinstance(left, int) and isinstance(right, int)):
            # The sum of two operands of equal sign must not exceed the largest size.
            up = [plain.maximum(side, 0) for side in (left, right)]
            down = [plain.multiply(plain.minimum(side, 0), -1) for side in (left, right)]
            for first, second in (up, down):
                self._require_room(plain.add(self._negate(first), self._subtract_from_max(second)))
        return plain.add(left, right)

    def multiply(self, left: Any, right: Any) -> Any:
        """Returns the product."""
        plain, (left, right) = self._plain, self._limit(left, right)
        if not (isinstance(left, int) and isinstance(right, int)):
            first, second = (plain.maximum(side, self._negate(side)) for side in (left, right))
            self._require_room(plain.add(_divide_max_by(second), self._negate(first)))
        return plain.multiply(left, right)

    def floordiv(self, left: Any, right: Any) -> Any:
        """Returns the quotient rounded down."""
        return self._plain.floordiv(*self._limit(left, right))

    def mod(self, left: Any, right: Any) -> Any:
        """Returns the remainder with the divisor's sign."""
        return self._plain.mod(*self._limit(left, right))

    def maximum(self, left: Any, right: Any) -> Any:
        """Returns the larger operand."""
        return self._plain.maximum(*self._limit(left, right))

    def minimum(self, left: Any, right: Any) -> Any:
        """Returns the smaller operand."""
        return self._plain.minimum(*self._limit(left, right))

    def _negate(self, value: Any) -> Any:
        return self._plain.multiply(value, -1)

    def _subtract_from_max(self, value: Any) -> Any:
        return self._plain.add(_MAX_SIZE, self._negate(value))

    def _limit(self, left: Any, right: Any) -> tuple[Any, Any]:
        """Returns both operands; replaces an int that is too large, and sets `room` negative."""
        if isinstance(left, int) and isinstance(right, int):
            return left, right
        for side in (left, right):
            if isinstance(side, int) and abs(side) > _MAX_SIZE:
                self.room = -1
                return (_MAX_SIZE if side is left else left), (
                    _MAX_SIZE if side is right else right
                )
        return left, right

    def _require_room(self, room: Any) -> None:
        self.room = self._plain.minimum(self.room, room)


def _divide_max_by(value: Any) -> Any:
    """Returns the largest size divided by `value`, rounded down; a value of 0 counts as 1."""
    if isinstance(value, int):
        return _MAX_SIZE // max(value, 1)
    return tf.math.floordiv(tf.constant(_MAX_SIZE, tf.int32), tf.maximum(value, 1))
