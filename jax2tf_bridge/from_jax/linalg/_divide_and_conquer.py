"""Eigenvalues and eigenvectors of a real symmetric tridiagonal matrix, by divide and conquer.

Cuppen's method in the form of Gu and Eisenstat: the matrix is two halves and a rank-one tie, the
tied eigenvalues are the roots of a secular equation, and eigenvectors computed from a tie that
fits the computed roots exactly are orthogonal. What others deflate (equal poles, zero ties) is
moved apart by a rounding error instead, so that every shape is static.

Each level ties the parts of a matrix in pairs, all of them at once: arrays are as large as the
matrix, and masks keep the pairs apart. So one loop goes through all levels, of any size.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    broadcast,
    columns,
    epsilon,
    eye_like,
    int32,
    loop,
    matmul,
    multiple_of,
    resize,
    rows,
    sizes_known,
    where,
)

# Of the digits of a root, those that bisection finds; and the steps that find the others, by the
# bytes of a number.
_BISECTED_BITS = 5
_NEWTON_STEPS = {4: 3, 8: 4}

# The rows of the blocks that are solved before the whole matrix is looked at, and the rows of the
# largest matrix that is looked at as a whole at once.
_BLOCK = 32
_LARGEST_BLOCK = 64
# From this many rows on, blocks are of the latter size: one level less on the whole matrix.
_LARGE = 512


def eigh_tridiagonal(d: Any, e: Any) -> Any:
    """Eigenvectors [n, n], by ascending eigenvalue, of diagonal `d` [n] and subdiagonal `e`.

    The largest absolute row sum of the matrix must be at most 1/2. n may be symbolic.
    """
    n = d.shape[0]
    block = block_size(n)
    d, e = pad(d, e, block)
    small, values = _solve_blocks(d, e, block)
    if sizes_known(n) and n == block:
        return lax.squeeze(small, (0,))
    vectors, _ = _merge_all(
        on_diagonal(small), lax.expand_dims(lax.reshape(values, d.shape), (0,)), rows(e), block
    )
    return resize(lax.squeeze(vectors, (0,)), (n, n))


def block_size(n: Any) -> int:
    """Returns the rows of the blocks that are solved before the whole matrix of n rows is."""
    if not sizes_known(n):
        return _BLOCK
    if n <= _LARGEST_BLOCK:
        return int(n)
    return _LARGEST_BLOCK if n >= _LARGE else _BLOCK


def pad(d: Any, e: Any, block: int) -> tuple[Any, Any]:
    """Makes both a multiple of `block` long, `e` as long as `d`.

    The padding is untied, and sorts to the end: every true value is below 1.
    """
    n = d.shape[0]
    padded = multiple_of(block, n)
    if padded == n:
        return d, resize(e, (n,))
    index = lax.iota(np.int32, padded)
    far = lax.convert_element_type(index - int32(n) + np.int32(4), d.dtype)
    return where(index < int32(n), resize(d, (padded,)), far), resize(e, (padded,))


def _solve_blocks(d: Any, e: Any, size: int) -> tuple[Any, Any]:
    """Solves the blocks [p, s, s] on the diagonal, down to single rows, without the ties between.

    A tie of strength |b| takes |b| off the diagonal at both of its ends.
    """
    tie = lax.abs(e)
    previous = lax.pad(tie, np.zeros((), d.dtype), [(1, -1, 0)])
    shape = (d.shape[0] // size, size)
    values, ties = lax.reshape(d - tie - previous, shape), lax.reshape(e, shape)
    ties = where(lax.iota(np.int32, size) < size - 1, ties, 0)
    eye = broadcast(eye_like(ties, size, size), (*shape, size))
    return _merge_all(eye, values, ties, 1)


def on_diagonal(blocks: Any) -> Any:
    """Makes [1, p s, p s] of blocks [p, s, s]."""
    count, size, _ = blocks.shape
    n = count * size
    stacked = lax.reshape(blocks, (n, size))
    repeated = lax.reshape(lax.broadcast_in_dim(stacked, (n, count, size), (0, 2)), (n, n))
    number = lax.div(lax.iota(np.int32, n), np.int32(size))
    return lax.expand_dims(where(columns(number) == rows(number), repeated, 0), (0,))


def rayleigh(d: Any, e: Any, v: Any) -> Any:
    """Computes v_i^T T v_i for columns of `v` [n, k], T with diagonal `d` and subdiagonal `e`.

    Eigenvalues come out twice as accurate as the vectors.
    """
    zero = np.zeros((), v.dtype)
    following = lax.pad(v, zero, [(-1, 1, 0), (0, 0, 0)])
    squares = sum_over(columns(d) * v * v, 0)
    products = sum_over(columns(resize(e, d.shape)) * v * following, 0)
    return (squares + products + products) / sum_over(v * v, 0)


# gap(a, b): a - b, or the difference of an increasing function of both.
Gap = Callable[[Any, Any], Any]


class Pairs(NamedTuple):
    """Pairs of neighbouring parts of `size` rows each; the last one may be cut short.

    index: 0 .. n - 1, as are the following [n], by row (or eigenvalue).
    first: the first row of its pair.
    seam: the last row of the upper part of its pair.
    last: whether it is the last row of its pair.
    same: [n, n], whether two rows are of one pair.
    """

    index: Any
    first: Any
    seam: Any
    last: Any
    same: Any


def pairs_of(n: Any, size: Any) -> Pairs:
    """Pairs parts of `size` rows, which is traced."""
    index = lax.iota(np.int32, n)
    number = lax.div(index, size * np.int32(2))
    first = number * size * np.int32(2)
    following = lax.div(index + np.int32(1), size * np.int32(2))
    last = (following > number) | lax.eq(index, int32(n) - np.int32(1))
    same = columns(number) == rows(number)
    return Pairs(index, first, first + size - np.int32(1), last, same)


def _merge_all(vectors: Any, values: Any, ties: Any, size: int) -> tuple[Any, Any]:
    """Ties parts of `size` rows each, pair by pair, until each matrix is one.

    Args:
      vectors: [p, n, n], the eigenvectors of the parts in blocks on the diagonal.
      values: [p, n], ascending in each part.
      ties: [p, n], entry k between rows k and k + 1; zero at the end.
      size: of a part; n is a multiple of it.
    """
    n = values.shape[1]

    def merge(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        vectors, values, size = state
        vectors, values = _merge(vectors, values, ties, pairs_of(n, size))
        return vectors, values, size * np.int32(2)

    start = (vectors, values, np.int32(size))
    vectors, values, _ = lax.while_loop(lambda state: state[2] < int32(n), merge, start)
    return vectors, values


def _merge(vectors: Any, values: Any, ties: Any, pairs: Pairs) -> tuple[Any, Any]:
    """Ties the two parts of each pair, as `_merge_all` does again and again."""
    # T = diag(T1, T2) + |b| u u^T, u being the last unit vector of T1 joined to the (signed)
    # first one of T2: in the basis of the halves' eigenvectors, poles plus a rank-one tie.
    upper = pairs.index <= pairs.seam
    z = row_at_seam(vectors, pairs)
    # What is alone is not tied.
    tie = take_columns(ties, pairs.seam)
    z = where(upper, z, lax.sign(tie) * z)
    # A tie below this floor moves no entry of the matrix by more than a rounding error.
    floor = lax.full_like(z, epsilon(z.dtype) ** 2 / 16)
    weights = lax.max(lax.abs(tie) * z * z, floor)

    poles, ordered, rank = separate(values, pairs)
    origin, offset, difference = find_roots(poles, weights, ordered, pairs, lax.sub)
    fitting = lax.sqrt(fitting_weights(poles, ordered, rank, difference, pairs, lax.sub))
    s = where(pairs.same, columns(where(z < 0, -fitting, fitting)) / difference, 0)
    s = s * rows(lax.rsqrt(sum_over(s * s, 1)))
    return matmul(vectors, s), origin + offset


def row_at_seam(vectors: Any, pairs: Pairs) -> Any:
    """Returns [p, n]: of each part's vectors [p, n, n] the entries in the row next to the other."""
    n = vectors.shape[1]
    row = where(pairs.index <= pairs.seam, pairs.seam, pairs.seam + np.int32(1))
    row = lax.min(row, lax.full_like(row, int32(n) - np.int32(1)))
    return vectors.at[:, row, pairs.index].get(mode="promise_in_bounds")


