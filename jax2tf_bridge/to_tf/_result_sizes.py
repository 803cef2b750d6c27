"""Results that would be too large: a module computes sizes in 32 bits, and they may wrap around."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.to_tf._shape_guards import Guards, SizeAlgebra
from shape_poly import Dim, DimExpr, symbolic_dim_bounds

Shapes = Sequence[tuple[Dim, ...]]

_LARGEST = 2**31 - 1
_WRAPS = 2**32
"""From here on a size may wrap around to another one; below it becomes negative, which XLA sees."""
_MOST_SHOWN = 10**30


class ResultSizes:
    """Sizes of the results of one call, beside those of its arguments.

    Attributes:
      name: the function's, for messages.
      results, arguments: their shapes, as the portable function has them.
    """

    def __init__(self, name: str, results: Shapes, arguments: Shapes) -> None:
        """For a function of these shapes."""
        self.name, self.results, self.arguments = name, tuple(results), tuple(arguments)

    def check(self, known: Sequence[Sequence[int | None]]) -> None:
        """Raises where a size is known, and the module could come to another.

        Args:
          known: the sizes of the results, None where one is not known.

        Raises:
          ShapeError: a size does not fit into 32 bits.
        """
        for i, (shape, sizes) in enumerate(zip(self.results, known, strict=True)):
            for dimension, size in zip(shape, sizes, strict=True):
                if size is not None and size >= _WRAPS and dimension in self._computed():
                    raise ShapeError(
                        f"{self._problem(dimension)}. Result {i} would have this size, "
                        f"{_number_text(size)} here. Call it with smaller sizes."
                    )

    def guard(self, values: Mapping[str, Any], guards: Guards) -> None:
        """Has the same found out at run time for the sizes that are not known.

        Args:
          values: of the variables: ints, or tensors of int32 or int64.
          guards: takes one more for each of these sizes.
        """
        for dimension in _wrapping(self.results, self.arguments):
            names = sorted(dimension.variables())
            if not values.keys() >= set(names):
                continue  # the sizes contradict each other, which another guard says
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

    def _computed(self) -> frozenset[Dim]:
        return _computed(self.results, self.arguments)

    def _problem(self, dimension: Dim) -> str:
        return (
            f"{self.name} computes sizes in 32 bits, as every function that JAX exports, and "
            f"{dimension} does not fit"
        )


def _number_text(size: int) -> str:
    # Python refuses to write integers with thousands of digits.
    return str(size) if size < _MOST_SHOWN else "more than 10^30"


def _computed(results: Shapes, arguments: Shapes) -> frozenset[Dim]:
    """Yields the sizes that no argument has: those are there, and nothing computes them."""
    given = {d for shape in arguments for d in shape}
    return frozenset(d for shape in results for d in shape if isinstance(d, DimExpr)) - given


@functools.lru_cache(maxsize=1024)
def _wrapping(results: Shapes, arguments: Shapes) -> tuple[DimExpr, ...]:
    """Yields the sizes of results that may wrap around, for some sizes of the arguments."""
    computed = [d for d in _computed(results, arguments) if isinstance(d, DimExpr)]
    return tuple(d for d in sorted(computed, key=str) if _may_wrap(d))


def _may_wrap(dimension: DimExpr) -> bool:
    ranges = dict.fromkeys(dimension.variables(), (1, _LARGEST))
    _, upper = symbolic_dim_bounds(dimension, ranges=ranges)
    return upper >= _WRAPS


class CheckedArithmetic:
    """An algebra of sizes as int32 tensors, and of ints, that knows whether any wrapped around.

    Attributes:
      room: negative if one did; an int as long as that depends on nothing unknown.
    """

    def __init__(self) -> None:
        """Nothing is computed yet."""
        self.room: Any = _LARGEST
        self._plain = SizeAlgebra(tf.int32)

    def constant(self, value: int) -> Any:
        """Returns the int."""
        return value

    def add(self, left: Any, right: Any) -> Any:
        """Their sum."""
        plain, (left, right) = self._plain, self._within(left, right)
        if not (isinstance(left, int) and isinstance(right, int)):
            # What lies on the same side of zero must not reach beyond the largest together.
            up = [plain.maximum(side, 0) for side in (left, right)]
            down = [plain.multiply(plain.minimum(side, 0), -1) for side in (left, right)]
            for first, second in (up, down):
                self._require(plain.add(self._negative(first), self._left_of_largest(second)))
        return plain.add(left, right)

    def multiply(self, left: Any, right: Any) -> Any:
        """Their product."""
        plain, (left, right) = self._plain, self._within(left, right)
        if not (isinstance(left, int) and isinstance(right, int)):
            first, second = (plain.maximum(side, self._negative(side)) for side in (left, right))
            self._require(plain.add(_times_in_largest(second), self._negative(first)))
        return plain.multiply(left, right)

    def floordiv(self, left: Any, right: Any) -> Any:
        """Returns the quotient rounded down."""
        return self._plain.floordiv(*self._within(left, right))

    def mod(self, left: Any, right: Any) -> Any:
        """Returns the remainder with the divisor's sign."""
        return self._plain.mod(*self._within(left, right))

    def maximum(self, left: Any, right: Any) -> Any:
        """Returns the greater one."""
        return self._plain.maximum(*self._within(left, right))

    def minimum(self, left: Any, right: Any) -> Any:
        """Returns the lesser one."""
        return self._plain.minimum(*self._within(left, right))

    def _negative(self, value: Any) -> Any:
        return self._plain.multiply(value, -1)

    def _left_of_largest(self, value: Any) -> Any:
        return self._plain.add(_LARGEST, self._negative(value))

    def _within(self, left: Any, right: Any) -> tuple[Any, Any]:
        """Both; in the place of an int that is too large another, and no room."""
        if isinstance(left, int) and isinstance(right, int):
            return left, right
        for side in (left, right):
            if isinstance(side, int) and abs(side) > _LARGEST:
                self.room = -1
                return (_LARGEST if side is left else left), (_LARGEST if side is right else right)
        return left, right

    def _require(self, room: Any) -> None:
        self.room = self._plain.minimum(self.room, room)


def _times_in_largest(value: Any) -> Any:
    """Returns how often a size of at least 0 fits into the largest; for 0 as for 1."""
    if isinstance(value, int):
        return _LARGEST // max(value, 1)
    return tf.math.floordiv(tf.constant(_LARGEST, tf.int32), tf.maximum(value, 1))
