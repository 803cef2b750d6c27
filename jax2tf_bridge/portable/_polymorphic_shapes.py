"""AUTO, which lets the bridge choose, and PolyShape, a deprecated entry of polymorphic_shapes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, Final, TypeAlias, final

from jax2tf_bridge.errors import ShapeError
from shape_poly import shape_text


@final
class Auto:
    """The class of AUTO, which lets the bridge choose. AUTO is the only instance.

    As `polymorphic_shapes`, or one entry of it, AUTO finds the open dimensions. If an argument has
    unknown dimensions (None in a tf.TensorSpec), those are open. For example arguments, as many
    dimensions are open as tracing allows, except those that the results show to be parameters. Open
    dimensions share a variable if tracing shows that they must be equal.

    As `polymorphic_constraints`, or one of them, AUTO adds the constraints that the function needs.

    >>> {"polymorphic_shapes": AUTO}
    {'polymorphic_shapes': AUTO}
    """

    def __repr__(self) -> str:
        return "AUTO"

    def __reduce__(self) -> str:
        return "AUTO"  # copying and unpickling return the singleton


AUTO: Final = Auto()
"""As `polymorphic_shapes`, or one entry of it, AUTO finds the open dimensions. As
`polymorphic_constraints`, or one of them, it adds the constraints that the function needs."""

PolyConstraints: TypeAlias = Sequence[str | Auto] | Auto
"""Type of `polymorphic_constraints`."""


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
        return shape_text("..." if dim is ... else dim for dim in self)
