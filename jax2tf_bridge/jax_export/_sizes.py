"""Functions for symbolic dimensions, both of JAX and of portable functions."""

from __future__ import annotations

from typing import Any

from jax import export as jax_export

import shape_poly
from jax2tf_bridge.from_jax import dim_from_jax, scope_from_jax


def is_symbolic_dim(p: Any) -> bool:
    """Returns whether `p` is a symbolic dimension, of JAX or of a portable function.

    >>> from jax.export import symbolic_shape
    >>> [is_symbolic_dim(d) for d in symbolic_shape("b, 3")]
    [True, False]
    """
    return jax_export.is_symbolic_dim(p) or shape_poly.is_symbolic_dim(p)


def symbolic_dim_bounds(dimension: Any) -> tuple[float, float]:
    """Returns inclusive bounds (lower, upper) of a dimension. Finite bounds are ints.

    The bounds always hold, but need not be the tightest. JAX has this function since 0.12.

    Args:
      dimension: a size, a symbolic dimension of JAX, or a dimension of a portable function. The
        constraints of the scope apply to a dimension of JAX. Variables of a portable function are
        only assumed to be at least 1.

    >>> from jax.export import symbolic_shape
    >>> symbolic_dim_bounds(symbolic_shape("2*b + 1", constraints=["b >= 3"])[0])
    (7, inf)
    """
    if not jax_export.is_symbolic_dim(dimension):
        return shape_poly.symbolic_dim_bounds(dimension)
    return shape_poly.symbolic_dim_bounds(dim_from_jax(dimension), scope_from_jax(dimension.scope))
