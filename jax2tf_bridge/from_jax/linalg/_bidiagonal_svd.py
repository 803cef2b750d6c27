"""Singular values and vectors of a real bidiagonal matrix, by divide and conquer.

The matrix without one of its rows is two halves, each with one column more than rows: a null
vector, and a place for the row in between. In the basis of the halves' singular vectors that row
is full and the rest diagonal, so that the squares of the singular values are the roots of the same
secular equation as in `_divide_and_conquer`, whose means this module uses: poles are squares of
the halves' singular values, and a difference of squares is a product of two exact ones.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    columns,
    epsilon,
    eye_like,
    int32,
    matmul,
    resize,
    rows,
    sizes_known,
    where,
)
from jax2tf_bridge.from_jax.linalg._divide_and_conquer import (
    Pairs,
    block_size,
    find_roots,
    fitting_weights,
    on_diagonal,
    pad,
    pairs_of,
    row_at_seam,
    separate,
    sum_over,
    take_columns,
)


class _Solved(NamedTuple):
    """Parts of matrices, decomposed: each has its rows and columns, in this order, of [n, n].

    Every part but a matrix' last has one row less than columns. Its first singular value is 0, its
    first right vector that of the null space, and its first left one stands for the row that
    follows, which ties it to the next part.

    vectors: the right and the left singular vectors [2, p, n, n], in blocks on the diagonal.
    values: [p, n], ascending in each part.
    """

    vectors: Any
    values: Any


def svd_bidiagonal(d: Any, e: Any) -> tuple[Any, Any]:
    """Computes B = U diag(s) V^T for a B with diagonal `d` [n] and superdiagonal `e` [n - 1].

    The largest of the sums |d_i| + |e_i| and |d_i| + |e_{i-1}| must be at most 1/2. n may be
    symbolic.

    Returns:
      s [n], not sorted; V and U [2, n, n].
    """
    n = d.shape[0]
    block = block_size(n)
    diagonal, beside = pad(d, e, block)
    padded = diagonal.shape[0]
    shape = (padded // block, block)
    values = lax.reshape(diagonal, shape)
    index = lax.iota(np.int32, padded)
    last = lax.reshape(index == int32(padded) - np.int32(1), shape)
    signs = where(last & (values < 0), np.array(-1, d.dtype), np.array(1, d.dtype))
    signs = rows(_both(lax.full_like(signs, 1), signs))
    single = _Solved(eye_like(signs, block, block) * signs, where(last, lax.abs(values), 0))
    final = lax.reshape(lax.ge(index, int32(padded) - np.int32(block)), shape)
    solved = _merge_all(single, values, lax.reshape(beside, shape), final, 1)
    if not (sizes_known(n) and n == block):
        values = lax.expand_dims(lax.reshape(solved.values, (padded,)), (0,))
        blocks = _Solved(jax.vmap(on_diagonal)(solved.vectors), values)
        every = lax.full((1, padded), True, np.bool_)
        solved = _merge_all(blocks, rows(diagonal), rows(beside), every, block)
    both = resize(lax.squeeze(solved.vectors, (1,)), (2, n, n))
    v, u = (lax.index_in_dim(both, i, 0, keepdims=False) for i in range(2))
    # The values of the vectors, which are twice as accurate.
    following = lax.pad(v, np.zeros((), v.dtype), [(-1, 1, 0), (0, 0, 0)])
    product = columns(d) * v + columns(resize(e, (n,))) * following
    lengths = sum_over(both * both, 1)
    return sum_over(u * product, 0) * lax.rsqrt(lengths[0] * lengths[1]), both


def _merge_all(solved: _Solved, d: Any, e: Any, final: Any, size: int) -> _Solved:
    """Ties parts of `size` rows each, pair by pair, until each matrix is one.

    Args:
      solved: the parts.
      d: the diagonals [p, n].
      e: the superdiagonals [p, n]; their last entry ties to what follows the matrix.
      final: [p, n], whether nothing follows the matrix.
      size: of a part; n is a multiple of it.
    """
    n = d.shape[1]

    def merge(state: tuple[_Solved, Any]) -> tuple[_Solved, Any]:
        solved, size = state
        return _merge(solved, d, e, final, pairs_of(n, size)), size * np.int32(2)

    start = (solved, np.int32(size))
    solved, _ = lax.while_loop(lambda state: state[1] < int32(n), merge, start)
    return solved


def _merge(solved: _Solved, d: Any, e: Any, final: Any, pairs: Pairs) -> _Solved:
    """Ties the two parts of each pair, as `_merge_all` does again and again."""
    n = d.shape[1]
    index, same, seam = pairs.index, pairs.same, pairs.seam
    second = seam + np.int32(1)
    alone = second >= int32(n)
    # Whether the second part has a null vector, and so the pair.
    is_open = ~((second + (seam - pairs.first) >= int32(n) - np.int32(1)) & final) & ~alone
    first_null = (index == pairs.first) & ~alone
    second_null = (index == second) & is_open
    placeholder = (index == pairs.first) & is_open

    # The row between the parts, in the basis of their right vectors.
    upper = index <= seam
    z = row_at_seam(solved.vectors[0], pairs) * where(
        upper, take_columns(d, seam), take_columns(e, seam)
    )
    # An entry below this floor moves the matrix by less than a rounding error.
    floor = np.array(epsilon(z.dtype) / 4, z.dtype)
    lifted = where(z < 0, lax.min(z, lax.full_like(z, -floor)), lax.max(z, lax.full_like(z, floor)))
    z = where(second_null, z, lifted)

    # Both null vectors are at the pole 0; the one that the row is orthogonal to stays one.
    keys = where(second_null, -1, solved.values)
    poles, ordered, rank = separate(keys, pairs)
    poles = where(second_null, 0, poles)
    rank = where(second_null, rank + np.int32(1), rank)
    origin, offset, difference = find_roots(poles, z * z, ordered, pairs, _difference_of_squares)
    true_roots = pairs._replace(same=same & ~rows(placeholder))
    fitting = lax.sqrt(
        fitting_weights(poles, ordered, rank, difference, true_roots, _difference_of_squares)
    )
    z_first = take_columns(where(first_null, z, 0), pairs.first)
    z_second = take_columns(where(second_null, z, 0), second)
    length = lax.rsqrt(where(alone, 1, z_first * z_first + z_second * z_second))
    is_null = first_null | second_null
    fitting = where(z < 0, -fitting, fitting) * where(is_null, lax.abs(z) * length, 1)
    values = lax.sqrt(lax.max(origin * origin + offset, lax.full_like(offset, 0)))

    # Right vectors, and left ones: right ones times poles over values, and the row itself. Scaled
    # such that nothing overflows: the offset is the smallest difference.
    one = lax.full_like(z, 1)
    null = where(first_null, -z_second, where(second_null, z_first, 0)) * length
    vectors = rows(offset) / difference * columns(_both(fitting, poles * fitting))
    vectors = vectors / rows(_both(one, values))
    of_row = _both(0 * one, where(first_null, one, 0))
    vectors = where(columns(of_row) > 0, -rows(offset / values), vectors)
    null = _both(null, where(second_null, one, 0))
    vectors = where(rows(placeholder), columns(null), vectors)
    vectors = where(rows(alone), where(columns(index) == rows(index), columns(one), 0), vectors)
    vectors = where(same, vectors, 0)
    vectors = vectors * rows(lax.rsqrt(sum_over(vectors * vectors, 2)))
    values = where(placeholder, 0, where(alone, solved.values, values))
    return _Solved(matmul(solved.vectors, vectors), values)


def _both(right: Any, left: Any) -> Any:
    """Stacks what belongs to the right vectors and what to the left ones."""
    return lax.concatenate([lax.expand_dims(x, (0,)) for x in (right, left)], 0)


def _difference_of_squares(a: Any, b: Any) -> Any:
    return (a - b) * (a + b)
