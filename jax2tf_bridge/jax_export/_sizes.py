"""Questions about dimensions: those of JAX, and those of a portable function's values."""

from __future__ import annotations

from typing import Any

from jax import export as jax_export

import shape_poly
from jax2tf_bridge.from_jax.shapes._symbols import dim_from_jax, scope_from_jax


def is_symbolic_dim(p: Any) -> bool:
    """Tells an expression, of JAX's own or of a portable function, from a size.

    >>> from jax.export import symbolic_shape
    >>> [is_symbolic_dim(d) for d in symbolic_shape("b, 3")]
    [True, False]
    """
    return jax_export.is_symbolic_dim(p) or shape_poly.is_symbolic_dim(p)


def symbolic_dim_bounds(dimension: Any) -> tuple[float, float]:
    """Returns bounds of a dimension, both inclusive: (lower, upper), ints where they are finite.

    They always hold, and need not be the closest ones. JAX has this function from 0.12 on.

    Args:
      dimension: a size; a symbolic dimension of JAX's, taken under the constraints of its scope; or
        a dimension of a portable function, whose variables are just at least 1.

    >>> from jax.export import symbolic_shape
    >>> symbolic_dim_bounds(symbolic_shape("2*b + 1", constraints=["b >= 3"])[0])
    (7, inf)
    """
    if not jax_export.is_symbolic_dim(dimension):
        return shape_poly.symbolic_dim_bounds(dimension)
    return shape_poly.symbolic_dim_bounds(dim_from_jax(dimension), scope_from_jax(dimension.scope))
