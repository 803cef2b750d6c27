"""Eigenvalues and eigenvectors of Hermitian matrices, by divide and conquer on a tridiagonal form.

Cuppen's method in the form of Gu and Eisenstat. The tridiagonal matrix is split into two halves and
a rank-one tie between them. The eigenvalues of the tied halves are the roots of a secular equation.
The eigenvectors are computed from a tie that has exactly the computed roots, which makes them
orthogonal. Equal poles and zero ties, which other implementations deflate, are moved apart by a
rounding error instead, so that every shape is static.

Each level ties the parts of a matrix in pairs, all pairs at once: arrays are as large as the
matrix, and masks keep the pairs apart. So one loop handles all levels, for any matrix size.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    State,
    adjoint,
    are_sizes_known,
    broadcast,
    cast_like,
    columns,
    distance_below_diagonal,
    epsilon,
    eye_like,
    find_scale,
    int32,
    is_complex,
    loop,
    matmul,
    max_over,
    pad_zeros,
    resize,
    round_up_to_multiple,
    rows,
    shift,
    vmap_matrices,
    where,
)
from jax2tf_bridge.from_jax.linalg._band_forms import (
    accumulate_phases,
    apply_reflections,
    tridiagonalize,
)

# Maximum number of rows for which XLA's own Jacobi iteration (custom call Eigh) is as fast.
_MAX_JACOBI_ROWS = 32


def max_jacobi_rows(dtype: Any) -> int:
    """Returns the maximum number of rows of a matrix that the custom call Eigh decomposes.

    In 64 bits this is one, because Eigh leaves about 1e-8 of the norm off the diagonal, for any
    requested tolerance.
    """
    return _MAX_JACOBI_ROWS if epsilon(dtype) > 1e-10 else 1


def eigh(a: Any, *, lower: bool) -> tuple[Any, Any]:
    """Computes eigenvectors [..., n, n] and ascending eigenvalues [..., n] of Hermitian matrices.

    Only the lower (or upper) triangle of a [..., n, n] is read. A matrix that is not finite gives
    NaN throughout. n may be symbolic.
    """
    return vmap_matrices(functools.partial(_decompose, lower=lower), a)


def _decompose(a: Any, *, lower: bool) -> tuple[Any, Any]:
    n = a.shape[0]
    a = _make_hermitian(a, lower)
    scale, finite = find_scale(a)
    d, e, stages = tridiagonalize(a / cast_like(scale, a))

    phases = None
    if is_complex(a):
        # A diagonal unitary similarity makes the subdiagonal real.
        phases = accumulate_phases(e)
        e = lax.abs(e)
    size = lax.abs(e)
    neighbours = pad_zeros(size, [(1, 0, 0)]) + pad_zeros(size, [(0, 1, 0)])
    norm = max_over(lax.abs(d) + neighbours, 0)
    norm = where(norm > 0, norm, 1) * np.array(2, norm.dtype)
    d, e = d / norm, e / norm

    vectors = eigh_tridiagonal(d, e)
    values = compute_rayleigh_quotients(d, e, vectors)
    values, order = lax.sort((values, lax.iota(np.int32, n)), dimension=0, num_keys=1)
    vectors = vectors.at[:, order].get(mode="promise_in_bounds", unique_indices=True)

    vectors = cast_like(vectors, a)
    if phases is not None:
        vectors = columns(phases) * vectors
    vectors = apply_reflections(stages, vectors)
    return where(finite, vectors, np.nan), where(finite, values * norm * scale, np.nan)


def _make_hermitian(a: Any, lower: bool) -> Any:
    below = distance_below_diagonal(a.shape[0])
    a = where(below >= 0 if lower else below <= 0, a, adjoint(a))
    if is_complex(a):
        a = where(below == 0, lax.complex(lax.real(a), lax.full_like(lax.real(a), 0)), a)
    return a


# Number of leading bits of a root that bisection finds, and number of Newton steps that find the
# others, by the size of the dtype in bytes.
_BISECTED_BITS = 5
_NEWTON_STEPS = {4: 3, 8: 4}

# Number of rows of the diagonal blocks that are solved first, each on its own.
_BLOCK_ROWS = 32
# Maximum number of rows of a block. A matrix of at most this size is a single block.
_MAX_BLOCK_ROWS = 64
# From this many rows on, blocks have the maximum size, which saves one level on the whole matrix.
_MIN_ROWS_FOR_MAX_BLOCKS = 512


def eigh_tridiagonal(d: Any, e: Any) -> Any:
    """Returns eigenvectors [n, n] by ascending eigenvalue, for diagonal `d` and subdiagonal `e`.

    The largest absolute row sum of the matrix must be at most 1/2. n may be symbolic.
    """
    n = d.shape[0]
    block = choose_block_rows(n)
    d, e = pad_to_blocks(d, e, block)
    small, values = _solve_blocks(d, e, block)
    if are_sizes_known(n) and n == block:
        return lax.squeeze(small, (0,))
    vectors, _ = _merge_all(
        place_on_diagonal(small),
        lax.expand_dims(lax.reshape(values, d.shape), (0,)),
        rows(e),
        block,
    )
    return resize(lax.squeeze(vectors, (0,)), (n, n))


def choose_block_rows(n: Any) -> int:
    """Returns the number of rows of the blocks that are solved first, for a matrix of n rows."""
    if not are_sizes_known(n):
        return _BLOCK_ROWS
    if n <= _MAX_BLOCK_ROWS:
        return int(n)
    return _MAX_BLOCK_ROWS if n >= _MIN_ROWS_FOR_MAX_BLOCKS else _BLOCK_ROWS


def pad_to_blocks(d: Any, e: Any, block: int) -> tuple[Any, Any]:
    """Pads `d` and `e` to the same length, a multiple of `block`.

    The padding is not tied to the matrix, and its eigenvalues sort to the end, because those of the
    matrix are below 1.
    """
    n = d.shape[0]
    padded = round_up_to_multiple(block, n)
    if padded == n:
        return d, resize(e, (n,))
    index = lax.iota(np.int32, padded)
    far = cast_like(index - int32(n) + np.int32(4), d)
    return where(index < int32(n), resize(d, (padded,)), far), resize(e, (padded,))


def _solve_blocks(d: Any, e: Any, size: int) -> tuple[Any, Any]:
    """Returns eigenvectors [p, s, s] and eigenvalues of the diagonal blocks, without their ties.

    A tie of strength |b| subtracts |b| from the diagonal entries at both of its ends.
    """
    tie = lax.abs(e)
    previous = shift(tie, 1, 0)
    shape = (d.shape[0] // size, size)
    values, ties = lax.reshape(d - tie - previous, shape), lax.reshape(e, shape)
    ties = where(lax.iota(np.int32, size) < size - 1, ties, 0)
    eye = broadcast(eye_like(ties, size, size), (*shape, size))
    return _merge_all(eye, values, ties, 1)


def place_on_diagonal(blocks: Any) -> Any:
    """Places blocks [p, s, s] on the diagonal of a matrix [1, p s, p s]."""
    count, size, _ = blocks.shape
    n = count * size
    stacked = lax.reshape(blocks, (n, size))
    repeated = lax.reshape(lax.broadcast_in_dim(stacked, (n, count, size), (0, 2)), (n, n))
    number = lax.div(lax.iota(np.int32, n), np.int32(size))
    return lax.expand_dims(where(columns(number) == rows(number), repeated, 0), (0,))


def compute_rayleigh_quotients(d: Any, e: Any, v: Any) -> Any:
    """Computes the Rayleigh quotients of the columns of `v` [n, k].

    The matrix has diagonal `d` and subdiagonal `e`. The quotients have twice as many correct digits
    as the vectors.
    """
    squares = lax.reduce_sum(columns(d) * v * v, (0,))
    products = lax.reduce_sum(columns(resize(e, d.shape)) * v * shift(v, -1, 0), (0,))
    return (squares + products + products) / lax.reduce_sum(v * v, (0,))


# gap(a, b) is a - b, or f(a) - f(b) for an increasing function f.
Gap = Callable[[Any, Any], Any]


class Pairs(NamedTuple):
    """Pairs of neighbouring parts of equal size; the last pair may be shorter.

    All fields but `same` are [n], with one entry for each row (or eigenvalue).

    index: 0 .. n - 1.
    first: the first row of its pair.
    seam: the last row of the upper part of its pair.
    last: whether it is the last row of its pair.
    same: [n, n], whether two rows are in the same pair.
    """

    index: Any
    first: Any
    seam: Any
    last: Any
    same: Any


def merge_until_one(
    merge: Callable[[State, Pairs], State], parts: State, n: Any, size: int
) -> State:
    """Calls `merge(parts, pairs)`, which doubles the `size` of a part, until it has all n rows."""

    def step(state: tuple[State, Any]) -> tuple[State, Any]:
        parts, size = state
        return merge(parts, _pair_parts(n, size)), size * np.int32(2)

    start = (parts, np.int32(size))
    parts, _ = lax.while_loop(lambda state: state[1] < int32(n), step, start)
    return parts


def _pair_parts(n: Any, size: Any) -> Pairs:
    """Pairs parts of `size` rows; `size` is a traced scalar."""
    index = lax.iota(np.int32, n)
    number = lax.div(index, size * np.int32(2))
    first = number * size * np.int32(2)
    following = lax.div(index + np.int32(1), size * np.int32(2))
    last = (following > number) | lax.eq(index, int32(n) - np.int32(1))
    same = columns(number) == rows(number)
    return Pairs(index, first, first + size - np.int32(1), last, same)


def _merge_all(vectors: Any, values: Any, ties: Any, size: int) -> tuple[Any, Any]:
    """Merges neighbouring parts in pairs until each matrix is a single part.

    Args:
      vectors: [p, n, n], the eigenvectors of the parts in blocks on the diagonal.
      values: [p, n], the eigenvalues, ascending in each part.
      ties: [p, n]; entry k ties rows k and k + 1, and the last one is zero.
      size: the number of rows of a part; n is a multiple of it.
    """

    def merge(parts: tuple[Any, Any], pairs: Pairs) -> tuple[Any, Any]:
        return _merge_pairs(*parts, ties, pairs)

    return merge_until_one(merge, (vectors, values), values.shape[1], size)


def _merge_pairs(vectors: Any, values: Any, ties: Any, pairs: Pairs) -> tuple[Any, Any]:
    # T = diag(T1, T2) + |b| u u^T, u being the last unit vector of T1 joined to the (signed)
    # first one of T2. In the basis of the halves' eigenvectors, T is the poles plus a rank-one tie.
    upper = pairs.index <= pairs.seam
    z = take_row_at_seam(vectors, pairs)
    # A part without a partner reads the last tie, which is zero.
    tie = take_columns(ties, pairs.seam)
    z = where(upper, z, lax.sign(tie) * z)
    # Raising a tie to this floor changes the matrix by at most a rounding error.
    floor = lax.full_like(z, epsilon(z.dtype) ** 2 / 16)
    weights = lax.max(lax.abs(tie) * z * z, floor)

    poles, ordered, rank = separate(values, pairs)
    origin, offset, difference = find_roots(poles, weights, ordered, pairs, lax.sub)
    fitted_z = lax.sqrt(fit_weights(poles, ordered, rank, difference, pairs, lax.sub))
    s = where(pairs.same, columns(where(z < 0, -fitted_z, fitted_z)) / difference, 0)
    s = s * rows(lax.rsqrt(lax.reduce_sum(s * s, (1,))))
    return matmul(vectors, s), origin + offset


def take_row_at_seam(vectors: Any, pairs: Pairs) -> Any:
    """Returns [p, n], the entries of each part's vectors [p, n, n] in the row at the seam."""
    n = vectors.shape[1]
    row = where(pairs.index <= pairs.seam, pairs.seam, pairs.seam + np.int32(1))
    row = lax.min(row, lax.full_like(row, int32(n) - np.int32(1)))
    return vectors.at[:, row, pairs.index].get(mode="promise_in_bounds")


