"""A lowering rule for jax.lax.composite: what it is made of, in its place.

No TensorFlow runs composites, so that they would be expanded later; and before 0.12 JAX cannot
lower one for several platforms at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core as jax_core

from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    composite_p,
    composite_possible,
    lower_by_platform,
    lower_fun,
)


def composite_rules() -> tuple[tuple[Any, Rule], ...]:
    """(primitive, rule) pairs for composite."""
    return ((composite_p, _lower),) if composite_possible() else ()


def _lower(ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    if "jaxpr" not in params:  # from 0.12 on, whose own rule is right
        return lower_by_platform(ctx, composite_p, {}, *args, **params)
    return lower_fun(jax_core.jaxpr_as_fun(params["jaxpr"]))(ctx, *args)
