"""Solves tridiagonal systems by Gaussian elimination with partial pivoting."""

from typing import Any

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    are_sizes_known,
    columns,
    epsilon,
    int32,
    resize,
    where,
)


def tridiagonal_solve(
    dl: Any, d: Any, du: Any, b: Any, *, perturb_singular: bool = False, **params: Any
) -> Any:
    """Solves A X = b for subdiagonal, diagonal and superdiagonal [..., m] and b [..., m, k].

    dl[..., 0] and du[..., -1] are not read. A singular A gives NaN throughout. With
    `perturb_singular`, pivots below a rounding error of the largest entry of U are raised to it.
    """
    del params
    m = d.shape[-1]
    if not are_sizes_known(m):
        dl, d, du, b = _append_row(dl, d, du, b)
    batch = d.ndim - 1
    dl, d, du = (columns(lax.transpose(x, (batch, *range(batch)))) for x in (dl, d, du))
    b = lax.transpose(b, (batch, *range(batch), batch + 1))
    du = lax.concatenate([du[:-1], lax.full_like(du[-1:], 0)], 0)

    def eliminate(carry: Any, following: Any) -> tuple[Any, Any]:
        diagonal, above, right = carry
        below, next_diagonal, next_above, next_right = following
        keep = lax.abs(diagonal) >= lax.abs(below)
        zero = lax.full_like(above, 0)
        pivot_row = (
            where(keep, diagonal, below),
            where(keep, above, next_diagonal),
            where(keep, zero, next_above),
            where(keep, right, next_right),
        )
        other_row = (
            where(keep, below, diagonal),
            where(keep, next_diagonal, above),
            where(keep, next_above, zero),
            where(keep, next_right, right),
        )
        factor = where(other_row[0] == 0, 0, other_row[0] / pivot_row[0])
        reduced = tuple(x - factor * y for x, y in zip(other_row[1:], pivot_row[1:], strict=True))
        return reduced, pivot_row

    (last, _, last_right), upper = lax.scan(
        eliminate, (d[0], du[0], b[0]), (dl[1:], d[1:], du[1:], b[1:])
    )

    if perturb_singular:
        last, upper = _raise_tiny_pivots(last, upper)

    def substitute(carry: Any, row: Any) -> tuple[Any, Any]:
        following, second = carry
        diagonal, above, second_above, right = row
        x = (right - above * following - second_above * second) / diagonal
        return (x, following), x

    end = last_right / last
    _, x = lax.scan(substitute, (end, lax.full_like(end, 0)), upper, reverse=True)
    x = lax.concatenate([x, lax.expand_dims(end, (0,))], 0)
    pivots = lax.concatenate([upper[0], lax.expand_dims(last, (0,))], 0)
    solvable = lax.reduce(pivots != 0, np.array(True), lax.bitwise_and, (0,))
    x = where(solvable, x, np.array(np.nan, x.dtype))
    x = lax.transpose(x, (*range(1, batch + 1), 0, batch + 1))
    return resize(x, (*x.shape[:-2], m, x.shape[-1]))


def _append_row(dl: Any, d: Any, du: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    """Adds an independent equation, so that the scans are never over an empty axis.

    Its pivot is the largest entry, which does not change the bound for tiny pivots.
    """
    m = d.shape[-1]
    du = where(lax.iota(np.int32, m) == int32(m) - np.int32(1), 0, du)
    longer = (*d.shape[:-1], m + 1)
    sizes = lax.max(lax.max(lax.abs(dl), lax.abs(du)), lax.abs(d))
    largest = lax.reduce(sizes, np.zeros((), sizes.dtype), lax.max, (d.ndim - 1,))
    pivot = lax.convert_element_type(where(largest > 0, largest, 1), d.dtype)
    dl, d, du = (resize(x, longer) for x in (dl, d, du))
    d = where(lax.iota(np.int32, m + 1) == int32(m), columns(pivot), d)
    return dl, d, du, resize(b, (*b.shape[:-2], m + 1, b.shape[-1]))


def _raise_tiny_pivots(last: Any, upper: Any) -> tuple[Any, Any]:
    """Raises pivots that are smaller than a rounding error of U to that error, keeping signs."""
    zero = np.zeros((), last.dtype)
    entries = [lax.reduce(lax.abs(x), zero, lax.max, (0,)) for x in upper[:3]]
    largest = lax.max(lax.max(entries[0], entries[1]), lax.max(entries[2], lax.abs(last)))
    tiny = lax.max(largest * epsilon(last.dtype), np.array(np.finfo(last.dtype).tiny, last.dtype))

    def raise_pivot(pivot: Any) -> Any:
        sign = where(pivot < 0, np.array(-1, last.dtype), np.array(1, last.dtype))
        return where(lax.abs(pivot) < tiny, sign * tiny, pivot)

    return raise_pivot(last), (raise_pivot(upper[0]), *upper[1:])
