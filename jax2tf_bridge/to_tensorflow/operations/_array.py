"""Array: a value of the module during its conversion to TensorFlow's operations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import DType, dtype_of_element
from jax2tf_bridge.to_tensorflow._dtypes import static_shape
from shape_poly import Dim


def tf_dtype(element: str) -> tf.DType:
    """Returns TensorFlow's dtype for an element type.

    Integers of fewer than 8 bits are stored in 8 bits, within their own range.
    """
    return tf.as_dtype(dtype_of_element(element).op_dtype)


@functools.cache
def has_dtype(element: str) -> bool:
    """Returns whether TensorFlow has a dtype for a StableHLO element type."""
    try:
        tf_dtype(element)
    except (KeyError, TypeError):
        return False
    return True


def plain(size: Dim) -> Dim:
    """Returns a size as an int if it does not depend on the variables."""
    if isinstance(size, int):
        return size
    number = size.constant_value()
    return size if number is None else number


@dataclass(frozen=True, eq=False)
class Postponed:
    """Tensor that is made on demand, in its own graph.

    Attributes:
      shape: the shape of the tensor, with None for unknown sizes.
      make: makes the tensor.
    """

    shape: tuple[int | None, ...]
    make: Callable[[], tf.Tensor]
    graph: Any = field(default_factory=tf.compat.v1.get_default_graph)

    @functools.cached_property
    def tensor(self) -> tf.Tensor:
        """The tensor, made when it is read first."""
        with self.graph.as_default():
            return self.make()


@dataclass(frozen=True, eq=False)
class Reshaped:
    """Source of an array with the elements of another one, in another shape."""

    array: Array


@dataclass(frozen=True, eq=False)
class Transposed:
    """Source of an array with permuted axes: its axis i is axis `order[i]` of the other array."""

    array: Array
    order: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Concatenated:
    """Source of an array that joins others along an axis."""

    arrays: tuple[Array, ...]
    axis: int


@dataclass(frozen=True, eq=False)
class Reduced:
    """Source of an array that is the reduction of another one along some of its axes.

    A later broadcast that restores these axes uses the tensor in which they have size 1. Consumers
    can then recognize softmax and layer normalization, and open sizes need no reshape.
    """

    axes: tuple[int, ...]
    with_ones: Postponed


Source: TypeAlias = "Reshaped | Transposed | Concatenated | Reduced"
"""Record of how an array was made, for operations that can use its parts or its origin."""


@dataclass(frozen=True, eq=False)
class Array:
    """Value of the module: sizes and elements.

    One of three attributes has the elements. They are in a compact form that broadcasts to `sizes`
    like operands of TensorFlow's binary operations (right-aligned; sizes of 1 and missing leading
    axes are repeated), so that most broadcasts need no operation.

    Attributes:
      element: the element type as StableHLO prints it.
      sizes: ints, or expressions in the variables of the scope.
      given: a tensor, or a Postponed tensor; see `computed`.
      known: the elements as a NumPy array, in TensorFlow's dtype.
      parts: the elements of an integer array as sizes, in row-major order; all elements, not
        compact. The array's own sizes are known then.
      source: how the array was made, if that is of use.
    """

    element: str
    sizes: tuple[Dim, ...]
    given: tf.Tensor | Postponed | None = None
    known: np.ndarray[Any, Any] | None = None
    parts: tuple[Dim, ...] | None = None
    source: Source | None = None

    def __post_init__(self) -> None:
        if not self.is_static:
            object.__setattr__(self, "sizes", tuple(map(plain, self.sizes)))
        if self.parts is not None:
            object.__setattr__(self, "parts", tuple(map(plain, self.parts)))

    @functools.cached_property
    def computed(self) -> tf.Tensor | None:
        """Tensor of the elements, if there is one."""
        return self.given.tensor if isinstance(self.given, Postponed) else self.given

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.sizes)

    @property
    def row(self) -> DType:
        """Row of the element type in the table of dtypes."""
        return dtype_of_element(self.element)

    @property
    def tf_dtype(self) -> tf.DType:
        """TensorFlow's dtype."""
        return tf_dtype(self.element)

    @property
    def integers(self) -> tuple[Dim, ...] | None:
        """Elements as sizes, for a vector or scalar of integers that are known; else None."""
        if self.parts is not None:
            return self.parts if self.rank <= 1 else None
        if self.known is None or self.rank > 1 or not (self.row.is_integer and self.is_static):
            return None
        return tuple(map(int, np.broadcast_to(self.known, self.static_sizes()).reshape(-1)))

    def static_sizes(self) -> tuple[int, ...]:
        """Returns the sizes as ints.

        Raises:
          ValueError: a size is not a number.
        """
        numbers = tuple(size for size in self.sizes if isinstance(size, int))
        if len(numbers) != len(self.sizes):
            raise ValueError(f"{self.sizes} are not all known")
        return numbers

    @property
    def is_static(self) -> bool:
        """Returns whether all sizes are numbers."""
        return all(isinstance(size, int) for size in self.sizes)

    @property
    def compact_shape(self) -> tuple[int | None, ...]:
        """Shape of the compact form, with None for unknown sizes other than 1."""
        if isinstance(self.given, Postponed):
            return self.given.shape
        if self.computed is not None:
            return static_shape(self.computed)
        if self.known is not None:
            shape: tuple[int, ...] = self.known.shape
            return shape
        return () if self.parts is None else self.static_sizes()

    def repeats(self, axis: int) -> bool:
        """Returns whether the compact form has a single element along an axis."""
        shape = self.compact_shape
        place = axis - (self.rank - len(shape))
        return place < 0 or shape[place] == 1
