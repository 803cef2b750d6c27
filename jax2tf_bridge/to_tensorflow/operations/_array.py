"""Array: a value of the module while TensorFlow's operations are made of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import DTYPES_BY_ELEMENT_TYPE, DType, find_dtype
from jax2tf_bridge.to_tensorflow._dtypes import static_shape
from shape_poly import Dim

_COMPLEX = {"complex<f32>": "complex64", "complex<f64>": "complex128"}


def row_of(element: str) -> DType:
    """Returns the row of an element type of StableHLO in the table of dtypes.

    Raises:
      KeyError: the table has none.
    """
    row = find_dtype(_COMPLEX.get(element) or DTYPES_BY_ELEMENT_TYPE[element])
    if row is None:
        raise KeyError(element)
    return row


def tf_dtype(element: str) -> tf.DType:
    """Returns the dtype in which TensorFlow has the elements.

    Integers of fewer than 8 bits are in 8, with values that fit into theirs.
    """
    return tf.as_dtype(row_of(element).op_dtype)


@functools.cache
def has_dtype(element: str) -> bool:
    """Returns whether TensorFlow has a dtype for an element type of StableHLO."""
    try:
        tf_dtype(element)
    except (KeyError, TypeError):
        return False
    return True


def plain(size: Dim) -> Dim:
    """Returns a size as an int, if it is the same for all values of the variables."""
    if isinstance(size, int):
        return size
    number = size.constant_value()
    return size if number is None else number


@dataclass(frozen=True, eq=False)
class Formula:
    """An operation on scalars that sizes are made of; TensorFlow's is made only if it is needed.

    Attributes:
      name: in StableHLO; of a comparison, the direction follows, as in "compare NE".
      operands: known numbers, sizes and other formulas.
      make: makes TensorFlow's operation, in a scope.
    """

    name: str
    operands: tuple[Array, ...]
    make: Callable[[Any], tf.Tensor]


@dataclass(frozen=True, eq=False)
class Postponed:
    """A tensor that is made only if something takes it, in the graph that it belongs to.

    Attributes:
      shape: of the tensor, as far as it is known.
      make: makes it, once.
    """

    shape: tuple[int | None, ...]
    make: Callable[[], tf.Tensor]
    graph: Any = field(default_factory=tf.compat.v1.get_default_graph)

    def tensor(self) -> tf.Tensor:
        """Makes the tensor."""
        with self.graph.as_default():
            return self.make()


@dataclass(frozen=True, eq=False)
class Array:
    """A value of the module: sizes, and what its elements are made of.

    One of four holds the elements, in a compact form that broadcasts to `sizes` as TensorFlow's
    binary operations do (right-aligned, sizes of 1 and missing leading axes are repeated), so that
    most broadcasts need no operation.

    Attributes:
      element: the elements' type as StableHLO prints it.
      sizes: ints, or expressions in the variables of the scope.
      given: a tensor, or one that is made when it is needed: `computed` is the tensor.
      known: the elements themselves, in the dtype that TensorFlow has them in.
      parts: for integers, sizes that are its elements in row-major order; all of them, not
        compact. Its own sizes are known then.
      formula: for a scalar, how it is computed from sizes, which may make a size of it yet.
    """

    element: str
    sizes: tuple[Dim, ...]
    given: tf.Tensor | Postponed | None = None
    known: np.ndarray[Any, Any] | None = None
    parts: tuple[Dim, ...] | None = None
    formula: Formula | None = None

    def __post_init__(self) -> None:
        if not self.is_static:
            object.__setattr__(self, "sizes", tuple(map(plain, self.sizes)))
        if self.parts is not None:
            object.__setattr__(self, "parts", tuple(map(plain, self.parts)))

    @functools.cached_property
    def computed(self) -> tf.Tensor | None:
        """The tensor, if there is one."""
        return self.given.tensor() if isinstance(self.given, Postponed) else self.given

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return len(self.sizes)

    @property
    def row(self) -> DType:
        """Its dtype in the table of dtypes."""
        return row_of(self.element)

    @property
    def tf_dtype(self) -> tf.DType:
        """Its dtype in TensorFlow."""
        return tf_dtype(self.element)

    @property
    def integers(self) -> tuple[Dim, ...] | None:
        """Its elements as sizes, where it is a vector or scalar of integers that are known so."""
        if self.parts is not None:
            return self.parts if self.rank <= 1 else None
        if self.known is None or self.rank > 1 or not (self.row.is_integer and self.is_static):
            return None
        return tuple(map(int, np.broadcast_to(self.known, self.static_sizes()).reshape(-1)))

    def static_sizes(self) -> tuple[int, ...]:
        """Returns its sizes, all of which are numbers.

        Raises:
          ValueError: one is not.
        """
        found = tuple(size for size in self.sizes if isinstance(size, int))
        if len(found) != len(self.sizes):
            raise ValueError(f"{self.sizes} are not all known")
        return found

    @property
    def is_static(self) -> bool:
        """Returns whether all sizes are numbers."""
        return all(isinstance(size, int) for size in self.sizes)

    @property
    def compact_shape(self) -> tuple[int | None, ...]:
        """The shape of the compact form; None for a size that is not 1 and not known."""
        if isinstance(self.given, Postponed):
            return self.given.shape
        if self.computed is not None:
            return static_shape(self.computed)
        if self.known is not None:
            shape: tuple[int, ...] = self.known.shape
            return shape
        return () if self.parts is None else self.static_sizes()

    def repeats(self, axis: int) -> bool:
        """Returns whether the compact form has a single element along an axis, repeated or not."""
        shape = self.compact_shape
        place = axis - (self.rank - len(shape))
        return place < 0 or shape[place] == 1
