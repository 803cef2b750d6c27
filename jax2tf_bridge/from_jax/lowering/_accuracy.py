"""Lowering rules that leave out a requested accuracy where it has no effect.

StableHLO has had the attribute result_accuracy since 1.9 (TF 2.19). On the CPU the results are
the same bits with and without it (a test compares them).  JAX 0.12 sets it in the derivative of
erf, and so in that of the exact gelu.
"""

import functools
from collections.abc import Sequence
from typing import Any

from jax import lax

from jax2tf_bridge.from_jax._jax_compat_lowering import Rule, jax_rule, lower_by_platform

# The first StableHLO version in which every operation below has the attribute.
RESULT_ACCURACY_SINCE = (1, 10, 0)

_WITH_ACCURACY = (
    lax.cbrt_p,
    lax.cos_p,
    lax.exp2_p,
    lax.exp_p,
    lax.expm1_p,
    lax.log1p_p,
    lax.log_p,
    lax.logistic_p,
    lax.rsqrt_p,
    lax.sin_p,
    lax.sqrt_p,
    lax.tan_p,
    lax.tanh_p,
)


def accuracy_rules() -> tuple[tuple[Any, Rule], ...]:
    """(primitive, rule) pairs for the functions that can be asked for an accuracy."""
    return tuple((p, functools.partial(_lower, p)) for p in _WITH_ACCURACY)


def _lower(primitive: Any, ctx: Any, x: Any, **params: Any) -> Sequence[Any]:
    if params.get("accuracy") is None:
        return lower_by_platform(ctx, primitive, {}, x, **params)
    rule = jax_rule(primitive, "cpu")
    rules = {} if rule is None else {"cpu": functools.partial(_without_accuracy, rule)}
    return lower_by_platform(ctx, primitive, rules, x, **params)


def _without_accuracy(rule: Rule, ctx: Any, x: Any, **params: Any) -> Sequence[Any]:
    return rule(ctx, x, **{**params, "accuracy": None})