def take_columns(x: Any, index: Any) -> Any:
    """Returns x[:, index]; an index beyond the end of x [p, n] reads the last column."""
    last = int32(x.shape[1]) - np.int32(1)
    return x.at[:, lax.min(index, lax.full_like(index, last))].get(mode="promise_in_bounds")


def separate(poles: Any, pairs: Pairs) -> tuple[Any, Any, Any]:
    """Moves the poles [p, n] of a pair apart if they are closer than a rounding error of 1.

    Returns:
      The poles in their original order, the poles in ascending order, and the rank of each pole;
      all within their pair.
    """
    index = pairs.index
    # Counts the smaller poles, [pole, other pole]. A sort could order equal poles differently.
    earlier = (rows(poles) < columns(poles)) | (
        (rows(poles) == columns(poles)) & (rows(index) < columns(index))
    )
    rank = (
        lax.reduce_sum(lax.convert_element_type(earlier & pairs.same, np.int32), (2,)) + pairs.first
    )
    at_rank = columns(rank) == rows(index)  # [pole, place]
    ordered = lax.reduce_sum(where(at_rank, columns(poles), 0), (1,))
    # The running maximum of pole - index * unit puts each pole at least a unit above the last one.
    unit = cast_like(index, poles) * np.array(epsilon(poles.dtype), poles.dtype)
    up_to = (rows(index) <= columns(index)) & pairs.same
    level = where(up_to, rows(ordered - unit), -np.inf)
    ordered = lax.reduce_max(level, (2,)) + unit
    return lax.reduce_sum(where(at_rank, rows(ordered), 0), (2,)), ordered, rank


