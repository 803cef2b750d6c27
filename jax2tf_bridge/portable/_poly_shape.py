"""PolyShape: the deprecated form of an entry of polymorphic_shapes, for existing code."""

from __future__ import annotations

import warnings
from types import EllipsisType
from typing import Any

from jax2tf_bridge.errors import ShapeError


class PolyShape(tuple[Any, ...]):
    """An entry of polymorphic_shapes, with one argument per dimension. Prefer a string.

    Raises:
      ShapeError: a dimension is neither an integer nor a string nor `...`.

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     print(PolyShape("b", 28, ...))
    (b, 28, ...)
    """

    __slots__ = ()

    def __new__(cls, *dim_specs: int | str | EllipsisType) -> PolyShape:
        """Creates the entry, with a DeprecationWarning that contains the equivalent string."""
        for dim in dim_specs:
            if isinstance(dim, bool) or not isinstance(dim, (int, str, EllipsisType)):
                raise ShapeError(
                    "A dimension of PolyShape must be an integer, a string as 'b' or '2*b', or "
                    f"`...` for the remaining ones. Got: {dim!r} of type {type(dim).__name__}"
                )
        shape = super().__new__(cls, dim_specs)
        warnings.warn(
            f"PolyShape is deprecated. Write the string {str(shape)!r} in its place.",
            DeprecationWarning,
            stacklevel=2,
        )
        return shape

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __str__(self) -> str:
        dims = ["..." if dim is ... else str(dim) for dim in self]
        return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"