def take_columns(x: Any, index: Any) -> Any:
    """Returns x[:, index], or the last one of x [p, n] beyond it."""
    last = int32(x.shape[1]) - np.int32(1)
    return x.at[:, lax.min(index, lax.full_like(index, last))].get(mode="promise_in_bounds")


def separate(poles: Any, pairs: Pairs) -> tuple[Any, Any, Any]:
    """Moves poles [p, n] of a pair apart where they are closer than a rounding error of 1.

    Returns:
      The poles in the order they came in, the poles in ascending order, the rank of each; all
      within their pair.
    """
    index = pairs.index
    # Ranks by counting, [pole, other]: no sort, whose order of equals could differ.
    earlier = (rows(poles) < columns(poles)) | (
        (rows(poles) == columns(poles)) & (rows(index) < columns(index))
    )
    rank = sum_over(lax.convert_element_type(earlier & pairs.same, np.int32), 2) + pairs.first
    at_rank = columns(rank) == rows(index)  # [pole, place]
    ordered = sum_over(where(at_rank, columns(poles), 0), 1)
    # Each at least one unit above the one before: the running maximum of pole - index * unit.
    unit = lax.convert_element_type(index, poles.dtype) * np.array(
        epsilon(poles.dtype), poles.dtype
    )
    until = (rows(index) <= columns(index)) & pairs.same
    level = where(until, rows(ordered - unit), -np.inf)
    ordered = lax.reduce(level, np.array(-np.inf, poles.dtype), lax.max, (2,)) + unit
    return sum_over(where(at_rank, rows(ordered), 0), 2), ordered, rank