def find_roots(
    poles: Any, weights: Any, ordered: Any, pairs: Pairs, gap: Gap
) -> tuple[Any, Any, Any]:
    """Finds the roots of 1 + sum_j weight_j / gap(pole_j, root), one above each pole, all [p, n].

    A root is computed as an offset from the nearer of its two poles. Bisection of the logarithm of
    the offset finds it to 1/64 of its size, in a few more steps than the exponent has bits. The
    offset times the equation has no pole nearer than the offset itself, so each of the Newton steps
    that follow doubles the number of correct digits.

    Returns:
      The nearer pole and gap(root, pole) [p, root], and gap(pole, root) [p, pole, root], to full
      relative accuracy.
    """
    dtype = poles.dtype
    own_weights = where(pairs.same, columns(weights), 0)  # [pole, root]

    def secular(distance: Any) -> Any:
        return lax.reduce_sum(own_weights / distance, (1,)) + np.ones((), dtype)

    def distances(origin: Any) -> Any:
        # 4 is farther away than any pole of the same pair.
        return where(pairs.same, gap(columns(poles), rows(origin)), 4)

    following = shift(ordered, -1, 1)
    # The last root is at most the sum of the weights above the last pole.
    reach = columns(lax.reduce_sum(weights, (1,))) * np.array(1 + 1e-3, dtype)
    half = where(pairs.last, reach, gap(following, ordered) * np.array(0.5, dtype))
    near_lower = (secular(distances(ordered) - rows(half)) >= 0) | pairs.last
    origin = where(near_lower, ordered, following)
    direction = where(near_lower, np.ones((), dtype), -1)
    base = distances(origin)

    def geometric_mean(low: Any, high: Any) -> Any:
        return lax.sqrt(low) * lax.sqrt(high)

    def bisect(_: Any, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bounds
        middle = geometric_mean(low, high)
        farther = secular(base - rows(direction * middle)) * direction < 0
        return where(farther, middle, low), where(farther, high, middle)

    def newton(_: Any, size: Any) -> Any:
        distance = base - rows(direction * size)
        value = direction * secular(distance)
        # Divides in another order than `secular`: XLA would store quotients that both sums share.
        slope = value + lax.reduce_sum(rows(size) / distance * own_weights / distance, (1,))
        return lax.clamp(low, where(slope > 0, size - size * value / slope, size), high)

    bounds = (lax.full_like(half, np.finfo(dtype).tiny), half)
    low, high = loop(np.finfo(dtype).nexp + _BISECTED_BITS - 1, bisect, bounds)
    offset = direction * loop(_NEWTON_STEPS[dtype.itemsize], newton, geometric_mean(low, high))
    return origin, offset, base - rows(offset)


def fit_weights(
    poles: Any, ordered: Any, rank: Any, difference: Any, pairs: Pairs, gap: Gap
) -> Any:
    """Computes weights [p, n] whose secular equation has exactly these roots (Loewner's formula).

    weight_j = prod_i (root_i - pole_j) / prod_{i != j} (pole_i - pole_j), where each root is
    divided by the pole between it and pole_j, so that only the last factor can exceed 1.
    """
    following = shift(ordered, -1, 1)
    neighbour = where(rows(pairs.index) < columns(rank), rows(ordered), rows(following))
    denominator = where(rows(pairs.last), -1, gap(columns(poles), neighbour))
    factors = where(pairs.same, difference / denominator, 1)
    return lax.reduce_prod(factors, (2,))
