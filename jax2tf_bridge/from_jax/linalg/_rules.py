"""Lowering rules that replace calls of LAPACK, cusolver and hipsolver, by platform."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import random as extend_random

from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    can_make_custom_calls,
    find_common_rule,
    find_primitive,
    lower_by_platform,
    lower_fun,
    lower_to_custom_call,
    make_platform_rule,
)
from jax2tf_bridge.from_jax.linalg._arrays import adjoint, are_sizes_known, eye_like, real
from jax2tf_bridge.from_jax.linalg._eigh import eigh, max_jacobi_rows
from jax2tf_bridge.from_jax.linalg._linear_systems import (
    cholesky,
    is_substitution_fast,
    lu,
    triangular_solve,
    tridiagonal_solve,
)
from jax2tf_bridge.from_jax.linalg._reflectors import (
    hessenberg,
    ormqr,
    pivoted_qr,
    qr,
    qr_with_pivoting,
    tridiagonal,
)
from jax2tf_bridge.from_jax.linalg._schur_and_eig import eig, schur
from jax2tf_bridge.from_jax.linalg._svd import svd

# Platforms on which TensorFlow lacks the handlers that jaxlib registers. TPU and unknown platforms
# keep JAX's own rules.
_PLATFORMS = ("cpu", "cuda", "rocm")
_GPUS = ("cuda", "rocm")

# For primitives without a JAX rule on TPU.
_ALL_PLATFORMS = (*_PLATFORMS, "tpu")

# Maximum number of rows for which the op cholesky is as fast on CPU as the blocked form.
_MAX_CHOLESKY_OP_ROWS = 24


def make_linalg_rules(
    platforms: Sequence[str], *, calls_eigh: bool = True
) -> tuple[tuple[Any, Rule], ...]:
    """Lists (primitive, rule) pairs; each rule lowers for all the platforms of its context.

    Args:
      platforms: the platforms of the export.
      calls_eigh: whether small matrices may be left to the custom call Eigh, which XLA expands.
    """
    names = lax.linalg
    # JAX cannot lower these on TPU, or not with open sizes.
    rules = {
        p: make_platform_rule(p, rule, _ALL_PLATFORMS)
        for p, rule in (
            (names.eig_p, lower_fun(eig)),
            (names.schur_p, lower_fun(schur)),
            (names.hessenberg_p, lower_fun(hessenberg)),
            (names.tridiagonal_p, lower_fun(tridiagonal)),
            (find_primitive("geqp3_p"), _lower_pivoted_qr),
        )
    }
    rules[names.tridiagonal_solve_p] = _lower_tridiagonal_solve
    lower_eigh = functools.partial(_lower_eigh, may_call=calls_eigh)
    for primitive, rule in ((names.svd_p, _lower_svd), (names.eigh_p, lower_eigh)):
        rules[primitive] = functools.partial(_lower_by_size, primitive, rule)
    if not set(platforms).isdisjoint(_PLATFORMS):
        rules |= _list_cpu_gpu_rules()
    return tuple((p, rule) for p, rule in rules.items() if p is not None)


def _list_cpu_gpu_rules() -> dict[Any, Rule]:
    names = lax.linalg
    # JAX has rules without custom calls for these, but does not use them on GPUs.
    without_custom_calls = (
        names.lu_pivots_to_permutation_p,
        names.symmetric_product_p,
        names.cholesky_update_p,
    )
    rules = {
        names.lu_p: _lower_lu,
        # Absent before JAX 0.10, where qr_multiply uses householder_product.
        getattr(names, "ormqr_p", None): lower_fun(ormqr),
        **{p: find_common_rule(p) for p in without_custom_calls},
    }
    threefry = extend_random.threefry2x32_p
    geqrf, product = find_primitive("geqrf_p"), names.householder_product_p
    return {
        **{p: make_platform_rule(p, rule, _PLATFORMS) for p, rule in rules.items()},
        # jax_threefry_gpu_kernel_lowering makes JAX's GPU rules custom calls.
        threefry: make_platform_rule(threefry, find_common_rule(threefry), _GPUS),
        geqrf: functools.partial(_lower_unless_empty, geqrf, _factor_empty),
        product: functools.partial(_lower_unless_empty, product, _multiply_empty),
        names.cholesky_p: _lower_cholesky,
        names.triangular_solve_p: _lower_triangular_solve,
        names.qr_p: _lower_qr,
    }


def _lower_lu(ctx: Any, a: Any) -> Sequence[Any]:
    return lower_fun(functools.partial(lu, rank=ctx.avals_out[1].shape[-1]))(ctx, a)


def _lower_unless_empty(
    primitive: Any, for_empty: Callable[..., Any], ctx: Any, *args: Any
) -> Sequence[Any]:
    if any(map(_has_no_elements, ctx.avals_in)):
        return lower_fun(for_empty)(ctx, *args)
    return make_platform_rule(primitive, find_common_rule(primitive), _PLATFORMS)(ctx, *args)


def _factor_empty(a: Any) -> tuple[Any, Any]:
    taus = (*a.shape[:-2], min(a.shape[-2:]))
    return a, lax.full(taus, 0, a.dtype)


def _multiply_empty(a: Any, taus: Any) -> Any:
    return eye_like(a, *a.shape[-2:])


def _has_no_elements(aval: Any) -> bool:
    return math.prod(d for d in aval.shape if isinstance(d, int)) == 0


def _lower_qr(
    ctx: Any, a: Any, *, pivoting: bool, full_matrices: bool, **options: Any
) -> Sequence[Any]:
    """Lowers qr as JAX does, but also if it is unknown which of two symbolic sizes is smaller."""
    aval = ctx.avals_in[0]
    if are_sizes_known(*aval.shape[-2:]):
        params = {"pivoting": pivoting, "full_matrices": full_matrices, **options}
        return find_common_rule(lax.linalg.qr_p)(ctx, a, **params)
    thin = jax.eval_shape(functools.partial(jnp.linalg.qr, mode="r"), aval)
    factor = qr_with_pivoting if pivoting else qr
    return lower_fun(functools.partial(factor, rank=thin.shape[-2], full=full_matrices))(ctx, a)


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
    return make_platform_rule(primitive, rule, platforms)(ctx, a, **params)


def _lower_eigh(
    ctx: Any,
    a: Any,
    *,
    lower: bool,
    sort_eigenvalues: bool,
    subset_by_index: tuple[int, int] | None,
    may_call: bool,
    **algorithm: Any,
) -> Sequence[Any]:
    del sort_eigenvalues, algorithm  # the result is always sorted, with any algorithm
    aval = ctx.avals_in[0]
    n = aval.shape[-1]
    if subset_by_index is not None and tuple(subset_by_index) != (0, n):
        raise NotImplementedError(
            f"JAX supports eigh with subset_by_index={subset_by_index} of a matrix of {n} rows "
            "only on TPU. Remove subset_by_index and slice the result."
        )
    if n == 0:
        return lower_fun(_decompose_empty)(ctx, a)
    is_small = are_sizes_known(n) and n <= max_jacobi_rows(aval.dtype)
    if not (may_call and is_small and can_make_custom_calls()):
        return lower_fun(eigh)(ctx, a, lower=lower)
    if not lower:
        # XLA expands Eigh once for each shape in a module, for the triangle of the first call.
        return lower_fun(_decompose_upper)(ctx, a)
    # Lower triangle, sorted, at most 100 sweeps, squared tolerance for off-diagonal entries.
    return lower_to_custom_call(ctx, "Eigh", a, backend_config="1,1,100,1e-10")


def _decompose_upper(a: Any) -> tuple[Any, ...]:
    return tuple(lax.linalg.eigh(adjoint(a), lower=True, symmetrize_input=False))


def _decompose_empty(a: Any) -> tuple[Any, Any]:
    return a, real(lax.full(a.shape[:-1], 0, a.dtype))


def _lower_cholesky(ctx: Any, a: Any) -> Sequence[Any]:
    op = find_common_rule(lax.linalg.cholesky_p)
    n = ctx.avals_in[0].shape[-1]
    is_blocked = isinstance(n, int) and n > _MAX_CHOLESKY_OP_ROWS
    rules = {"cpu": lower_fun(cholesky) if is_blocked else op, **dict.fromkeys(_GPUS, op)}
    return lower_by_platform(lax.linalg.cholesky_p, rules, ctx, a)


def _lower_triangular_solve(ctx: Any, a: Any, b: Any, **params: Any) -> Sequence[Any]:
    # XLA expands the op on CPU, and has solvers for it on GPUs.
    op = find_common_rule(lax.linalg.triangular_solve_p)
    is_fast = is_substitution_fast(*ctx.avals_in, left_side=params["left_side"])
    rules = {"cpu": lower_fun(triangular_solve) if is_fast else op, **dict.fromkeys(_GPUS, op)}
    return lower_by_platform(lax.linalg.triangular_solve_p, rules, ctx, a, b, **params)


def _lower_tridiagonal_solve(ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    # JAX's TPU rule cannot perturb singular systems, and needs a known size.
    is_known = are_sizes_known(ctx.avals_in[1].shape[-1])
    platforms = _ALL_PLATFORMS if params.get("perturb_singular") or not is_known else _PLATFORMS
    rule = lower_fun(tridiagonal_solve)
    return make_platform_rule(lax.linalg.tridiagonal_solve_p, rule, platforms)(ctx, *args, **params)
