"""Lowering rules that replace JAX's own.

Gather and scatter: StableHLO has batching dimensions since 1.1.0. TF 2.15 and 2.16 cannot read
them, and the XLA of TF 2.17 fails on them. For these releases, the batch position becomes one more
index: an iota concatenated with the indices.

Convolutions: the number of groups is a constant attribute in StableHLO. jax.vmap over both images
and kernels turns the batch into groups; if the batch is open, the rule writes a loop.

Maxima and minima: stablehlo/_rewrites.py has the reason for keeping NaN, and rewrites all but
reductions, which are lowered here because the platform is known during lowering.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jax_core

from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    can_override_rules,
    find_common_rule,
    find_jax_rule,
    find_primitive,
    list_platforms,
    lower_by_platform,
    lower_fun,
    make_platform_rule,
)
from jax2tf_bridge.from_jax.linalg import make_linalg_rules
from jax2tf_bridge.from_jax.lowering._calls import make_composite_rules
from jax2tf_bridge.targets import PLATFORMS, TENSORFLOW_RELEASES

# The StableHLO version of the first TF release that can run gathers with batching dimensions.
_BATCHING_DIMS_SINCE = TENSORFLOW_RELEASES["2.18"][0]

# StableHLO has the attribute result_accuracy since 1.9 (TF 2.19). All operations below have it
# since 1.10.
_RESULT_ACCURACY_SINCE = (1, 10, 0)

_WITH_ACCURACY = (
    *(lax.cbrt_p, lax.cos_p, lax.exp2_p, lax.exp_p, lax.expm1_p, lax.log1p_p, lax.log_p),
    *(lax.logistic_p, lax.rsqrt_p, lax.sin_p, lax.sqrt_p, lax.tan_p, lax.tanh_p),
)
_SCATTERS = (
    *(lax.scatter_p, lax.scatter_add_p, lax.scatter_sub_p, lax.scatter_mul_p),
    *(lax.scatter_min_p, lax.scatter_max_p),
)


@functools.lru_cache(maxsize=64)
def make_lowering_overrides(
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
    if not can_override_rules():
        return ()
    partial = functools.partial
    rules: dict[Any, Rule] = {
        lax.bitcast_convert_type_p: _lower_bitcast,
        lax.psum_p: partial(_lower_reduction_collective, lax.psum_p, lax.reduce_sum),
        lax.pmax_p: partial(_lower_reduction_collective, lax.pmax_p, lax.reduce_max),
        lax.pmin_p: partial(_lower_reduction_collective, lax.pmin_p, lax.reduce_min),
        lax.conv_general_dilated_p: _lower_convolution,
        **dict(make_linalg_rules(platforms, calls_eigh=xla)),
    }
    for primitive in (lax.all_gather_p, find_primitive("reduce_scatter_p")):
        rules[primitive] = partial(_lower_gather_collective, primitive)
    if (ragged := find_primitive("ragged_dot_general_p")) is not None:
        # On GPU and TPU, JAX writes a CHLO operation, which no TensorFlow runs and which cannot be
        # expanded with an open batch. The CPU rule masks each group, as the expansion would.
        rules[ragged] = make_platform_rule(ragged, find_common_rule(ragged), PLATFORMS)
    composite = find_primitive("composite_p")
    rules[composite] = partial(_lower_composite, composite)
    if stablehlo_version < _BATCHING_DIMS_SINCE:
        rules[lax.gather_p] = _lower_gather
        rules |= {p: partial(_lower_scatter, p) for p in _SCATTERS}
    if stablehlo_version < _RESULT_ACCURACY_SINCE:
        rules |= {p: partial(_lower_accuracy, p) for p in _WITH_ACCURACY}
    rules.pop(None, None)  # primitives that this JAX lacks
    return (*(rules | _make_extreme_rules() if xla else _keep_whole(rules)).items(),)


def _keep_whole(rules: dict[Any, Rule]) -> dict[Any, Rule]:
    """Replaces the rules of primitives that are one operation in TensorFlow."""
    operations = (lax.linalg.cholesky_p, lax.linalg.triangular_solve_p)
    whole = {
        **{p: find_common_rule(p) for p in operations},
        lax.approx_top_k_p: _lower_top_k,
    }
    return rules | whole | make_composite_rules(rules)


def _lower_top_k(ctx: Any, x: Any, *, reduction_dimension: int, is_max_k: bool, **_: Any) -> Any:
    """Lowers approx_top_k to the exact top k, which is a valid result of it."""
    k = ctx.avals_out[0].shape[reduction_dimension]  # more than requested without aggregate_to_topk

    def top_k(x: Any) -> Any:
        x = jnp.moveaxis(x, reduction_dimension, -1)
        values, indices = lax.top_k(x if is_max_k else -x, k)
        values = values if is_max_k else -values
        return [jnp.moveaxis(y, -1, reduction_dimension) for y in (values, indices)]

    return lower_fun(top_k)(ctx, x)


def _lower_accuracy(primitive: Any, ctx: Any, x: Any, **params: Any) -> Sequence[Any]:
    # JAX 0.12 sets an accuracy in the derivative of erf, and so in that of the exact gelu. On the
    # CPU the results are bitwise equal without it.
    rule = None if params.get("accuracy") is None else find_jax_rule(primitive, "cpu")
    rules = {} if rule is None else {"cpu": functools.partial(_drop_accuracy, rule)}
    return lower_by_platform(primitive, rules, ctx, x, **params)


def _drop_accuracy(rule: Rule, ctx: Any, x: Any, **params: Any) -> Sequence[Any]:
    return rule(ctx, x, **{**params, "accuracy": None})


def _lower_bitcast(ctx: Any, x: Any, *, new_dtype: Any) -> Sequence[Any]:
    # StableHLO's shape refinement skips a bitcast_convert that adds or removes a dimension, and XLA
    # then rejects the module. Shifts are equivalent.
    (operand,), (result,) = ctx.avals_in, ctx.avals_out
    if operand.ndim == result.ndim or _has_known_sizes(ctx):
        return find_common_rule(lax.bitcast_convert_type_p)(ctx, x, new_dtype=new_dtype)
    function = _join_words if operand.ndim > result.ndim else _split_words
    return lower_fun(functools.partial(function, new_dtype=new_dtype))(ctx, x)


def _join_words(x: Any, *, new_dtype: Any) -> Any:
    """Joins the k narrow words in the last axis of [..., k] to one wide word, lowest bits first."""
    unsigned, bits = _to_unsigned(new_dtype), _count_bits(x.dtype)
    parts = lax.convert_element_type(lax.bitcast_convert_type(x, _to_unsigned(x.dtype)), unsigned)
    shifts = lax.mul(lax.broadcasted_iota(unsigned, x.shape, x.ndim - 1), unsigned.type(bits))
    joined = lax.reduce_or(lax.shift_left(parts, shifts), (x.ndim - 1,))
    return lax.bitcast_convert_type(joined, new_dtype)


def _split_words(x: Any, *, new_dtype: Any) -> Any:
    """Splits each wide word of [...] into k narrow ones [..., k], lowest bits first."""
    unsigned, bits = _to_unsigned(x.dtype), _count_bits(new_dtype)
    shape = (*x.shape, _count_bits(x.dtype) // bits)
    whole = lax.broadcast_in_dim(lax.bitcast_convert_type(x, unsigned), shape, tuple(range(x.ndim)))
    shifts = lax.mul(lax.broadcasted_iota(unsigned, shape, x.ndim), unsigned.type(bits))
    shifted = lax.shift_right_logical(whole, shifts)
    parts = lax.bitwise_and(shifted, lax.full_like(shifted, 2**bits - 1))
    narrow = lax.convert_element_type(parts, _to_unsigned(new_dtype))
    return lax.bitcast_convert_type(narrow, new_dtype)


def _count_bits(dtype: Any) -> int:
    info = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    return int(info(dtype).bits)


def _to_unsigned(dtype: Any) -> np.dtype[Any]:
    unsigned: np.dtype[Any] = np.dtype(getattr(jnp, f"uint{_count_bits(dtype)}"))
    return unsigned


# Collectives within one device are over array axes, because jax.vmap turns its own axis into one,
# or over a mesh axis of size 1. JAX's rules fail for symbolic sizes.


def _lower_reduction_collective(
    primitive: Any, reduce: Callable[..., Any], ctx: Any, *args: Any, **params: Any
) -> Sequence[Any]:
    axes = params["axes"]
    if _has_known_sizes(ctx) or not all(isinstance(axis, int) for axis in axes):
        return lower_by_platform(primitive, {}, ctx, *args, **params)
    return lower_fun(lambda *arrays: [reduce(x, axes) for x in arrays])(ctx, *args)


def _lower_gather_collective(primitive: Any, ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    if _has_known_sizes(ctx) or params["axis_size"] != 1:
        return lower_by_platform(primitive, {}, ctx, *args, **params)
    (out,) = ctx.avals_out
    return lower_fun(lambda x: lax.reshape(x, out.shape))(ctx, *args)


def _has_known_sizes(ctx: Any) -> bool:
    return all(isinstance(d, int) for aval in ctx.avals_in for d in aval.shape)


def _lower_composite(primitive: Any, ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    # Composites would have to be expanded later, because no TensorFlow runs them. And before 0.12
    # JAX cannot lower one for several platforms at once.
    if "jaxpr" not in params:  # since JAX 0.12, whose own rule works
        return lower_by_platform(primitive, {}, ctx, *args, **params)
    return lower_fun(jax_core.jaxpr_as_fun(params["jaxpr"]))(ctx, *args)


def _lower_gather(ctx: Any, operand: Any, indices: Any, **params: Any) -> Sequence[Any]:
    numbers = params["dimension_numbers"]
    # JAX's rule lowers an empty result to a constant, which has no batching dimensions.
    is_empty = any(isinstance(d, int) and d == 0 for d in ctx.avals_out[0].shape)
    if not numbers.operand_batching_dims or is_empty:
        return lower_by_platform(lax.gather_p, {}, ctx, operand, indices, **params)
    return lower_fun(functools.partial(_gather, **params))(ctx, operand, indices)


def _gather(operand: Any, indices: Any, **params: Any) -> Any:
    numbers = params.pop("dimension_numbers")
    indices_are_sorted = params.pop("indices_are_sorted")
    start_index_map = (*numbers.operand_batching_dims, *numbers.start_index_map)
    return lax.gather_p.bind(
        operand,
        _prepend_batch_positions(indices, numbers.start_indices_batching_dims),
        dimension_numbers=lax.GatherDimensionNumbers(
            offset_dims=numbers.offset_dims,
            collapsed_slice_dims=tuple(
                sorted((*numbers.collapsed_slice_dims, *numbers.operand_batching_dims))
            ),
            start_index_map=start_index_map,
        ),
        indices_are_sorted=indices_are_sorted
        and _stays_sorted(numbers.start_indices_batching_dims, start_index_map),
        **params,
    )


def _lower_scatter(
    primitive: Any, ctx: Any, operand: Any, indices: Any, updates: Any, **params: Any
) -> Sequence[Any]:
    if not params["dimension_numbers"].operand_batching_dims:
        # JAX's GPU rule differs from its default only for complex128, so other dtypes need no
        # branches.
        default = find_jax_rule(primitive, "tpu")
        rules: dict[str, Rule] = {}
        if default is not None and ctx.avals_in[0].dtype != np.complex128:
            rules = dict.fromkeys(set(list_platforms(ctx)) & {"cpu", "cuda", "rocm"}, default)
        return lower_by_platform(primitive, rules, ctx, operand, indices, updates, **params)
    function = functools.partial(_scatter, primitive, **params)
    return lower_fun(function)(ctx, operand, indices, updates)


def _scatter(primitive: Any, operand: Any, indices: Any, updates: Any, **params: Any) -> Any:
    numbers = params.pop("dimension_numbers")
    indices_are_sorted = params.pop("indices_are_sorted")
    scatter_dims = (*numbers.operand_batching_dims, *numbers.scatter_dims_to_operand_dims)
    return primitive.bind(
        operand,
        _prepend_batch_positions(indices, numbers.scatter_indices_batching_dims),
        updates,
        dimension_numbers=lax.ScatterDimensionNumbers(
            update_window_dims=numbers.update_window_dims,
            inserted_window_dims=tuple(
                sorted((*numbers.inserted_window_dims, *numbers.operand_batching_dims))
            ),
            scatter_dims_to_operand_dims=scatter_dims,
        ),
        indices_are_sorted=indices_are_sorted
        and _stays_sorted(numbers.scatter_indices_batching_dims, scatter_dims),
        **params,
    )


def _prepend_batch_positions(indices: Any, batching_dims: Sequence[int]) -> Any:
    """Prepends the position along each batching dimension to `indices` [..., k]: [..., n + k].

    Narrow index types are widened to 32 bits, because a batch may exceed their range.
    """
    if indices.dtype.itemsize < 4:
        indices = lax.convert_element_type(indices, np.dtype(np.int32))
    shape = (*indices.shape[:-1], 1)
    positions = [lax.broadcasted_iota(indices.dtype, shape, dim) for dim in batching_dims]
    return lax.concatenate([*positions, indices], len(shape) - 1)


def _stays_sorted(batching_dims: Sequence[int], operand_dims: Sequence[int]) -> bool:
    """Returns whether sorted indices stay sorted with the batch positions prepended.

    They do if the batch positions vary slowest, and if the index vectors have the order of the
    operand's dimensions.
    """
    return tuple(batching_dims) == tuple(range(len(batching_dims))) and list(
        operand_dims
    ) == sorted(operand_dims)


_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)


def _lower_convolution(ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Sequence[Any]:
    groups = (params["feature_group_count"], params["batch_group_count"])
    if all(isinstance(count, int) for count in groups):
        return lower_by_platform(lax.conv_general_dilated_p, {}, ctx, lhs, rhs, **params)
    return lower_fun(functools.partial(_convolve_in_loop, **params))(ctx, lhs, rhs)


def _convolve_in_loop(
    lhs: Any, rhs: Any, *, feature_group_count: Any, batch_group_count: Any, **params: Any
) -> Any:
    """Runs convolutions in a loop, each with the largest static number of groups."""
    numbers = params["dimension_numbers"]
    by_features = not isinstance(feature_group_count, int)
    count = feature_group_count if by_features else batch_group_count
    static_count = _find_factor(count)
    outer = count // static_count
    lhs = _split(lhs, numbers.lhs_spec[1 if by_features else 0], outer)
    rhs = _split(rhs, numbers.rhs_spec[0], outer)

    def convolve(group: tuple[Any, Any]) -> Any:
        return lax.conv_general_dilated_p.bind(
            *group,
            feature_group_count=static_count if by_features else 1,
            batch_group_count=1 if by_features else static_count,
            **params,
        )

    return _join(lax.map(convolve, (lhs, rhs)), numbers.out_spec[1])


def _find_factor(count: Any) -> int:
    """Returns a number that divides the open count for all sizes, such as 4 for 4*b."""
    factor = 1
    for prime in _PRIMES:
        while isinstance(rest := count % (factor * prime), int) and rest == 0:
            factor *= prime
    return factor


def _split(x: Any, axis: int, outer: Any) -> Any:
    """Splits an axis into (outer, rest), and moves the outer part to the front."""
    shape = (*x.shape[:axis], outer, x.shape[axis] // outer, *x.shape[axis + 1 :])
    x = lax.reshape(x, shape)
    return lax.transpose(x, (axis, *(i for i in range(x.ndim) if i != axis)))


def _join(x: Any, axis: int) -> Any:
    """Merges the first axis into `axis`, as its outer part; reverses `_split`."""
    order = [*range(1, x.ndim)]
    order.insert(axis, 0)
    x = lax.transpose(x, order)
    shape = (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
    return lax.reshape(x, shape)


def _make_extreme_rules() -> dict[Any, Rule]:
    """Returns the rules for reductions and clamps.

    `keep_nan` rewrites the remaining maxima and minima in the module: elementwise ones, and those
    in the bodies of scatters and other reductions.
    """
    rules: dict[Any, Rule] = {
        lax.clamp_p: _lower_clamp,
        lax.reduce_p: functools.partial(_lower_reduction, lax.reduce_p, _reduce),
        lax.reduce_window_p: functools.partial(
            _lower_reduction, lax.reduce_window_p, _reduce_window
        ),
    }
    for primitive, reduce, exact, init in (
        (lax.reduce_max_p, _reduce_axes, _exact_maximum, -np.inf),
        (lax.reduce_min_p, _reduce_axes, _exact_minimum, np.inf),
        (lax.reduce_window_max_p, lax.reduce_window, _exact_maximum, -np.inf),
        (lax.reduce_window_min_p, lax.reduce_window, _exact_minimum, np.inf),
    ):
        rule = lower_fun(functools.partial(_reduce_from, reduce, init, exact))
        rules[primitive] = functools.partial(_lower_on_cpu, primitive, rule)
    return rules


def _exact_maximum(x: Any, y: Any) -> Any:
    return lax.select(lax.bitwise_or(lax.ge(x, y), lax.ne(x, x)), x, y)


def _exact_minimum(x: Any, y: Any) -> Any:
    return lax.select(lax.bitwise_or(lax.le(x, y), lax.ne(x, x)), x, y)


_EXACT_REDUCERS: Mapping[Any, Callable[..., Any]] = {
    lax.max_p: _exact_maximum,
    lax.min_p: _exact_minimum,
}


def _is_float(ctx: Any) -> bool:
    return bool(jnp.issubdtype(ctx.avals_out[0].dtype, jnp.floating))


def _reduce_from(
    reduce: Callable[..., Any], init: float, exact: Callable[..., Any], x: Any, **params: Any
) -> Any:
    start = np.asarray(init, x.dtype)
    if np.isnan(start):  # float8_e4m3fn and other dtypes have no infinities
        finfo: Any = jnp.finfo
        start = np.asarray(finfo(x.dtype).min if init < 0 else finfo(x.dtype).max, x.dtype)
    return reduce(x, start, exact, **params)


def _reduce_axes(x: Any, init: Any, exact: Any, *, axes: Sequence[int], **_: Any) -> Any:
    return lax.reduce(x, init, exact, axes)


def _lower_on_cpu(primitive: Any, rule: Rule, ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    # Fast maxima that drop NaN exist only on the CPU. On GPU and TPU, XLA has faster kernels for
    # the reducers that it recognizes.
    rules = {"cpu": rule} if _is_float(ctx) else {}
    return lower_by_platform(primitive, rules, ctx, *args, **params)


def _lower_reduction(
    primitive: Any, reduce: Callable[..., Any], ctx: Any, *operands: Any, **params: Any
) -> Sequence[Any]:
    """Lowers a reduction; a maximum or minimum of floats keeps NaN."""
    equations = getattr(params["jaxpr"], "jaxpr", params["jaxpr"]).eqns
    exact = _EXACT_REDUCERS.get(equations[0].primitive) if len(equations) == 1 else None
    if exact is None or len(operands) != 2:
        return lower_by_platform(primitive, {}, ctx, *operands, **params)
    rule = lower_fun(functools.partial(reduce, exact))
    return _lower_on_cpu(primitive, rule, ctx, *operands, **params)


def _reduce(exact: Any, x: Any, init: Any, *, dimensions: Sequence[int], **_: Any) -> Any:
    return lax.reduce(x, init, exact, dimensions)


def _reduce_window(exact: Any, x: Any, init: Any, *, jaxpr: Any, consts: Any, **params: Any) -> Any:
    return lax.reduce_window(x, init, exact, **params)


def _lower_clamp(ctx: Any, low: Any, x: Any, high: Any, **params: Any) -> Sequence[Any]:
    if not _is_float(ctx):
        return find_common_rule(lax.clamp_p)(ctx, low, x, high, **params)

    def clamp(low: Any, x: Any, high: Any) -> Any:
        low, high = (lax.broadcast(y, x.shape) if y.ndim < x.ndim else y for y in (low, high))
        return lax.min(lax.max(x, low), high)

    return lower_fun(clamp)(ctx, low, x, high)
