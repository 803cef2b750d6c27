"""Lowering rule for convolutions with an open number of groups.

The number of groups is a constant attribute in StableHLO. jax.vmap over both images and kernels
turns the batch into groups; if the batch is open, this rule writes a loop.
"""

import functools
from collections.abc import Sequence
from typing import Any

from jax import lax

from jax2tf_bridge.from_jax._jax_compat_lowering import Rule, lower_by_platform, lower_fun

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)


def convolution_rules() -> tuple[tuple[Any, Rule], ...]:
    """Lists (primitive, rule) pairs for conv_general_dilated."""
    return ((lax.conv_general_dilated_p, _lower),)


def _lower(ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Sequence[Any]:
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
    static_count = _known_factor(count)
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


def _known_factor(count: Any) -> int:
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
