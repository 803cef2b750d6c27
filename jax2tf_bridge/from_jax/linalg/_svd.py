"""Singular value decomposition, by divide and conquer on a bidiagonal form.

Removing one row from the bidiagonal matrix leaves two halves. Each half has one more column than
rows, so it has a null vector, and its left vectors get a placeholder for the removed row. In the
basis of the halves' singular vectors, the removed row is full and the rest of the matrix is
diagonal. The squares of the singular values are then the roots of the secular equation in `_eigh`,
and this module uses its functions. The poles are the squares of the halves' singular values, and a
difference of squares is computed accurately as (a - b)(a + b).
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    are_sizes_known,
    cast_like,
    columns,
    epsilon,
    eye_like,
    find_scale,
    int32,
    is_complex,
    matmul,
    max_over,
    pad_zeros,
    real,
    resize,
    rows,
    shift,
    transpose,
    vmap_matrices,
    where,
)
from jax2tf_bridge.from_jax.linalg._band_forms import accumulate_phases, apply_panels, bidiagonalize
from jax2tf_bridge.from_jax.linalg._eigh import (
    Pairs,
    choose_block_rows,
    find_roots,
    fit_weights,
    merge_until_one,
    pad_to_blocks,
    place_on_diagonal,
    separate,
    take_columns,
    take_row_at_seam,
)
from jax2tf_bridge.from_jax.linalg._reflectors import qr


def svd(
    a: Any,
    *,
    full_matrices: bool,
    compute_uv: bool,
    rank: Any,
    subset_by_index: tuple[int, int] | None = None,
    **algorithm: Any,
) -> tuple[Any, ...]:
    """Computes A = U diag(s) V^H for a [..., m, n]; the parameters are those of JAX's primitive.

    `rank` is min(m, n).

    Returns:
      s [..., k], real and descending, where k = min(m, n). With `compute_uv` also U [..., m, k] and
      V^H [..., k, n]; with `full_matrices` U is [..., m, m] and V^H is [..., n, n]. With
      `subset_by_index` (from, to), k is to - from. A matrix that is not finite gives NaN.
    """
    del algorithm  # selects an algorithm of LAPACK or cusolver; the result is the same
    function = functools.partial(_svd, full=full_matrices and compute_uv, rank=rank)
    s, u, vh = vmap_matrices(function, a)
    if subset_by_index is not None:
        first, end = subset_by_index
        s = s[..., first:end]
        if s.shape[-1] != u.shape[-1] or s.shape[-1] != vh.shape[-2]:
            u, vh = u[..., :, first:end], vh[..., first:end, :]
    return (s, u, vh) if compute_uv else (s,)


def _svd(a: Any, *, full: bool, rank: Any) -> tuple[Any, Any, Any]:
    m, n = a.shape
    if m == n and not (are_sizes_known(n) and n == 0):
        s, u, v = _svd_square(a)
        return s, u, adjoint(v)
    if not are_sizes_known(m, n):
        left, r = qr(a, rank=rank, full=full)
        right, core = qr(adjoint(resize(r, (rank, n))), rank=rank, full=full)
        s, u, v = _svd_square(adjoint(resize(core, (rank, rank))))
        return s, _rotate_columns(left, u, full), adjoint(_rotate_columns(right, v, full))
    if m < n:
        s, u, vh = _svd(adjoint(a), full=full, rank=rank)
        return s, adjoint(vh), adjoint(u)
    if n == 0:
        u = eye_like(a, m, m) if full else a
        return lax.full((0,), 0, real(a).dtype), u, lax.full((0, 0), 0, a.dtype)
    left, r = qr(a, rank=rank, full=full)
    s, u, v = _svd_square(r[:n])
    return s, _rotate_columns(left, u, full), adjoint(v)


def _rotate_columns(basis: Any, u: Any, full: bool) -> Any:
    # Only the first k columns of the basis, [m, m] or [m, k], are multiplied by u [k, k].
    m, rank = basis.shape[0], u.shape[0]
    product = matmul(resize(basis, (m, rank)), u)
    if not full:
        return product
    is_kept = lax.iota(np.int32, basis.shape[1]) >= int32(rank)
    return where(rows(is_kept), basis, resize(product, basis.shape))


def _svd_square(a: Any) -> tuple[Any, Any, Any]:
    """Computes s, U and V of a [n, n] from a = P B Q^H with an upper bidiagonal B."""
    n = a.shape[0]
    scale, finite = find_scale(a)
    b = bidiagonalize(a / cast_like(scale, a))

    d, e = b.d, b.e
    phases = None
    if is_complex(a):
        # Diagonal unitary matrices on both sides make B real. If the rows and columns of
        # [[0, B^H], [B, 0]] are interleaved, they are one similarity of a tridiagonal matrix.
        pairs = lax.concatenate([columns(d), columns(resize(lax.conj(e), (n,)))], 1)
        phases = accumulate_phases(resize(lax.reshape(pairs, (2 * n,)), (2 * n - 1,)))
        phases = lax.reshape(phases, (n, 2))
        d, e = lax.abs(d), lax.abs(e)
    size = lax.abs(e)
    larger_neighbour = lax.max(pad_zeros(size, [(0, 1, 0)]), pad_zeros(size, [(1, 0, 0)]))
    norm = max_over(lax.abs(d) + larger_neighbour, 0)
    norm = where(norm > 0, norm, 1) * np.array(2, norm.dtype)
    s, vectors = svd_bidiagonal(d / norm, e / norm)
    descending, order = lax.sort((-s, lax.iota(np.int32, n)), dimension=0, num_keys=1)
    vectors = vectors.at[:, :, order].get(mode="promise_in_bounds", unique_indices=True)
    vectors = cast_like(vectors, a)
    if phases is not None:
        vectors = columns(transpose(phases)) * vectors

    panels = _stack_sides(b.right, b.left)
    vectors = jax.vmap(apply_panels)(panels, resize(vectors, (2, panels.shape[3], n)))
    vectors = where(finite, resize(vectors, (2, n, n)), np.nan)
    s = where(finite, lax.max(-descending, 0 * descending) * norm * scale, np.nan)
    return s, vectors[1], vectors[0]


class _DiagonalParts(NamedTuple):
    """SVDs of the parts of p matrices; the parts follow each other along the diagonal of [n, n].

    Each part except the last one of a matrix has one row less than columns. Its first singular
    value is 0, and its first right vector spans the null space. Its first left vector is a
    placeholder for the row that follows, which ties the part to the next one.

    vectors: the right and the left singular vectors [2, p, n, n], in blocks on the diagonal.
    values: the singular values [p, n], ascending in each part.
    """

    vectors: Any
    values: Any


def svd_bidiagonal(d: Any, e: Any) -> tuple[Any, Any]:
    """Computes B = U diag(s) V^T for a B with diagonal `d` [n] and superdiagonal `e` [n - 1].

    The largest of the sums |d_i| + |e_i| and |d_i| + |e_{i-1}| must be at most 1/2. n may be
    symbolic.

    Returns:
      s [n], not sorted; V and U, stacked as [2, n, n].
    """
    n = d.shape[0]
    block = choose_block_rows(n)
    diagonal, superdiagonal = pad_to_blocks(d, e, block)
    padded = diagonal.shape[0]
    shape = (padded // block, block)
    values = lax.reshape(diagonal, shape)
    index = lax.iota(np.int32, padded)
    last = lax.reshape(index == int32(padded) - np.int32(1), shape)
    signs = where(last & (values < 0), np.array(-1, d.dtype), 1)
    signs = rows(_stack_sides(lax.full_like(signs, 1), signs))
    single_rows = _DiagonalParts(
        eye_like(signs, block, block) * signs, where(last, lax.abs(values), 0)
    )
    final = lax.reshape(lax.ge(index, int32(padded) - np.int32(block)), shape)
    parts = _merge_all(single_rows, values, lax.reshape(superdiagonal, shape), final, 1)
    if not (are_sizes_known(n) and n == block):
        values = lax.expand_dims(lax.reshape(parts.values, (padded,)), (0,))
        blocks = _DiagonalParts(jax.vmap(place_on_diagonal)(parts.vectors), values)
        all_final = lax.full((1, padded), True, np.bool_)
        parts = _merge_all(blocks, rows(diagonal), rows(superdiagonal), all_final, block)
    vectors = resize(lax.squeeze(parts.vectors, (1,)), (2, n, n))
    v, u = (lax.index_in_dim(vectors, i, 0, keepdims=False) for i in range(2))
    # Computed from the vectors, the singular values have twice as many correct digits.
    product = columns(d) * v + columns(resize(e, (n,))) * shift(v, -1, 0)
    lengths = lax.reduce_sum(vectors * vectors, (1,))
    return lax.reduce_sum(u * product, (0,)) * lax.rsqrt(lengths[0] * lengths[1]), vectors


def _merge_all(parts: _DiagonalParts, d: Any, e: Any, final: Any, size: int) -> _DiagonalParts:
    """Merges neighbouring parts in pairs until each matrix is a single part.

    Args:
      parts: the parts, of `size` rows each.
      d: the diagonals [p, n].
      e: the superdiagonals [p, n]; the last entry ties the matrix to the one that follows.
      final: [p, n], whether no matrix follows.
      size: the number of rows of a part; n is a multiple of it.
    """

    def merge(parts: _DiagonalParts, pairs: Pairs) -> _DiagonalParts:
        return _merge_pairs(parts, d, e, final, pairs)

    return merge_until_one(merge, parts, d.shape[1], size)


def _merge_pairs(parts: _DiagonalParts, d: Any, e: Any, final: Any, pairs: Pairs) -> _DiagonalParts:
    n = d.shape[1]
    index, same, seam = pairs.index, pairs.same, pairs.seam
    second = seam + np.int32(1)
    is_unpaired = second >= int32(n)
    # The pair has a null vector if its second part has one.
    is_open = ~((second + (seam - pairs.first) >= int32(n) - np.int32(1)) & final) & ~is_unpaired
    first_null = (index == pairs.first) & ~is_unpaired
    second_null = (index == second) & is_open
    placeholder = (index == pairs.first) & is_open

    # z is the row between the parts, in the basis of their right vectors.
    upper = index <= seam
    z = take_row_at_seam(parts.vectors[0], pairs) * where(
        upper, take_columns(d, seam), take_columns(e, seam)
    )
    # Raising an entry to this floor changes the matrix by less than a rounding error.
    floor = np.array(epsilon(z.dtype) / 4, z.dtype)
    raised = where(z < 0, lax.min(z, lax.full_like(z, -floor)), lax.max(z, lax.full_like(z, floor)))
    z = where(second_null, z, raised)

    # Both null vectors have the pole 0. Their combination that is orthogonal to the row remains a
    # null vector.
    keys = where(second_null, -1, parts.values)
    poles, ordered, rank = separate(keys, pairs)
    poles = where(second_null, 0, poles)
    rank = where(second_null, rank + np.int32(1), rank)
    origin, offset, difference = find_roots(poles, z * z, ordered, pairs, _difference_of_squares)
    true_roots = pairs._replace(same=same & ~rows(placeholder))
    fitted_z = lax.sqrt(
        fit_weights(poles, ordered, rank, difference, true_roots, _difference_of_squares)
    )
    z_first = take_columns(where(first_null, z, 0), pairs.first)
    z_second = take_columns(where(second_null, z, 0), second)
    length = lax.rsqrt(where(is_unpaired, 1, z_first * z_first + z_second * z_second))
    is_null = first_null | second_null
    fitted_z = where(z < 0, -fitted_z, fitted_z) * where(is_null, lax.abs(z) * length, 1)
    values = lax.sqrt(lax.max(origin * origin + offset, lax.full_like(offset, 0)))

    # The left vectors are the right ones times pole / value, and have one more entry for the row
    # itself. All are scaled by the offset, the smallest of the differences, to avoid overflow.
    ones = lax.full_like(z, 1)
    null = where(first_null, -z_second, where(second_null, z_first, 0)) * length
    vectors = rows(offset) / difference * columns(_stack_sides(fitted_z, poles * fitted_z))
    vectors = vectors / rows(_stack_sides(ones, values))
    is_row = _stack_sides(0 * ones, where(first_null, ones, 0))
    vectors = where(columns(is_row) > 0, -rows(offset / values), vectors)
    null = _stack_sides(null, where(second_null, ones, 0))
    vectors = where(rows(placeholder), columns(null), vectors)
    vectors = where(
        rows(is_unpaired), where(columns(index) == rows(index), columns(ones), 0), vectors
    )
    vectors = where(same, vectors, 0)
    vectors = vectors * rows(lax.rsqrt(lax.reduce_sum(vectors * vectors, (2,))))
    values = where(placeholder, 0, where(is_unpaired, parts.values, values))
    return _DiagonalParts(matmul(parts.vectors, vectors), values)


def _stack_sides(right: Any, left: Any) -> Any:
    return lax.concatenate([lax.expand_dims(x, (0,)) for x in (right, left)], 0)


def _difference_of_squares(a: Any, b: Any) -> Any:
    return (a - b) * (a + b)
