"""Lowering rules for maximum and minimum reductions that keep NaN on the CPU.

stablehlo/_keeping_nan.py has the reason, and rewrites all other maxima and minima. Reductions are
lowered here, because the platform is known during lowering.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    common_rule,
    lower_by_platform,
    lower_fun,
)


def extreme_rules() -> tuple[tuple[Any, Rule], ...]:
    """Lists (primitive, rule) pairs for reductions and clamps.

    `keep_nan` rewrites the remaining maxima and minima in the module: elementwise ones, and those
    in the bodies of scatters and other reductions.
    """
    rules: list[tuple[Any, Rule]] = [
        (lax.clamp_p, _lower_clamp),
        (lax.reduce_p, _lower_reduce),
        (lax.reduce_window_p, _lower_reduce_window),
    ]
    for reduction, exact, init in (
        (lax.reduce_max_p, _exact_maximum, -np.inf),
        (lax.reduce_min_p, _exact_minimum, np.inf),
    ):
        rule = _make_reduction_rule(exact, init)
        rules.append((reduction, functools.partial(_lower_on_cpu, reduction, rule)))
    for pool, exact, init in (
        (lax.reduce_window_max_p, _exact_maximum, -np.inf),
        (lax.reduce_window_min_p, _exact_minimum, np.inf),
    ):
        rule = _make_window_rule(exact, init)
        rules.append((pool, functools.partial(_lower_on_cpu, pool, rule)))
    return tuple(rules)


def _exact_maximum(x: Any, y: Any) -> Any:
    return lax.select(lax.bitwise_or(lax.ge(x, y), lax.ne(x, x)), x, y)


def _exact_minimum(x: Any, y: Any) -> Any:
    return lax.select(lax.bitwise_or(lax.le(x, y), lax.ne(x, x)), x, y)


_EXACT_REDUCERS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {lax.max_p: _exact_maximum, lax.min_p: _exact_minimum}
)


def _is_float(ctx: Any) -> bool:
    return bool(jnp.issubdtype(ctx.avals_out[0].dtype, jnp.floating))


def _make_reduction_rule(exact: Callable[..., Any], init: float) -> Rule:
    def reduced(x: Any, *, axes: Sequence[int], **_: Any) -> Any:
        return lax.reduce(x, np.asarray(init, x.dtype), exact, axes)

    return lower_fun(reduced, multiple_results=False)


def _make_window_rule(exact: Callable[..., Any], init: float) -> Rule:
    def reduced(x: Any, **params: Any) -> Any:
        return lax.reduce_window(x, np.asarray(init, x.dtype), exact, **params)

    return lower_fun(reduced, multiple_results=False)


def _lower_on_cpu(primitive: Any, rule: Rule, ctx: Any, x: Any, **params: Any) -> Sequence[Any]:
    # Fast maxima that drop NaN exist only on the CPU. On GPU and TPU, XLA has faster kernels for
    # the reducers that it recognizes.
    rules = {"cpu": rule} if _is_float(ctx) else {}
    return lower_by_platform(ctx, primitive, rules, x, **params)


def _find_exact_reducer(ctx: Any, operands: Sequence[Any], jaxpr: Any) -> Callable[..., Any] | None:
    """Returns a NaN-keeping reducer if the reducer is a maximum or minimum of floats, else None."""
    equations = getattr(jaxpr, "jaxpr", jaxpr).eqns
    if len(operands) != 2 or len(equations) != 1 or not _is_float(ctx):
        return None
    return _EXACT_REDUCERS.get(equations[0].primitive)


def _lower_reduce(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
    exact = _find_exact_reducer(ctx, operands, params["jaxpr"])
    rules: dict[str, Rule] = {}
    if exact is not None:

        def reduced(x: Any, init: Any, *, dimensions: Sequence[int], **_: Any) -> Any:
            return lax.reduce(x, init, exact, dimensions)

        rules["cpu"] = lower_fun(reduced, multiple_results=False)
    return lower_by_platform(ctx, lax.reduce_p, rules, *operands, **params)


def _lower_reduce_window(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
    exact = _find_exact_reducer(ctx, operands, params["jaxpr"])
    rules: dict[str, Rule] = {}
    if exact is not None:

        def reduced(x: Any, init: Any, *, jaxpr: Any, consts: Any, **params: Any) -> Any:
            return lax.reduce_window(x, init, exact, **params)

        rules["cpu"] = lower_fun(reduced, multiple_results=False)
    return lower_by_platform(ctx, lax.reduce_window_p, rules, *operands, **params)


def _lower_clamp(ctx: Any, low: Any, x: Any, high: Any, **params: Any) -> Sequence[Any]:
    if not _is_float(ctx):
        return common_rule(lax.clamp_p)(ctx, low, x, high, **params)

    def clamped(low: Any, x: Any, high: Any) -> Any:
        low, high = (lax.broadcast(y, x.shape) if y.ndim < x.ndim else y for y in (low, high))
        return lax.min(lax.max(x, low), high)

    return lower_fun(clamped, multiple_results=False)(ctx, low, x, high)
