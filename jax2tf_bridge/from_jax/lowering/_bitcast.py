"""Lowering rules for bitcasts between wide and narrow numbers where a size is open.

When the sizes become known, StableHLO's shape refinement passes over a bitcast_convert that
adds or removes a dimension, and XLA then refuses the module. Shifts say the same.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax._jax_compat_lowering import Rule, common_rule, lower_fun


def bitcast_rules() -> tuple[tuple[Any, Rule], ...]:
    """(primitive, rule) pairs for bitcast_convert_type."""
    return ((lax.bitcast_convert_type_p, _lower),)


def _lower(ctx: Any, x: Any, *, new_dtype: Any) -> Sequence[Any]:
    (operand,), (result,) = ctx.avals_in, ctx.avals_out
    if operand.ndim == result.ndim or all(isinstance(d, int) for d in operand.shape):
        return common_rule(lax.bitcast_convert_type_p)(ctx, x, new_dtype=new_dtype)
    function = _joined if operand.ndim > result.ndim else _taken_apart
    rule = lower_fun(functools.partial(function, new_dtype=new_dtype), multiple_results=False)
    return rule(ctx, x)


def _joined(x: Any, *, new_dtype: Any) -> Any:
    """[..., k] numbers as [...] numbers of k times as many bits, the lowest bits first."""
    unsigned, bits = _unsigned(new_dtype), _bits(x.dtype)
    parts = lax.convert_element_type(lax.bitcast_convert_type(x, _unsigned(x.dtype)), unsigned)
    shifts = lax.mul(lax.broadcasted_iota(unsigned, x.shape, x.ndim - 1), unsigned.type(bits))
    moved = lax.shift_left(parts, shifts)
    joined = lax.reduce(moved, unsigned.type(0), lax.bitwise_or, (x.ndim - 1,))
    return lax.bitcast_convert_type(joined, new_dtype)


def _taken_apart(x: Any, *, new_dtype: Any) -> Any:
    """[...] numbers as [..., k] numbers of a k-th as many bits, the lowest bits first."""
    unsigned, bits = _unsigned(x.dtype), _bits(new_dtype)
    shape = (*x.shape, _bits(x.dtype) // bits)
    whole = lax.broadcast_in_dim(lax.bitcast_convert_type(x, unsigned), shape, tuple(range(x.ndim)))
    shifts = lax.mul(lax.broadcasted_iota(unsigned, shape, x.ndim), unsigned.type(bits))
    moved = lax.shift_right_logical(whole, shifts)
    parts = lax.bitwise_and(moved, lax.full_like(moved, 2**bits - 1))
    narrow = lax.convert_element_type(parts, _unsigned(new_dtype))
    return lax.bitcast_convert_type(narrow, new_dtype)


def _bits(dtype: Any) -> int:
    info = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    return int(info(dtype).bits)


def _unsigned(dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(getattr(jnp, f"uint{_bits(dtype)}"))
    return found
