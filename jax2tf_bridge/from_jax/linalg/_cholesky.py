"""Cholesky decomposition in blocks, so that most of the work is matrix multiplication."""

from typing import Any

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    choose_block_width,
    columns,
    eye_like,
    is_complex,
    loop,
    matmul,
    real,
    rows,
    where,
)


def cholesky(a: Any) -> Any:
    """Computes the lower triangular L with L L^H = a [..., n, n].

    Only the lower triangle of `a` is read, and L is zero above the diagonal. A matrix that is not
    positive definite gives NaN throughout.
    """
    n = a.shape[-1]
    width = choose_block_width(n, 32, 16)
    panels = []
    pivot_blocks = []
    trailing = a
    for start in range(0, n, width):
        size = min(width, n - start)
        block = trailing[..., :size, :size]
        factor, inverse, pivots = _factor_block(block)
        pivot_blocks.append(pivots)
        panel = [factor]
        if start + size < n:
            below = matmul(trailing[..., size:, :size], adjoint(inverse))
            panel.append(below)
            trailing = trailing[..., size:, size:] - matmul(below, adjoint(below))
        panels.append(_pad_above(lax.concatenate(panel, a.ndim - 2), start))
    result = lax.concatenate(panels, a.ndim - 1)
    # NaN is not above zero, so a NaN pivot fails the test too.
    definite = lax.reduce(
        lax.gt(lax.concatenate(pivot_blocks, a.ndim - 2), np.zeros((), pivot_blocks[0].dtype)),
        np.array(True),
        lax.bitwise_and,
        (a.ndim - 2,),
    )
    return where(columns(columns(definite)), result, np.array(np.nan, a.dtype))


def _factor_block(a: Any) -> tuple[Any, Any, Any]:
    """Returns the Cholesky factor of a small matrix, the factor's inverse, and the pivots.

    Eliminates [a | I] column by column, which leaves the factor on the left and its inverse on the
    right.
    """
    n = a.shape[-1]
    index = lax.iota(np.int32, n)
    zero = np.zeros((), a.dtype)

    def eliminate(k: Any, state: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        remaining, factor, inverse, pivots = state
        is_pivot = lax.eq(index, k)
        column = lax.squeeze(lax.dynamic_slice_in_dim(remaining, k, 1, a.ndim - 1), (a.ndim - 1,))
        pivot = real(lax.dynamic_slice_in_dim(column, k, 1, a.ndim - 2))
        scale = lax.convert_element_type(lax.rsqrt(pivot), a.dtype)
        column = where(lax.ge(index, k), column * scale, zero)
        below = where(is_pivot, zero, column)
        row = lax.dynamic_slice_in_dim(inverse, k, 1, a.ndim - 2) * columns(scale)
        factor = where(rows(is_pivot), columns(column), factor)
        remaining = remaining - columns(below) * rows(lax.conj(below) if is_complex(a) else below)
        inverse = where(columns(is_pivot), row, inverse - columns(below) * row)
        return remaining, factor, inverse, where(is_pivot, pivot, pivots)

    pivots = lax.full_like(real(a[..., 0]), 1)
    start = (a, lax.full_like(a, 0), eye_like(a, n, n), pivots)
    _, factor, inverse, pivots = loop(n, eliminate, start)
    return factor, inverse, pivots


def _pad_above(panel: Any, count: int) -> Any:
    config = [(0, 0, 0)] * (panel.ndim - 2) + [(count, 0, 0), (0, 0, 0)]
    return lax.pad(panel, np.zeros((), panel.dtype), config)
