"""Guards: operations that check sizes at run time if they are not known before."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from jax2tf_bridge.emitters import SizeAlgebra, largest_constant
from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.to_tensorflow._dtypes import static_shape
from shape_poly import (
    Comparison,
    ComparisonOperator,
    Dim,
    DimExpr,
    shape_text,
    symbolic_dim_bounds,
)

_MAX_PRINTED_SIZES = 64
"""Number of elements of a shape that Assert prints: enough for all of them."""


def choose_size_dtype(
    shapes: Iterable[Sequence[Dim]], constraints: Iterable[Comparison]
) -> tf.DType:
    """Returns the dtype for computing with sizes: int32, unless a constant needs int64.

    TensorFlow's int32 kernels keep sizes on the host; its int64 kernels compute on the GPU.
    """
    sides = [side for c in constraints for side in (c.left, c.right)]
    largest = (largest_constant(d) for d in [*sides, *(d for s in shapes for d in s)])
    return tf.int32 if max(largest, default=0) <= tf.int32.max else tf.int64


class Guards:
    """Collects guards, which run in order, so that the first one that fails is reported.

    Attributes:
      last: the last guard, which must run before the function does; empty without guards.
    """

    def __init__(self, algebra: SizeAlgebra) -> None:
        self._algebra = algebra
        self.last: list[tf.Operation] = []

    def sizes(
        self, tensor: tf.Tensor, rank: int, make_rank_message: Callable[[Any], Sequence[Any]]
    ) -> tuple[Sequence[Any], Any]:
        """Returns a tensor's sizes, ints where they are known, and its shape for messages.

        Args:
          tensor: a tensor of this rank, or of unknown rank, for which a guard is added.
          rank: the required rank.
          make_rank_message: makes the message for another rank from the tensor's shape.
        """
        if tensor.shape.is_fully_defined():
            return static_shape(tensor), format_known_shape(tensor)
        shape = tf.shape(tensor, self._algebra.dtype)
        if tensor.shape.rank is None:
            self.require(
                "==",
                tf.size(shape, out_type=self._algebra.dtype),
                rank,
                make_rank_message(shape),
            )
            # Read one by one after the guard, because the rank may be lower. With tf.unstack,
            # TensorFlow would infer the rank from the number of results, and drop the guard.
            with tf.control_dependencies(self.last):
                return [shape[axis] for axis in range(rank)], shape
        static_sizes, sizes = static_shape(tensor), tf.unstack(shape)
        return [s if k is None else k for k, s in zip(static_sizes, sizes, strict=True)], shape

    def require(
        self, comparison: ComparisonOperator, left: Any, right: Any, message: Sequence[Any]
    ) -> None:
        """Adds a guard; `message` is the text and tensors that it prints when it fails."""
        condition = self._algebra.compare(comparison, left, right)
        with tf.control_dependencies(self.last):
            guard = tf.raw_ops.Assert(
                condition=condition,
                data=list(_join_texts(message)),
                summarize=_MAX_PRINTED_SIZES,
                name="jax2tf_shape_check",
            )
        self.last = [guard]


def _join_texts(message: Sequence[Any]) -> Iterable[Any]:
    """Joins neighbouring texts of a message, because TensorFlow puts each piece in brackets."""
    for is_text, pieces in itertools.groupby(message, lambda piece: isinstance(piece, (str, int))):
        if not is_text:
            yield from pieces
        elif text := "".join(map(str, pieces)):
            yield text.strip()


def format_known_shape(tensor: tf.Tensor) -> str:
    """Formats a tensor's shape for messages, with ? for each unknown size."""
    if tensor.shape.rank is None:
        return "an unknown rank"
    return shape_text("?" if size is None else size for size in static_shape(tensor))


# Results that are too large: modules compute sizes in 32 bits, which may wrap.

Shapes: TypeAlias = Sequence[tuple[Dim, ...]]

_MAX_SIZE = 2**31 - 1
_MIN_WRAPPING_SIZE = 2**32
"""Minimum size that may wrap to a valid size; smaller ones wrap to negative sizes, which XLA
rejects."""
_MAX_SHOWN = 10**30


def check_result_sizes(
    name: str, results: Shapes, arguments: Shapes, known_sizes: Sequence[Sequence[int | None]]
) -> None:
    """Raises if a known size is so large that the module would compute another one.

    Args:
      name: the name of the function, for messages.
      results: the shapes of its results in the portable function.
      arguments: the shapes of its arguments.
      known_sizes: the sizes of the results, None for each unknown size.

    Raises:
      ShapeError: a size does not fit into 32 bits.
    """
    for i, (shape, sizes) in enumerate(zip(results, known_sizes, strict=True)):
        for dimension, size in zip(shape, sizes, strict=True):
            if size is None or size < _MIN_WRAPPING_SIZE:
                continue
            if dimension in _find_computed(results, arguments):
                # Python refuses to write integers with thousands of digits.
                digits = size if size < _MAX_SHOWN else "more than 10^30"
                raise ShapeError(
                    f"{_describe_overflow(name, dimension)}. Result {i} would have this size, "
                    f"{digits} here. Call it with smaller sizes."
                )


