"""Lowering rules that replace JAX's own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jax_core

from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    by_platform,
    common_rule,
    composite_p,
    has_primitive,
    jax_rule,
    lower_by_platform,
    lower_fun,
    ragged_dot_general_p,
    reduce_scatter_p,
    rules_possible,
)
from jax2tf_bridge.from_jax.linalg import linalg_rules
from jax2tf_bridge.from_jax.lowering._composites import composite_rules
from jax2tf_bridge.from_jax.lowering._operation_rules import (
    BATCHING_DIMS_SINCE,
    convolution_rules,
    extreme_rules,
    indexing_rules,
)
from jax2tf_bridge.targets import PLATFORMS

# StableHLO has the attribute result_accuracy since 1.9 (TF 2.19). All operations below have it
# since 1.10.
_RESULT_ACCURACY_SINCE = (1, 10, 0)

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
_COLLECTIVE_REDUCTIONS = (
    (lax.psum_p, lax.reduce_sum),
    (lax.pmax_p, lax.reduce_max),
    (lax.pmin_p, lax.reduce_min),
)


@functools.lru_cache(maxsize=64)
def lowering_overrides(
    platforms: tuple[str, ...], stablehlo_version: tuple[int, int, int], *, xla: bool = True
) -> tuple[tuple[Any, Rule], ...]:
    """Returns (primitive, lowering rule) pairs for jax.export's `_override_lowering_rules`.

    Each rule chooses its lowering by platform. On "cpu", "cuda" and "rocm" the matrix
    decompositions become StableHLO and the custom calls that XLA expands everywhere (Qr, Eigh,
    ProductOfElementaryHouseholderReflectors). On "tpu" only those that JAX lacks there are
    replaced: eig, schur, hessenberg, pivoted QR and tridiagonal. The other decompositions, and all
    on unknown platforms, keep JAX's rules.

    Args:
      platforms: the platforms of the export.
      stablehlo_version: the lowest StableHLO version that must be able to express the module.
      xla: whether the target has XLA. If not, operations that TensorFlow has are not decomposed.
    """
    if not rules_possible():
        return ()
    pairs: tuple[tuple[Any, Rule], ...] = (
        (lax.bitcast_convert_type_p, _lower_bitcast),
        *(
            (p, functools.partial(_lower_reduction_collective, p, f))
            for p, f in _COLLECTIVE_REDUCTIONS
        ),
        (lax.all_gather_p, functools.partial(_lower_gather_collective, lax.all_gather_p)),
        *convolution_rules(),
        *linalg_rules(platforms),
    )
    if has_primitive("reduce_scatter_p"):
        pairs += (
            (reduce_scatter_p, functools.partial(_lower_gather_collective, reduce_scatter_p)),
        )
    if has_primitive("ragged_dot_general_p"):
        pairs += ((ragged_dot_general_p, _make_ragged_dot_rule()),)
    if has_primitive("composite_p"):
        pairs += ((composite_p, _lower_composite),)
    if stablehlo_version < BATCHING_DIMS_SINCE:
        pairs += indexing_rules()
    if stablehlo_version < _RESULT_ACCURACY_SINCE:
        pairs += tuple((p, functools.partial(_lower_accuracy, p)) for p in _WITH_ACCURACY)
    return (*pairs, *extreme_rules()) if xla else _keep_whole(pairs)


def _keep_whole(rules: tuple[tuple[Any, Rule], ...]) -> tuple[tuple[Any, Rule], ...]:
    """Replaces the rules of primitives that are one operation in TensorFlow."""
    operations = (lax.linalg.cholesky_p, lax.linalg.triangular_solve_p)
    by_primitive = {**dict(rules), **{p: common_rule(p) for p in operations}}
    by_primitive |= {lax.approx_top_k_p: lower_fun(_exact_top_k)}
    return (*(by_primitive | dict(composite_rules(rules))).items(),)


def _exact_top_k(x: Any, *, k: int, reduction_dimension: int, is_max_k: bool, **_: Any) -> Any:
    """Computes the exact top k, which is a valid result of approx_top_k."""
    moved = jnp.moveaxis(x, reduction_dimension, -1)
    values, indices = lax.top_k(moved if is_max_k else -moved, k)
    values = values if is_max_k else -values
    return [jnp.moveaxis(y, -1, reduction_dimension) for y in (values, indices)]


def _lower_accuracy(primitive: Any, ctx: Any, x: Any, **params: Any) -> Sequence[Any]:
    # JAX 0.12 sets an accuracy in the derivative of erf, and so in that of the exact gelu. On the
    # CPU the results are bitwise equal without it.
    rule = None if params.get("accuracy") is None else jax_rule(primitive, "cpu")
    rules = {} if rule is None else {"cpu": functools.partial(_drop_accuracy, rule)}
    return lower_by_platform(ctx, primitive, rules, x, **params)


def _drop_accuracy(rule: Rule, ctx: Any, x: Any, **params: Any) -> Sequence[Any]:
    return rule(ctx, x, **{**params, "accuracy": None})


def _lower_bitcast(ctx: Any, x: Any, *, new_dtype: Any) -> Sequence[Any]:
    # StableHLO's shape refinement skips a bitcast_convert that adds or removes a dimension, and XLA
    # then rejects the module. Shifts are equivalent.
    (operand,), (result,) = ctx.avals_in, ctx.avals_out
    if operand.ndim == result.ndim or _has_known_sizes(ctx):
        return common_rule(lax.bitcast_convert_type_p)(ctx, x, new_dtype=new_dtype)
    function = _join_words if operand.ndim > result.ndim else _split_words
    rule = lower_fun(functools.partial(function, new_dtype=new_dtype), multiple_results=False)
    return rule(ctx, x)


def _join_words(x: Any, *, new_dtype: Any) -> Any:
    """Joins the k narrow words in the last axis of [..., k] to one wide word, lowest bits first."""
    unsigned, bits = _to_unsigned(new_dtype), _count_bits(x.dtype)
    parts = lax.convert_element_type(lax.bitcast_convert_type(x, _to_unsigned(x.dtype)), unsigned)
    shifts = lax.mul(lax.broadcasted_iota(unsigned, x.shape, x.ndim - 1), unsigned.type(bits))
    moved = lax.shift_left(parts, shifts)
    joined = lax.reduce(moved, unsigned.type(0), lax.bitwise_or, (x.ndim - 1,))
    return lax.bitcast_convert_type(joined, new_dtype)


def _split_words(x: Any, *, new_dtype: Any) -> Any:
    """Splits each wide word of [...] into k narrow ones [..., k], lowest bits first."""
    unsigned, bits = _to_unsigned(x.dtype), _count_bits(new_dtype)
    shape = (*x.shape, _count_bits(x.dtype) // bits)
    whole = lax.broadcast_in_dim(lax.bitcast_convert_type(x, unsigned), shape, tuple(range(x.ndim)))
    shifts = lax.mul(lax.broadcasted_iota(unsigned, shape, x.ndim), unsigned.type(bits))
    moved = lax.shift_right_logical(whole, shifts)
    parts = lax.bitwise_and(moved, lax.full_like(moved, 2**bits - 1))
    narrow = lax.convert_element_type(parts, _to_unsigned(new_dtype))
    return lax.bitcast_convert_type(narrow, new_dtype)


def _count_bits(dtype: Any) -> int:
    info = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    return int(info(dtype).bits)


def _to_unsigned(dtype: Any) -> np.dtype[Any]:
    unsigned: np.dtype[Any] = np.dtype(getattr(jnp, f"uint{_count_bits(dtype)}"))
    return unsigned


# Collectives within one device: jax.vmap turns collectives over its own axis into collectives over
# array axes, and others are over a mesh axis of size 1. JAX's rules fail for symbolic sizes.


def _lower_reduction_collective(
    primitive: Any, reduce: Callable[..., Any], ctx: Any, *args: Any, **params: Any
) -> Sequence[Any]:
    axes = params["axes"]
    if _has_known_sizes(ctx) or not all(isinstance(axis, int) for axis in axes):
        return lower_by_platform(ctx, primitive, {}, *args, **params)

    def reduced(*arrays: Any) -> tuple[Any, ...]:
        return tuple(reduce(x, axes) for x in arrays)

    return lower_fun(reduced)(ctx, *args)


def _lower_gather_collective(primitive: Any, ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    if _has_known_sizes(ctx) or params["axis_size"] != 1:
        return lower_by_platform(ctx, primitive, {}, *args, **params)
    (out,) = ctx.avals_out
    return lower_fun(lambda x: lax.reshape(x, out.shape), multiple_results=False)(ctx, *args)


def _has_known_sizes(ctx: Any) -> bool:
    return all(isinstance(d, int) for aval in ctx.avals_in for d in aval.shape)


def _make_ragged_dot_rule() -> Rule:
    # On GPU and TPU, JAX writes a CHLO operation, which no TensorFlow runs and which cannot be
    # expanded with an open batch. The CPU rule masks each group, as the expansion would.
    rule = common_rule(ragged_dot_general_p)
    return by_platform(ragged_dot_general_p, dict.fromkeys(PLATFORMS, rule))


def _lower_composite(ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    # Composites would have to be expanded later, because no TensorFlow runs them. And before 0.12
    # JAX cannot lower one for several platforms at once.
    if "jaxpr" not in params:  # since JAX 0.12, whose own rule works
        return lower_by_platform(ctx, composite_p, {}, *args, **params)
    return lower_fun(jax_core.jaxpr_as_fun(params["jaxpr"]))(ctx, *args)
