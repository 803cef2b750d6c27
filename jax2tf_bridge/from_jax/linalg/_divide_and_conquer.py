"""Eigenvalues and eigenvectors of a real symmetric tridiagonal matrix, by divide and conquer.

Cuppen's method in the form of Gu and Eisenstat: the matrix is two halves and a rank-one tie, the
tied eigenvalues are the roots of a secular equation, and eigenvectors computed from a tie that
fits the computed roots exactly are orthogonal. What others deflate (equal poles, zero ties) is
moved apart by a rounding error instead, so that every shape is static.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    below_diagonal,
    columns,
    epsilon,
    loop,
    matmul,
    rows,
    where,
)

# Solves a batch of small symmetric matrices [p, s, s]: (eigenvectors, ascending eigenvalues).
SmallSolver = Callable[[Any], tuple[Any, Any]]


def eigh_tridiagonal(d: Any, e: Any, small_solver: SmallSolver, largest_leaf: int) -> Any:
    """Eigenvectors [n, n], by ascending eigenvalue, of diagonal `d` [n] and subdiagonal `e`.

    The largest absolute row sum of the matrix must be at most 1/2. `small_solver` gets matrices
    of up to `largest_leaf` rows.
    """
    n = d.shape[0]
    parts = 1
    while -(-n // parts) > largest_leaf:
        parts *= 2
    size = -(-n // parts)
    # The padding is untied, and sorts to the end: every true eigenvalue is below 1.
    padding = parts * size - n
    d = lax.concatenate([d, lax.iota(d.dtype, padding) + np.array(4, d.dtype)], 0)
    e = lax.pad(e, np.zeros((), e.dtype), [(0, padding + 1, 0)])

    vectors, values = _solve_leaves(d, e, parts, size, small_solver)
    while parts > 1:
        vectors, values = _merge(vectors, values, lax.reshape(e, (parts, size))[::2, -1])
        parts, size = parts // 2, size * 2
    return vectors[0, :n, :n]


def _solve_leaves(
    d: Any, e: Any, parts: int, size: int, small_solver: SmallSolver
) -> tuple[Any, Any]:
    """Solves the untied diagonal blocks: a tie of strength |b| takes |b| off both neighbours."""
    d = lax.reshape(d, (parts, size))
    e = lax.reshape(e, (parts, size))
    tie = lax.abs(e[:, -1:])  # to the next block; zero for the last one
    previous = lax.pad(tie[:-1], np.zeros((), d.dtype), [(1, 0, 0), (0, 0, 0)])
    index = lax.iota(np.int32, size)
    d = d - where(index == size - 1, tie, 0) - where(index == 0, previous, 0)
    after = where(index == size - 1, 0, e)  # e[k] ties k to k + 1
    below = below_diagonal(size)
    blocks = where(below == 0, rows(d), 0)
    blocks = where(below == -1, columns(after), blocks)
    return small_solver(where(below == 1, rows(after), blocks))


def _merge(vectors: Any, values: Any, ties: Any) -> tuple[Any, Any]:
    """Ties neighbours: [2p, s, s] and [2p, s] with `ties` [p] become [p, 2s, 2s] and [p, 2s]."""
    pairs, size = values.shape[0] // 2, values.shape[1]
    # T = diag(T1, T2) + |b| u u^T, u being the last unit vector of T1 joined to the (signed)
    # first one of T2: in the basis of the halves' eigenvectors, poles plus a rank-one tie.
    v = lax.reshape(vectors, (pairs, 2, size, size))
    upper, lower = v[:, 0], v[:, 1]
    z = lax.concatenate([upper[:, -1], columns(lax.sign(ties)) * lower[:, 0]], 1)
    # A tie below this floor moves no entry of the matrix by more than a rounding error.
    floor = lax.full_like(z, epsilon(z.dtype) ** 2 / 16)
    weights = lax.max(columns(lax.abs(ties)) * z * z, floor)

    poles, ordered, rank = _separate(lax.reshape(values, (pairs, 2 * size)))
    roots, difference = _roots(poles, weights, ordered)
    tie = lax.sqrt(_fitting_weights(poles, ordered, rank, difference))
    s = columns(where(z < 0, -tie, tie)) / difference
    s = s * rows(lax.rsqrt(_sum(s * s, 1)))
    return (
        lax.concatenate([matmul(upper, s[:, :size]), matmul(lower, s[:, size:])], 1),
        roots,
    )


def _separate(poles: Any) -> tuple[Any, Any, Any]:
    """Moves poles [p, n] apart where they are closer than a rounding error of 1.

    Returns:
      The poles in the order they came in, the poles in ascending order, the rank of each.
    """
    n = poles.shape[1]
    index = lax.iota(np.int32, n)
    # Ranks by counting, [pole, other]: no sort, whose order of equals could differ.
    earlier = (rows(poles) < columns(poles)) | (
        (rows(poles) == columns(poles)) & (index < index[:, None])
    )
    rank = _sum(lax.convert_element_type(earlier, np.int32), 2)
    at_rank = columns(rank) == index  # [pole, place]
    ordered = _sum(where(at_rank, columns(poles), 0), 1)
    # Each at least one unit above the one before: the running maximum of pole - index * unit.
    unit = (index * epsilon(poles.dtype)).astype(poles.dtype)
    level = where(index <= index[:, None], rows(ordered - unit), -np.inf)
    ordered = lax.reduce(level, np.array(-np.inf, poles.dtype), lax.max, (2,)) + unit
    return _sum(where(at_rank, rows(ordered), 0), 2), ordered, rank


def _roots(poles: Any, weights: Any, ordered: Any) -> tuple[Any, Any]:
    """Finds the roots of 1 + sum_j weight_j / (pole_j - root), one above each pole, all [p, n].

    Each root is an offset from the nearer of its two poles, found by bisection over the floating
    point numbers themselves: it takes as many steps as they have bits, and the offset comes out
    to its last digit.

    Returns:
      The roots [p, root] and pole - root [p, pole, root], the latter to full relative accuracy.
    """
    dtype = poles.dtype
    last = lax.iota(np.int32, poles.shape[1]) == poles.shape[1] - 1
    one = np.ones((), dtype)

    def secular(distance: Any) -> Any:
        return _sum(columns(weights) / distance, 1) + one

    following = lax.pad(ordered[:, 1:], np.zeros((), dtype), [(0, 0, 0), (0, 1, 0)])
    # The last root is at most the sum of the weights above the last pole.
    reach = columns(_sum(weights, 1)) * np.array(1 + 1e-3, dtype)
    half = where(last, reach, (following - ordered) * np.array(0.5, dtype))
    from_lower = columns(poles) - rows(ordered)
    left = (secular(from_lower - rows(half)) >= 0) | last
    origin = where(left, ordered, following)
    direction = where(left, one, -one)
    base = columns(poles) - rows(origin)

    bits = np.dtype(f"int{dtype.itemsize * 8}")
    shape = poles.shape
    smallest = lax.full(shape, np.array(np.finfo(dtype).tiny, dtype).view(bits))

    def bisect(_: Any, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bounds
        middle = low + lax.shift_right_logical(high - low, lax.full(shape, 1, bits))
        offset = direction * lax.bitcast_convert_type(middle, dtype)
        farther = secular(base - rows(offset)) * direction < 0
        return where(farther, middle, low), where(farther, high, middle)

    bounds = (smallest, lax.bitcast_convert_type(half, bits))
    _, high = loop(bits.itemsize * 8 - 1, bisect, bounds)
    offset = direction * lax.bitcast_convert_type(high, dtype)
    return origin + offset, base - rows(offset)


def _fitting_weights(poles: Any, ordered: Any, rank: Any, difference: Any) -> Any:
    """Computes weights [p, n] whose secular equation has exactly these roots (Loewner's formula).

    weight_j = prod_i (root_i - pole_j) / prod_{i != j} (pole_i - pole_j), each root over the
    pole between it and pole_j, so that no factor but the last one is above 1.
    """
    n = poles.shape[1]
    index = lax.iota(np.int32, n)
    following = lax.pad(ordered[:, 1:], np.zeros((), poles.dtype), [(0, 0, 0), (0, 1, 0)])
    neighbour = where(index < columns(rank), rows(ordered), rows(following))
    denominator = where(index == n - 1, -1, columns(poles) - neighbour)
    factors = difference / denominator
    return lax.reduce(factors, np.ones((), poles.dtype), lax.mul, (2,))


def _sum(x: Any, axis: int) -> Any:
    return lax.reduce(x, np.zeros((), x.dtype), lax.add, (axis,))
