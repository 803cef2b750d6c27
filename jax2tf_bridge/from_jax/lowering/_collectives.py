"""Lowering rules for collectives that need no second device, where a size is open.

Those over axes of arrays alone are what jax.vmap makes of those over its own axis; others are over
an axis of one device. JAX's rules take every size for a number.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    lower_by_platform,
    lower_fun,
    reduce_scatter_p,
    reduce_scatter_possible,
)


def collective_rules() -> tuple[tuple[Any, Rule], ...]:
    """(primitive, rule) pairs for psum, pmax and pmin, all_gather and reduce_scatter."""
    reductions = (
        (lax.psum_p, lax.reduce_sum),
        (lax.pmax_p, lax.reduce_max),
        (lax.pmin_p, lax.reduce_min),
    )
    moves = [lax.all_gather_p, *([reduce_scatter_p] if reduce_scatter_possible() else [])]
    return (
        *((primitive, functools.partial(_lower, primitive, f)) for primitive, f in reductions),
        *((primitive, functools.partial(_lower_move, primitive)) for primitive in moves),
    )


def _lower(
    primitive: Any, reduce: Callable[..., Any], ctx: Any, *args: Any, **params: Any
) -> Sequence[Any]:
    axes = params["axes"]
    if _is_static(ctx) or not all(isinstance(axis, int) for axis in axes):
        return lower_by_platform(ctx, primitive, {}, *args, **params)

    def reduced(*arrays: Any) -> tuple[Any, ...]:
        return tuple(reduce(x, axes) for x in arrays)

    return lower_fun(reduced)(ctx, *args)


def _lower_move(primitive: Any, ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    if _is_static(ctx) or params["axis_size"] != 1:
        return lower_by_platform(ctx, primitive, {}, *args, **params)
    (out,) = ctx.avals_out
    return lower_fun(lambda x: lax.reshape(x, out.shape), multiple_results=False)(ctx, *args)


def _is_static(ctx: Any) -> bool:
    return all(isinstance(d, int) for aval in ctx.avals_in for d in aval.shape)
