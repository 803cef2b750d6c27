"""Array: a value of the module during its conversion to TensorFlow's operations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge._dtypes import (
    DTYPES_BY_ELEMENT_TYPE,
    NARROW_FLOATS,
    DType,
    dtype_of_element,
)
from jax2tf_bridge.emitters._ops import get_builder, ops
from shape_poly import Dim


def graph_dtype(element: str) -> ops.DType:
    """Returns TensorFlow's dtype for an element type.

    Integers of fewer than 8 bits are stored in 8 bits, within their own range.
    """
    return ops.as_dtype(dtype_of_element(element).op_dtype)


_WITHOUT_KERNELS = frozenset({"float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz"})
"""Dtypes that TensorFlow has a name for, and neither constants nor casts."""


def has_dtype(element: str) -> bool:
    """Returns whether the graph has operations for a StableHLO element type."""
    return _has_dtype(type(get_builder()).__name__, element)


@functools.cache
def _has_dtype(builder: str, element: str) -> bool:
    try:
        dtype = graph_dtype(element)
    except (KeyError, TypeError):
        return False
    return dtype.name not in _WITHOUT_KERNELS


def is_narrow_float(element: str) -> bool:
    """Returns whether elements are floats of at most 8 bits; TensorFlow only casts them to float32.

    It has no kernels that pass them into branches and loops.
    """
    return DTYPES_BY_ELEMENT_TYPE.get(element) in NARROW_FLOATS


Shape: TypeAlias = Sequence[Dim]
"""Sizes of an array: ints, or expressions in the variables of a scope."""


def plain(size: Dim) -> Dim:
    """Returns a size as an int if it does not depend on the variables."""
    if isinstance(size, int):
        return size
    number = size.constant_value()
    return size if number is None else number


@dataclass(frozen=True, eq=False)
class Array:
    """Value of the module: sizes and elements.

    One of two attributes has the elements. They are in a compact form that broadcasts to `sizes`
    like operands of TensorFlow's binary operations (right-aligned; sizes of 1 and missing leading
    axes are repeated), so that most broadcasts need no operation.

    Attributes:
      element: the element type as StableHLO prints it.
      sizes: ints, or expressions in the variables of the scope.
      computed: the elements as a tensor.
      known: the elements as a NumPy array: numbers in TensorFlow's dtype, or objects if some of the
        integers are sizes that depend on variables.
      origin: the array that this one reshapes, or None. Patterns over programs cannot find it,
        because types with open sizes do not tell whether a broadcast only adds axes.
    """

    element: str
    sizes: tuple[Dim, ...]
    computed: ops.Tensor | None = None
    known: np.ndarray[Any, Any] | None = None
    origin: Array | None = None

    def __post_init__(self) -> None:
        if not self.is_static:
            object.__setattr__(self, "sizes", tuple(map(plain, self.sizes)))
        if np.isscalar(self.known):  # NumPy makes scalars of arrays without axes
            object.__setattr__(self, "known", np.asarray(self.known))
        if self.known is not None and self.known.dtype == object:
            parts = [plain(part) for part in self.known.flat]
            is_number = all(isinstance(part, int) for part in parts)
            dtype = self.graph_dtype.as_numpy_dtype if is_number else object
            known = np.fromiter(parts, dtype, len(parts)).reshape(self.known.shape)
            object.__setattr__(self, "known", known)

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def row(self) -> DType:
        """Row of the element type in the table of dtypes."""
        return dtype_of_element(self.element)

    @property
    def graph_dtype(self) -> ops.DType:
        return graph_dtype(self.element)

    @property
    def integers(self) -> tuple[Dim, ...] | None:
        """Elements as sizes, for a vector or scalar of integers that are known; else None."""
        if self.known is None or self.rank > 1 or not (self.row.is_integer and self.is_static):
            return None
        return tuple(np.broadcast_to(self.known, self.static_sizes()).reshape(-1).tolist())

    @property
    def numbers(self) -> np.ndarray[Any, Any] | None:
        """Known elements in compact form, if none of them depends on variables."""
        return None if self.known is None or self.known.dtype == object else self.known

    @property
    def constant(self) -> np.ndarray[Any, Any] | None:
        """Known elements with all sizes, if neither depends on variables."""
        if self.numbers is None or not self.is_static:
            return None
        return np.broadcast_to(self.numbers, self.static_sizes())

    @property
    def scalar(self) -> Any:
        """The only element, if it is a known number; else None."""
        constant = self.constant
        return None if constant is None or constant.size != 1 else constant.reshape(-1)[0]

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
        if self.computed is not None:
            return tuple(self.computed.shape.as_list())
        if self.known is not None:
            shape: tuple[int, ...] = self.known.shape
            return shape
        return ()

    def repeats(self, axis: int) -> bool:
        """Returns whether the compact form has a single element along an axis."""
        shape = self.compact_shape
        place = axis - (self.rank - len(shape))
        return place < 0 or shape[place] == 1


Arrays: TypeAlias = Sequence[Array]
"""Operands or results of an operation."""


def zeros(element: str, sizes: Shape = ()) -> Array:
    """Makes an array of zeros or False; also stands for one without elements."""
    return Array(element, tuple(sizes), known=np.zeros((), graph_dtype(element).as_numpy_dtype))


def make_integer(element: str, number: Dim) -> Array:
    """Makes a scalar integer that is known as a size."""
    return Array(element, (), known=np.fromiter([number], object).reshape(()))
