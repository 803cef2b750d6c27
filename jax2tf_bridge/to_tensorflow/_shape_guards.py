"""Guards: operations that check sizes at run time, if the sizes are unknown before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf_bridge.to_tensorflow._dtypes import static_shape
from shape_poly import Comparison, ComparisonOperator, Dim, DimOperation, shape_text

_COMPARE: Mapping[ComparisonOperator, Callable[[Any, Any], Any]] = {
    ">=": tf.greater_equal,
    "<=": tf.less_equal,
    "==": tf.equal,
    ">": tf.greater,
    "<": tf.less,
    "!=": tf.not_equal,
}
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

    dtype: tf.DType

    def constant(self, value: int) -> Any:
        """Returns the int; it becomes a tensor only in an operation with a tensor."""
        return value

    def add(self, left: Any, right: Any) -> Any:
        """Returns the sum."""
        if _is_known(left, right):
            return left + right
        return tf.add(self._tensor(left), self._tensor(right))

    def multiply(self, left: Any, right: Any) -> Any:
        """Returns the product."""
        if _is_known(left, right):
            return left * right
        return tf.multiply(self._tensor(left), self._tensor(right))

    def floordiv(self, left: Any, right: Any) -> Any:
        """Returns the quotient rounded down; the result is arbitrary if an unknown divisor is 0."""
        if _is_known(left, right):
            return left // right
        return tf.math.floordiv(self._tensor(left), self._divisor(right))

    def mod(self, left: Any, right: Any) -> Any:
        """Returns the remainder with the divisor's sign; arbitrary if an unknown divisor is 0."""
        if _is_known(left, right):
            return left % right
        return tf.math.floormod(self._tensor(left), self._divisor(right))

    def maximum(self, left: Any, right: Any) -> Any:
        """Returns the larger operand."""
        if _is_known(left, right):
            return max(left, right)
        return tf.maximum(self._tensor(left), self._tensor(right))

    def minimum(self, left: Any, right: Any) -> Any:
        """Returns the smaller operand."""
        if _is_known(left, right):
            return min(left, right)
        return tf.minimum(self._tensor(left), self._tensor(right))

    def compare(self, operator: ComparisonOperator, left: Any, right: Any) -> tf.Tensor:
        """Returns the result of the comparison as a bool tensor."""
        return _COMPARE[operator](self._tensor(left), self._tensor(right))

    def _tensor(self, value: Any) -> tf.Tensor:
        return tf.constant(value, self.dtype) if isinstance(value, int) else value

    def _divisor(self, value: Any) -> tf.Tensor:
        """Replaces a zero divisor by 1, so that the guard fails and not the division's kernel."""
        if isinstance(value, int):
            return self._tensor(value)
        return tf.where(tf.equal(value, 0), tf.ones_like(value), value)


def _is_known(left: Any, right: Any) -> bool:
    return isinstance(left, int) and isinstance(right, int)


class Guards:
    """Collects guards, which run in order, so that the first one that fails is reported."""

    def __init__(self, algebra: SizeAlgebra) -> None:
        self._algebra = algebra
        self._last: list[tf.Operation] = []

    def operations(self) -> list[tf.Operation]:
        """Returns the operations that must run before the function does."""
        return self._last

    def sizes(
        self, tensor: tf.Tensor, rank: int, wrong_rank: Callable[[Any], Sequence[Any]]
    ) -> tuple[Sequence[Any], Any]:
        """Returns a tensor's sizes, ints where they are known, and its shape for messages.

        Args:
          tensor: a tensor of this rank, or of unknown rank, for which a guard is added.
          rank: the required rank.
          wrong_rank: makes the message for another rank from the tensor's shape.
        """
        if tensor.shape.is_fully_defined():
            return static_shape(tensor), format_known_shape(tensor)
        shape = tf.shape(tensor, self._algebra.dtype)
        if tensor.shape.rank is None:
            self.require(
                "==",
                tf.size(shape, out_type=self._algebra.dtype),
                rank,
                wrong_rank(shape),
            )
            # Read one by one after the guard, because the rank may be lower. With tf.unstack,
            # TensorFlow would infer the rank from the number of results, and drop the guard.
            with tf.control_dependencies(self._last):
                return [shape[axis] for axis in range(rank)], shape
        known, sizes = static_shape(tensor), tf.unstack(shape)
        return [s if k is None else k for k, s in zip(known, sizes, strict=True)], shape

    def require(
        self, operator: ComparisonOperator, left: Any, right: Any, message: Sequence[Any]
    ) -> None:
        """Adds a guard; `message` is the text and tensors that it prints when it fails."""
        condition = self._algebra.compare(operator, left, right)
        with tf.control_dependencies(self._last):
            guard = tf.raw_ops.Assert(
                condition=condition,
                data=list(_join_texts(message)),
                summarize=_MAX_PRINTED_SIZES,
                name="jax2tf_shape_check",
            )
        self._last = [guard]


def _join_texts(message: Sequence[Any]) -> Iterable[Any]:
    """Joins neighbouring texts of a message, because TensorFlow puts each piece in brackets."""
    text = ""
    for piece in message:
        if isinstance(piece, (str, int)):
            text += str(piece)
            continue
        if text:
            yield text.strip()
        text = ""
        yield piece
    if text:
        yield text.strip()


def format_known_shape(tensor: tf.Tensor) -> str:
    """Formats a tensor's shape for messages, with ? for each unknown size."""
    if tensor.shape.rank is None:
        return "an unknown rank"
    return shape_text("?" if size is None else size for size in static_shape(tensor))
