"""Lowering rules for QR, by custom calls that XLA expands on every platform."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax._jax_compat_lowering import (
    common_rule,
    geqrf_p,
    lower_by_platform,
    lower_fun,
)
from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    are_sizes_known,
    distance_below_diagonal,
    eye_like,
    matmul,
    resize,
    where,
)
from jax2tf_bridge.from_jax.linalg._reflectors import pivoted_qr

# Platforms on which JAX's own rules call LAPACK or its GPU counterparts. JAX's common rules are
# the custom calls Qr and ProductOfElementaryHouseholderReflectors.
_REPLACED_PLATFORMS = ("cpu", "cuda", "rocm")


def lower_geqrf(ctx: Any, a: Any) -> Sequence[Any]:
    """Lowers [..., m, n] to R and the reflectors packed [..., m, n], and taus [..., min(m, n)]."""
    if _has_no_elements(ctx.avals_in[0]):
        return lower_fun(_factor_empty)(ctx, a)
    rules = dict.fromkeys(_REPLACED_PLATFORMS, common_rule(geqrf_p))
    return lower_by_platform(ctx, geqrf_p, rules, a)


def lower_householder_product(ctx: Any, a: Any, taus: Any) -> Sequence[Any]:
    """Lowers packed reflectors [..., m, n] and taus [..., k] to Q [..., m, n]."""
    if _has_no_elements(ctx.avals_in[1]) or _has_no_elements(ctx.avals_in[0]):
        return lower_fun(_make_identity, multiple_results=False)(ctx, a, taus)
    primitive = lax.linalg.householder_product_p
    rules = dict.fromkeys(_REPLACED_PLATFORMS, common_rule(primitive))
    return lower_by_platform(ctx, primitive, rules, a, taus)


def _factor_with_pivoting(a: Any, *, rank: Any, full: bool) -> tuple[Any, Any, Any]:
    """Computes Q, R and the column order: the column of `a` for each column of R."""
    packed, order, taus = pivoted_qr(
        a, lax.full((*a.shape[:-2], a.shape[-1]), 0, np.int32), rank=rank
    )
    return *_unpack(packed, taus, rank=rank, full=full), order - np.int32(1)


def qr(a: Any, *, rank: Any, full: bool = False) -> tuple[Any, Any]:
    """Computes Q [m, k] and R [k, n] for a [..., m, n]; k is `rank`, min(m, n), or m if `full`."""
    packed, taus = jnp.linalg.qr(a, mode="raw")
    packed = lax.transpose(packed, (*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))
    return _unpack(packed, taus, rank=rank, full=full)


def _unpack(packed: Any, taus: Any, *, rank: Any, full: bool) -> tuple[Any, Any]:
    *batch, m, n = packed.shape
    k = m if full else rank
    q = lax.linalg.householder_product(resize(packed, (*batch, m, k)), taus)
    return q, where(distance_below_diagonal(k, n) > 0, 0, resize(packed, (*batch, k, n)))


def lower_qr(
    ctx: Any, a: Any, *, pivoting: bool, full_matrices: bool, **options: Any
) -> Sequence[Any]:
    """Lowers qr as JAX does, but also if it is unknown which of two symbolic sizes is smaller."""
    aval = ctx.avals_in[0]
    if are_sizes_known(*aval.shape[-2:]):
        params = {"pivoting": pivoting, "full_matrices": full_matrices, **options}
        return common_rule(lax.linalg.qr_p)(ctx, a, **params)
    thin = jax.eval_shape(functools.partial(jnp.linalg.qr, mode="r"), aval)
    rank = thin.shape[-2]
    factor = _factor_with_pivoting if pivoting else qr
    return lower_fun(functools.partial(factor, rank=rank, full=full_matrices))(ctx, a)


def ormqr(a: Any, taus: Any, c: Any, *, left: bool, transpose: bool) -> Any:
    """Computes Q c, Q^H c, c Q or c Q^H for the m x m Q of packed reflectors a [..., m, n]."""
    m, count = a.shape[-2], taus.shape[-1]
    packed = a[..., :count]
    padding = [(0, 0, 0)] * (a.ndim - 1) + [(0, m - count, 0)]
    q = lax.linalg.householder_product(lax.pad(packed, np.zeros((), a.dtype), padding), taus)
    q = adjoint(q) if transpose else q
    return matmul(q, c) if left else matmul(c, q)


def _has_no_elements(aval: Any) -> bool:
    static = [d for d in aval.shape if isinstance(d, int)]
    return math.prod(static) == 0


def _factor_empty(a: Any) -> tuple[Any, Any]:
    taus = (*a.shape[:-2], min(a.shape[-2:]))
    return a, lax.full(taus, 0, a.dtype)


def _make_identity(a: Any, taus: Any) -> Any:
    del taus
    return eye_like(a, *a.shape[-2:])
