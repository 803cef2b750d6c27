"""PolyShape: the older way to write one entry of polymorphic_shapes, for code that still has it."""

from __future__ import annotations

import warnings
from types import EllipsisType
from typing import Any

from jax2tf_bridge.errors import ShapeError


class PolyShape(tuple[Any, ...]):
    """An entry of polymorphic_shapes, one dimension an argument; a string says the same.

    Raises:
      ShapeError: a dimension is neither an integer nor a string nor `...`.

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     print(PolyShape("b", 28, ...))
    (b, 28, ...)
    """

    __slots__ = ()

    def __new__(cls, *dim_specs: int | str | EllipsisType) -> PolyShape:
        """Warns with what to write instead: the string of the same shape."""
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
