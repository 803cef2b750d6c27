"""Lowering rules that replace calls of LAPACK, cusolver and hipsolver, by platform."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import random as extend_random

from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    by_platform,
    common_rule,
    custom_call,
    custom_calls_possible,
    geqp3_p,
    geqrf_p,
    has_primitive,
    lower_by_platform,
    lower_fun,
)
from jax2tf_bridge.from_jax.linalg._arrays import adjoint, are_sizes_known, eye_like, real
from jax2tf_bridge.from_jax.linalg._eig import eig
from jax2tf_bridge.from_jax.linalg._eigh import eigh, max_jacobi_rows
from jax2tf_bridge.from_jax.linalg._linear_systems import (
    is_substitution_fast,
    triangular_solve,
    tridiagonal_solve,
)
from jax2tf_bridge.from_jax.linalg._lu_and_cholesky import cholesky, lu
from jax2tf_bridge.from_jax.linalg._reflectors import (
    hessenberg,
    ormqr,
    pivoted_qr,
    qr,
    qr_with_pivoting,
    tridiagonal,
)
from jax2tf_bridge.from_jax.linalg._schur import schur
from jax2tf_bridge.from_jax.linalg._svd import svd

# Platforms on which TensorFlow lacks the handlers that jaxlib registers. TPU and unknown platforms
# keep JAX's own rules.
_PLATFORMS = ("cpu", "cuda", "rocm")
_GPUS = ("cuda", "rocm")

# Maximum number of rows for which the op cholesky is as fast on CPU as the blocked form.
_MAX_CHOLESKY_OP_ROWS = 24

_lower_large_eigh = lower_fun(eigh)
_lower_cholesky = lower_fun(cholesky, multiple_results=False)
_lower_substitution = lower_fun(triangular_solve, multiple_results=False)
_lower_tridiagonal_solve = lower_fun(tridiagonal_solve, multiple_results=False)

_lower_eig = lower_fun(eig)
_lower_schur = lower_fun(schur)
_lower_hessenberg = lower_fun(hessenberg)
_lower_tridiagonal = lower_fun(tridiagonal)

# For primitives without a JAX rule on TPU.
_ALL_PLATFORMS = (*_PLATFORMS, "tpu")


def linalg_rules(platforms: Sequence[str]) -> tuple[tuple[Any, Rule], ...]:
    """Lists (primitive, rule) pairs; each rule lowers for all the platforms of its context."""
    rules = _list_common_rules()
    return rules if set(platforms).isdisjoint(_PLATFORMS) else (*rules, *_list_cpu_gpu_rules())


def _list_common_rules() -> tuple[tuple[Any, Rule], ...]:
    """Lists the rules for primitives that JAX cannot lower on TPU, or not with open sizes."""
    new_rules: list[tuple[Any, Rule]] = [
        (lax.linalg.eig_p, _lower_eig),
        (lax.linalg.schur_p, _lower_schur),
        (lax.linalg.hessenberg_p, _lower_hessenberg),
        (lax.linalg.tridiagonal_p, _lower_tridiagonal),
    ]
    if has_primitive("geqp3_p"):
        new_rules.append((geqp3_p, _lower_pivoted_qr))
    return (
        *((p, by_platform(p, dict.fromkeys(_ALL_PLATFORMS, rule))) for p, rule in new_rules),
        (lax.linalg.tridiagonal_solve_p, _lower_tridiagonal_solve_by_platform),
        (lax.linalg.svd_p, functools.partial(_lower_by_size, lax.linalg.svd_p, _lower_svd)),
        (lax.linalg.eigh_p, functools.partial(_lower_by_size, lax.linalg.eigh_p, _lower_eigh)),
    )


def _list_cpu_gpu_rules() -> tuple[tuple[Any, Rule], ...]:
    new_rules: list[tuple[Any, Rule]] = [
        (lax.linalg.lu_p, _lower_lu),
    ]
    # Absent before JAX 0.10, where qr_multiply uses householder_product.
    ormqr_p = getattr(lax.linalg, "ormqr_p", None)
    if ormqr_p is not None:
        new_rules.append((ormqr_p, lower_fun(ormqr, multiple_results=False)))
    # JAX has rules without custom calls for these, but does not use them on GPUs.
    plain = [
        lax.linalg.lu_pivots_to_permutation_p,
        lax.linalg.symmetric_product_p,
        lax.linalg.cholesky_update_p,
    ]
    return (
        *((p, by_platform(p, dict.fromkeys(_PLATFORMS, rule))) for p, rule in new_rules),
        *((p, by_platform(p, dict.fromkeys(_PLATFORMS, common_rule(p)))) for p in plain),
        *([(geqrf_p, _lower_geqrf)] if has_primitive("geqrf_p") else []),
        (lax.linalg.householder_product_p, _lower_householder_product),
        (lax.linalg.cholesky_p, _lower_cholesky_by_platform),
        (lax.linalg.triangular_solve_p, _lower_triangular_solve_by_platform),
        (lax.linalg.qr_p, _lower_qr),
        (extend_random.threefry2x32_p, _lower_threefry_by_platform),
    )


def _lower_lu(ctx: Any, a: Any) -> Sequence[Any]:
    return lower_fun(functools.partial(lu, rank=ctx.avals_out[1].shape[-1]))(ctx, a)


def _lower_geqrf(ctx: Any, a: Any) -> Sequence[Any]:
    if _has_no_elements(ctx.avals_in[0]):
        return lower_fun(_factor_empty)(ctx, a)
    rules = dict.fromkeys(_PLATFORMS, common_rule(geqrf_p))
    return lower_by_platform(ctx, geqrf_p, rules, a)


def _factor_empty(a: Any) -> tuple[Any, Any]:
    taus = (*a.shape[:-2], min(a.shape[-2:]))
    return a, lax.full(taus, 0, a.dtype)


def _lower_householder_product(ctx: Any, a: Any, taus: Any) -> Sequence[Any]:
    if _has_no_elements(ctx.avals_in[1]) or _has_no_elements(ctx.avals_in[0]):
        return lower_fun(_make_identity, multiple_results=False)(ctx, a, taus)
    primitive = lax.linalg.householder_product_p
    rules = dict.fromkeys(_PLATFORMS, common_rule(primitive))
    return lower_by_platform(ctx, primitive, rules, a, taus)


def _make_identity(a: Any, taus: Any) -> Any:
    del taus
    return eye_like(a, *a.shape[-2:])


def _has_no_elements(aval: Any) -> bool:
    static = [d for d in aval.shape if isinstance(d, int)]
    return math.prod(static) == 0


def _lower_qr(
    ctx: Any, a: Any, *, pivoting: bool, full_matrices: bool, **options: Any
) -> Sequence[Any]:
    """Lowers qr as JAX does, but also if it is unknown which of two symbolic sizes is smaller."""
    aval = ctx.avals_in[0]
    if are_sizes_known(*aval.shape[-2:]):
        params = {"pivoting": pivoting, "full_matrices": full_matrices, **options}
        return common_rule(lax.linalg.qr_p)(ctx, a, **params)
    thin = jax.eval_shape(functools.partial(jnp.linalg.qr, mode="r"), aval)
    rank = thin.shape[-2]
    factor = qr_with_pivoting if pivoting else qr
    return lower_fun(functools.partial(factor, rank=rank, full=full_matrices))(ctx, a)


def _lower_pivoted_qr(ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    rank = ctx.avals_out[2].shape[-1]
    return lower_fun(functools.partial(pivoted_qr, rank=rank))(ctx, *args, **params)


def _lower_svd(ctx: Any, a: Any, **params: Any) -> Sequence[Any]:
    # The rank is min(m, n), even if only some of the singular values are requested.
    m, n = ctx.avals_in[0].shape[-2:]
    rank = m if m == n else jax.eval_shape(jnp.linalg.svdvals, ctx.avals_in[0]).shape[-1]
    return lower_fun(functools.partial(svd, rank=rank))(ctx, a, **params)


def _lower_by_size(primitive: Any, rule: Rule, ctx: Any, a: Any, **params: Any) -> Sequence[Any]:
    # JAX's TPU rules support open sizes only in the batch.
    platforms = _PLATFORMS if are_sizes_known(*ctx.avals_in[0].shape[-2:]) else _ALL_PLATFORMS
    return lower_by_platform(ctx, primitive, dict.fromkeys(platforms, rule), a, **params)


def _lower_eigh(
    ctx: Any,
    a: Any,
    *,
    lower: bool,
    sort_eigenvalues: bool,
    subset_by_index: tuple[int, int] | None,
    **algorithm: Any,
) -> Sequence[Any]:
    del sort_eigenvalues, algorithm  # the result is always sorted, with any algorithm
    aval = ctx.avals_in[0]
    n = aval.shape[-1]
    if subset_by_index is not None and tuple(subset_by_index) != (0, n):
        raise NotImplementedError(
            f"eigh with subset_by_index={subset_by_index} of a matrix of {n} rows: JAX has it on "
            "no platform but TPU. Leave it out and slice the result."
        )
    if n == 0:
        return lower_fun(_decompose_empty)(ctx, a)
    small = are_sizes_known(n) and n <= max_jacobi_rows(aval.dtype)
    if not (small and custom_calls_possible()):
        return _lower_large_eigh(ctx, a, lower=lower)
    if not lower:
        # XLA expands Eigh once for each shape in a module, for the triangle of the first call.
        return lower_fun(_decompose_upper)(ctx, a)
    # Lower triangle, sorted, at most 100 sweeps, squared tolerance for off-diagonal entries.
    return custom_call("Eigh", "1,1,100,1e-10")(ctx, a)


def _decompose_upper(a: Any) -> tuple[Any, Any]:
    vectors, values = lax.linalg.eigh(adjoint(a), lower=True, symmetrize_input=False)
    return vectors, values


def _decompose_empty(a: Any) -> tuple[Any, Any]:
    return a, real(lax.full(a.shape[:-1], 0, a.dtype))


def _lower_cholesky_by_platform(ctx: Any, a: Any) -> Sequence[Any]:
    op = common_rule(lax.linalg.cholesky_p)
    n = ctx.avals_in[0].shape[-1]
    blocked = isinstance(n, int) and n > _MAX_CHOLESKY_OP_ROWS
    rules = {"cpu": _lower_cholesky if blocked else op, **dict.fromkeys(_GPUS, op)}
    return lower_by_platform(ctx, lax.linalg.cholesky_p, rules, a)


def _lower_triangular_solve_by_platform(ctx: Any, a: Any, b: Any, **params: Any) -> Sequence[Any]:
    # XLA expands the op on CPU, and has solvers for it on GPUs.
    op = common_rule(lax.linalg.triangular_solve_p)
    fast = is_substitution_fast(*ctx.avals_in, left_side=params["left_side"])
    rules = {"cpu": _lower_substitution if fast else op, **dict.fromkeys(_GPUS, op)}
    return lower_by_platform(ctx, lax.linalg.triangular_solve_p, rules, a, b, **params)


def _lower_tridiagonal_solve_by_platform(ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    # JAX's TPU rule cannot perturb singular systems, and needs a known size.
    known = are_sizes_known(ctx.avals_in[1].shape[-1])
    platforms = _ALL_PLATFORMS if params.get("perturb_singular") or not known else _PLATFORMS
    rules = dict.fromkeys(platforms, _lower_tridiagonal_solve)
    return lower_by_platform(ctx, lax.linalg.tridiagonal_solve_p, rules, *args, **params)


def _lower_threefry_by_platform(ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    primitive = extend_random.threefry2x32_p
    # jax_threefry_gpu_kernel_lowering makes JAX's GPU rules custom calls.
    rules = dict.fromkeys(_GPUS, common_rule(primitive))
    return lower_by_platform(ctx, primitive, rules, *args, **params)