def find_roots(
    poles: Any, weights: Any, ordered: Any, pairs: Pairs, gap: Gap
) -> tuple[Any, Any, Any]:
    """Finds the roots of 1 + sum_j weight_j / gap(pole_j, root), one above each pole, all [p, n].

    Each root is an offset from the nearer of its two poles. Bisection over the floating point
    numbers themselves finds it to 1/64 of its size, in as many steps as their exponents have bits
    and a few. The offset times the equation has no pole left that is nearer than the offset itself,
    so that each step of Newton's method from there doubles the digits that are right.

    Returns:
      The nearer pole and gap(root, pole) [p, root], and gap(pole, root) [p, pole, root], to full
      relative accuracy.
    """
    dtype = poles.dtype
    one = np.ones((), dtype)
    own_weights = where(pairs.same, columns(weights), 0)  # [pole, root]

    def secular(distance: Any) -> Any:
        return sum_over(own_weights / distance, 1) + one

    def distances(origin: Any) -> Any:
        # Poles of other pairs are nowhere near.
        return where(pairs.same, gap(columns(poles), rows(origin)), 4)

    following = lax.pad(ordered, np.zeros((), dtype), [(0, 0, 0), (-1, 1, 0)])
    # The last root is at most the sum of the weights above the last pole.
    reach = columns(sum_over(weights, 1)) * np.array(1 + 1e-3, dtype)
    half = where(pairs.last, reach, gap(following, ordered) * np.array(0.5, dtype))
    left = (secular(distances(ordered) - rows(half)) >= 0) | pairs.last
    origin = where(left, ordered, following)
    direction = where(left, one, -one)
    base = distances(origin)

    bits = np.dtype(f"int{dtype.itemsize * 8}")
    shape = poles.shape
    smallest = lax.full(shape, np.array(np.finfo(dtype).tiny, dtype).view(bits))

    def bisect(_: Any, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bounds
        middle = low + lax.shift_right_logical(high - low, lax.full(shape, 1, bits))
        offset = direction * lax.bitcast_convert_type(middle, dtype)
        farther = secular(base - rows(offset)) * direction < 0
        return where(farther, middle, low), where(farther, high, middle)

    def newton(_: Any, size: Any) -> Any:
        distance = base - rows(direction * size)
        value = direction * secular(distance)
        # Divided in another order: XLA would store quotients that the two sums share.
        slope = value + sum_over(rows(size) / distance * own_weights / distance, 1)
        return lax.clamp(low, where(slope > 0, size - size * value / slope, size), high)

    bounds = (smallest, lax.bitcast_convert_type(half, bits))
    low, high = loop(np.finfo(dtype).nexp + _BISECTED_BITS - 1, bisect, bounds)
    middle = low + lax.shift_right_logical(high - low, lax.full(shape, 1, bits))
    low, middle, high = (lax.bitcast_convert_type(x, dtype) for x in (low, middle, high))
    offset = direction * loop(_NEWTON_STEPS[dtype.itemsize], newton, middle)
    return origin, offset, base - rows(offset)


def fitting_weights(
    poles: Any, ordered: Any, rank: Any, difference: Any, pairs: Pairs, gap: Gap
) -> Any:
    """Computes weights [p, n] whose secular equation has exactly these roots (Loewner's formula).

    weight_j = prod_i (root_i - pole_j) / prod_{i != j} (pole_i - pole_j), each root over the
    pole between it and pole_j, so that no factor but the last one is above 1.
    """
    following = lax.pad(ordered, np.zeros((), poles.dtype), [(0, 0, 0), (-1, 1, 0)])
    neighbour = where(rows(pairs.index) < columns(rank), rows(ordered), rows(following))
    denominator = where(rows(pairs.last), -1, gap(columns(poles), neighbour))
    factors = where(pairs.same, difference / denominator, 1)
    return lax.reduce(factors, np.ones((), poles.dtype), lax.mul, (2,))


def sum_over(x: Any, axis: int) -> Any:
    """Sums along one axis."""
    return lax.reduce(x, np.zeros((), x.dtype), lax.add, (axis,))
