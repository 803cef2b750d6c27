"""Lowering rules that write gather and scatter without batching dimensions.

StableHLO has batching dimensions in gather and scatter since 1.1.0. TF 2.15 and 2.16 cannot read
them, and the XLA of TF 2.17 fails on them. For these releases, the batch position becomes one more
index: an iota concatenated with the indices.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    by_platform,
    jax_rule,
    lower_by_platform,
    lower_fun,
    platforms_of,
)
from jax2tf_bridge.portable import TENSORFLOW_RELEASES

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