def guard_result_sizes(
    name: str, results: Shapes, arguments: Shapes, values: Mapping[str, Any], guards: Guards
) -> None:
    """Adds guards that check the unknown sizes at run time.

    Args:
      name: the name of the function, for messages.
      results: the shapes of its results in the portable function.
      arguments: the shapes of its arguments.
      values: the values of the variables: ints, or tensors of int32 or int64.
      guards: receives one guard for each size that may wrap.
    """
    for dimension in _list_wrapping_sizes(tuple(results), tuple(arguments)):
        names = sorted(dimension.variables())
        if not values.keys() >= set(names):
            continue  # the sizes contradict each other, which another guard reports
        if all(isinstance(values[variable], int) for variable in names):
            continue
        sizes = {
            variable: value if isinstance(value, int) else tf.cast(value, tf.int32)
            for variable, value in values.items()
        }
        arithmetic = CheckedArithmetic()
        dimension.evaluate_with(sizes, arithmetic)
        message: list[Any] = [
            f"{_describe_overflow(name, dimension)}. Call it with smaller sizes than "
        ]
        for i, variable in enumerate(names):
            message += [f"{', ' if i else ''}{variable} =", values[variable]]
        guards.require(">=", arithmetic.room, 0, message)


def _describe_overflow(name: str, dimension: Dim) -> str:
    return (
        f"{name} computes sizes in 32 bits, like every function that JAX exports, and {dimension} "
        "does not fit"
    )


def _find_computed(results: Shapes, arguments: Shapes) -> frozenset[DimExpr]:
    """Returns the result sizes that the module computes; sizes of arguments are not computed."""
    computed = {d for shape in results for d in shape if isinstance(d, DimExpr)}
    return frozenset(computed.difference(d for shape in arguments for d in shape))


@functools.lru_cache(maxsize=1024)
def _list_wrapping_sizes(results: Shapes, arguments: Shapes) -> tuple[DimExpr, ...]:
    """Returns the result sizes that may wrap around for some sizes of the arguments."""
    computed = sorted(_find_computed(results, arguments), key=str)
    return tuple(dimension for dimension in computed if _may_wrap(dimension))


def _may_wrap(dimension: DimExpr) -> bool:
    ranges = dict.fromkeys(dimension.variables(), (1, _MAX_SIZE))
    _, upper = symbolic_dim_bounds(dimension, ranges=ranges)
    return upper >= _MIN_WRAPPING_SIZE


class CheckedArithmetic(SizeAlgebra):
    """An algebra of sizes, ints or int32 tensors, that detects overflow.

    Attributes:
      room: the distance to overflow, negative if a size overflowed. An int while it depends on
        known sizes only, else a tensor.
    """

    def __init__(self) -> None:
        """Starts with full room, because nothing is computed yet."""
        super().__init__(tf.int32)
        self.room: Any = _MAX_SIZE

    def add(self, left: Any, right: Any) -> Any:
        """Returns the sum."""
        left, right = self._limit(left, right)
        if not (isinstance(left, int) and isinstance(right, int)):
            # The sum of two operands of equal sign must not exceed the largest size.
            up = [self.maximum(side, 0) for side in (left, right)]
            down = [self._negate(self.minimum(side, 0)) for side in (left, right)]
            for first, second in (up, down):
                left_over = super().add(_MAX_SIZE, self._negate(second))
                self._require_room(super().add(self._negate(first), left_over))
        return super().add(left, right)

    def multiply(self, left: Any, right: Any) -> Any:
        """Returns the product."""
        left, right = self._limit(left, right)
        if not (isinstance(left, int) and isinstance(right, int)):
            first, second = (self.maximum(side, self._negate(side)) for side in (left, right))
            self._require_room(super().add(_divide_max_by(second), self._negate(first)))
        return super().multiply(left, right)

    def _compute(
        self,
        int_operation: Callable[..., int],
        tensor_operation: Callable[..., Any],
        left: Any,
        right: Any,
    ) -> Any:
        return super()._compute(int_operation, tensor_operation, *self._limit(left, right))

    def _negate(self, value: Any) -> Any:
        return super().multiply(value, -1)

    def _limit(self, left: Any, right: Any) -> tuple[Any, Any]:
        """Returns both operands; replaces an int that is too large, and sets `room` negative."""
        is_too_large = [isinstance(side, int) and abs(side) > _MAX_SIZE for side in (left, right)]
        if (isinstance(left, int) and isinstance(right, int)) or not any(is_too_large):
            return left, right
        self.room = -1
        return (_MAX_SIZE, right) if is_too_large[0] else (left, _MAX_SIZE)

    def _require_room(self, room: Any) -> None:
        self.room = self.minimum(self.room, room)


def _divide_max_by(value: Any) -> Any:
    """Returns the largest size divided by `value`, rounded down; a value of 0 counts as 1."""
    if isinstance(value, int):
        return _MAX_SIZE // max(value, 1)
    return tf.math.floordiv(tf.constant(_MAX_SIZE, tf.int32), tf.maximum(value, 1))
