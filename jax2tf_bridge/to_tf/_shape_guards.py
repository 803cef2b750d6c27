"""Guards: operations that fail at run time where sizes that are not known before do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf_bridge.to_tf._dtypes import static_shape
from shape_poly import Comparison, ComparisonOperator, Dim, Operation, shape_text

_COMPARE: Mapping[ComparisonOperator, Callable[[Any, Any], Any]] = {
    ">=": tf.greater_equal,
    "<=": tf.less_equal,
    "==": tf.equal,
    ">": tf.greater,
    "<": tf.less,
    "!=": tf.not_equal,
}
_ALL_SIZES = 64
"""How many sizes of a shape a message shows: all of them."""


def sizes_dtype(shapes: Iterable[Sequence[Dim]], constraints: Iterable[Comparison]) -> tf.DType:
    """In what to compute with sizes: int32, unless a constant needs more.

    TensorFlow has kernels for int32 that leave sizes on the host; int64 goes through the GPU.
    """
    sides = [side for c in constraints for side in (c.left, c.right)]
    largest = (largest_constant(d) for d in [*sides, *(d for s in shapes for d in s)])
    return tf.int32 if max(largest, default=0) <= tf.int32.max else tf.int64


def largest_constant(dimension: Dim) -> int:
    """Returns the largest constant of a size, without its sign; nested operations count as well."""
    return max((abs(constant) for constant in _constants(dimension)), default=0)


def _constants(dimension: Dim) -> Iterable[int]:
    if isinstance(dimension, int):
        yield dimension
        return
    for monomial, coefficient in dimension.terms:
        yield coefficient
        for atom, _ in monomial:
            if isinstance(atom, Operation):
                for operand in atom.operands:
                    yield from _constants(operand)


@dataclass(frozen=True)
class SizeAlgebra:
    """Computes with sizes: ints where they are known, else tensors of the dtype."""

    dtype: tf.DType

    def constant(self, value: int) -> Any:
        """Returns the int: TensorFlow sees it only if it meets a tensor."""
        return value

    def add(self, left: Any, right: Any) -> Any:
        """Their sum."""
        if _is_known(left, right):
            return left + right
        return tf.add(self._tensor(left), self._tensor(right))

    def multiply(self, left: Any, right: Any) -> Any:
        """Their product."""
        if _is_known(left, right):
            return left * right
        return tf.multiply(self._tensor(left), self._tensor(right))

    def floordiv(self, left: Any, right: Any) -> Any:
        """Returns the quotient rounded down; anything where an unknown divisor is 0."""
        if _is_known(left, right):
            return left // right
        return tf.math.floordiv(self._tensor(left), self._divisor(right))

    def mod(self, left: Any, right: Any) -> Any:
        """Returns the remainder with the divisor's sign; anything where an unknown divisor is 0."""
        if _is_known(left, right):
            return left % right
        return tf.math.floormod(self._tensor(left), self._divisor(right))

    def maximum(self, left: Any, right: Any) -> Any:
        """Returns the greater one."""
        if _is_known(left, right):
            return max(left, right)
        return tf.maximum(self._tensor(left), self._tensor(right))

    def minimum(self, left: Any, right: Any) -> Any:
        """Returns the lesser one."""
        if _is_known(left, right):
            return min(left, right)
        return tf.minimum(self._tensor(left), self._tensor(right))

    def compare(self, operator: ComparisonOperator, left: Any, right: Any) -> tf.Tensor:
        """Compares them, as a tensor."""
        return _COMPARE[operator](self._tensor(left), self._tensor(right))

    def _tensor(self, value: Any) -> tf.Tensor:
        return tf.constant(value, self.dtype) if isinstance(value, int) else value

    def _divisor(self, value: Any) -> tf.Tensor:
        """A divisor for which no kernel fails before the check that it is not 0 does."""
        if isinstance(value, int):
            return self._tensor(value)
        return tf.where(tf.equal(value, 0), tf.ones_like(value), value)


def _is_known(left: Any, right: Any) -> bool:
    return isinstance(left, int) and isinstance(right, int)


class Guards:
    """Collects guards. They run one after the other, so that the first that fails speaks."""

    def __init__(self, algebra: SizeAlgebra) -> None:
        self._algebra = algebra
        self._last: list[tf.Operation] = []

    def operations(self) -> list[tf.Operation]:
        """Operations that must run before the function does."""
        return self._last

    def sizes(
        self, tensor: tf.Tensor, rank: int, wrong_rank: Callable[[Any], Sequence[Any]]
    ) -> tuple[Sequence[Any], Any]:
        """Returns a tensor's sizes, ints where they are known, and its shape for messages.

        Args:
          tensor: of this rank, or of an unknown one, which is then guarded.
          rank: that it must have.
          wrong_rank: what is said if it has not, by its shape.
        """
        if tensor.shape.is_fully_defined():
            return static_shape(tensor), known_text(tensor)
        shape = tf.shape(tensor, self._algebra.dtype)
        if tensor.shape.rank is None:
            self.require(
                "==",
                tf.size(shape, out_type=self._algebra.dtype),
                rank,
                wrong_rank(shape),
            )
            # One by one, and after the guard, since there may be fewer. Not by tf.unstack: from the
            # number of its results TensorFlow concludes what the rank must be, and drops the guard.
            with tf.control_dependencies(self._last):
                return [shape[axis] for axis in range(rank)], shape
        known, sizes = static_shape(tensor), tf.unstack(shape)
        return [s if k is None else k for k, s in zip(known, sizes, strict=True)], shape

    def require(
        self, operator: ComparisonOperator, left: Any, right: Any, message: Sequence[Any]
    ) -> None:
        """Adds a guard with what it says when it fails: text and tensors."""
        condition = self._algebra.compare(operator, left, right)
        with tf.control_dependencies(self._last):
            guard = tf.raw_ops.Assert(
                condition=condition,
                data=list(_joined(message)),
                summarize=_ALL_SIZES,
                name="jax2tf_shape_check",
            )
        self._last = [guard]


def _joined(message: Sequence[Any]) -> Iterable[Any]:
    """Joins the message's pieces where it can: TensorFlow puts brackets around each."""
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


def known_text(tensor: tf.Tensor) -> str:
    """Prints the shape of a tensor as far as it is known, for messages."""
    if tensor.shape.rank is None:
        return "an unknown rank"
    return shape_text("?" if size is None else size for size in static_shape(tensor))
