"""Lowering rules for collectives over axes of arrays alone, where a size is open.

That is what jax.vmap makes of those over its own axis. JAX's rules take every size for a number.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from jax2tf_bridge.from_jax._jax_compat_lowering import Rule, lower_by_platform, lower_fun


def collective_rules() -> tuple[tuple[Any, Rule], ...]:
    """(primitive, rule) pairs for psum, pmax and pmin."""
    return tuple(
        (primitive, functools.partial(_lower, primitive, reduce))
        for primitive, reduce in (
            (lax.psum_p, lax.reduce_sum),
            (lax.pmax_p, lax.reduce_max),
            (lax.pmin_p, lax.reduce_min),
        )
    )


def _lower(
    primitive: Any, reduce: Callable[..., Any], ctx: Any, *args: Any, **params: Any
) -> Sequence[Any]:
    axes = params["axes"]
    static = all(isinstance(d, int) for aval in ctx.avals_in for d in aval.shape)
    if static or not all(isinstance(axis, int) for axis in axes):
        return lower_by_platform(ctx, primitive, {}, *args, **params)

    def reduced(*arrays: Any) -> tuple[Any, ...]:
        return tuple(reduce(x, axes) for x in arrays)

    return lower_fun(reduced)(ctx, *args)
