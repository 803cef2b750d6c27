"""Lowering rules for single operations: gather, scatter, convolutions, maxima and minima.

Gather and scatter: StableHLO has batching dimensions since 1.1.0. TF 2.15 and 2.16 cannot read
them, and the XLA of TF 2.17 fails on them. For these releases, the batch position becomes one more
index: an iota concatenated with the indices.

Convolutions: the number of groups is a constant attribute in StableHLO. jax.vmap over both images
and kernels turns the batch into groups; if the batch is open, the rule writes a loop.

Maxima and minima: stablehlo/_keeping_nan.py has the reason for keeping NaN, and rewrites all but
reductions, which are lowered here because the platform is known during lowering.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    by_platform,
    common_rule,
    jax_rule,
    lower_by_platform,
    lower_fun,
    platforms_of,
)
from jax2tf_bridge.targets import TENSORFLOW_RELEASES

# The StableHLO version of the first TF release that can run gathers with batching dimensions.
BATCHING_DIMS_SINCE = TENSORFLOW_RELEASES["2.18"][0]

_SCATTERS = (
    lax.scatter_p,
    lax.scatter_add_p,
    lax.scatter_sub_p,
    lax.scatter_mul_p,
    lax.scatter_min_p,
    lax.scatter_max_p,
)


def indexing_rules() -> tuple[tuple[Any, Rule], ...]:
    """Lists (primitive, rule) pairs for gather and every scatter, without batching dimensions."""
    scatters = [(p, functools.partial(_lower_scatter, p)) for p in _SCATTERS]
    return ((lax.gather_p, _lower_gather), *scatters)


def _lower_gather(ctx: Any, operand: Any, indices: Any, **params: Any) -> Sequence[Any]:
    numbers = params["dimension_numbers"]
    # JAX's rule lowers an empty result to a constant, which has no batching dimensions.
    if not numbers.operand_batching_dims or _is_empty(ctx.avals_out[0]):
        return by_platform(lax.gather_p, {})(ctx, operand, indices, **params)
    return lower_fun(functools.partial(_gather, **params), multiple_results=False)(
        ctx, operand, indices
    )


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
        return _lower_plain_scatter(ctx, primitive, operand, indices, updates, **params)
    function = functools.partial(_scatter, primitive, **params)
    return lower_fun(function, multiple_results=False)(ctx, operand, indices, updates)


def _lower_plain_scatter(ctx: Any, primitive: Any, *args: Any, **params: Any) -> Sequence[Any]:
    # JAX's GPU rule differs from its default only for complex128, so other dtypes need no branches.
    if ctx.avals_in[0].dtype != np.complex128:
        default = jax_rule(primitive, "tpu")
        if default is not None:
            rules = dict.fromkeys(set(platforms_of(ctx)) & {"cpu", "cuda", "rocm"}, default)
            return lower_by_platform(ctx, primitive, rules, *args, **params)
    return lower_by_platform(ctx, primitive, {}, *args, **params)


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


def _is_empty(aval: jax.core.ShapedArray) -> bool:
    return any(isinstance(d, int) and d == 0 for d in aval.shape)


_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)


def convolution_rules() -> tuple[tuple[Any, Rule], ...]:
    """Lists (primitive, rule) pairs for conv_general_dilated."""
    return ((lax.conv_general_dilated_p, _lower_convolution),)


def _lower_convolution(ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Sequence[Any]:
    groups = (params["feature_group_count"], params["batch_group_count"])
    if all(isinstance(count, int) for count in groups):
        return lower_by_platform(ctx, lax.conv_general_dilated_p, {}, lhs, rhs, **params)
    function = functools.partial(_convolve_in_loop, **params)
    return lower_fun(function, multiple_results=False)(ctx, lhs, rhs)


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
        while _is_zero(count % (factor * prime)):
            factor *= prime
    return factor


def _is_zero(size: Any) -> bool:
    return isinstance(size, int) and size == 0


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


def extreme_rules() -> tuple[tuple[Any, Rule], ...]:
    """Lists (primitive, rule) pairs for reductions and clamps.

    `keep_nan` rewrites the remaining maxima and minima in the module: elementwise ones, and those
    in the bodies of scatters and other reductions.
    """
    rules: list[tuple[Any, Rule]] = [
        (lax.clamp_p, _lower_clamp),
        (lax.reduce_p, functools.partial(_lower_reduction, lax.reduce_p, _reduce)),
        (
            lax.reduce_window_p,
            functools.partial(_lower_reduction, lax.reduce_window_p, _reduce_window),
        ),
    ]
    for primitive, make_rule, exact, init in (
        (lax.reduce_max_p, _make_reduction_rule, _exact_maximum, -np.inf),
        (lax.reduce_min_p, _make_reduction_rule, _exact_minimum, np.inf),
        (lax.reduce_window_max_p, _make_window_rule, _exact_maximum, -np.inf),
        (lax.reduce_window_min_p, _make_window_rule, _exact_minimum, np.inf),
    ):
        rule = make_rule(exact, init)
        rules.append((primitive, functools.partial(_lower_on_cpu, primitive, rule)))
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


def _lower_reduction(
    primitive: Any, reduce: Callable[..., Any], ctx: Any, *operands: Any, **params: Any
) -> Sequence[Any]:
    exact = _find_exact_reducer(ctx, operands, params["jaxpr"])
    rules: dict[str, Rule] = {}
    if exact is not None:
        rules["cpu"] = lower_fun(functools.partial(reduce, exact), multiple_results=False)
    return lower_by_platform(ctx, primitive, rules, *operands, **params)


def _reduce(exact: Any, x: Any, init: Any, *, dimensions: Sequence[int], **_: Any) -> Any:
    return lax.reduce(x, init, exact, dimensions)


def _reduce_window(exact: Any, x: Any, init: Any, *, jaxpr: Any, consts: Any, **params: Any) -> Any:
    return lax.reduce_window(x, init, exact, **params)


def _lower_clamp(ctx: Any, low: Any, x: Any, high: Any, **params: Any) -> Sequence[Any]:
    if not _is_float(ctx):
        return common_rule(lax.clamp_p)(ctx, low, x, high, **params)

    def clamped(low: Any, x: Any, high: Any) -> Any:
        low, high = (lax.broadcast(y, x.shape) if y.ndim < x.ndim else y for y in (low, high))
        return lax.min(lax.max(x, low), high)

    return lower_fun(clamped, multiple_results=False)(ctx, low, x, high)
