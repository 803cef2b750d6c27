"""Schur decompositions of general matrices by the QR algorithm with implicit shifts."""

from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    columns,
    distance_below_diagonal,
    epsilon,
    int32,
    is_complex,
    map_matrices,
    matmul,
    resize,
    rows,
    where,
)
from jax2tf_bridge.from_jax.linalg._reflectors import hessenberg

# Maximum number of sweeps for each row, as in LAPACK; three are usual.
_MAX_SWEEPS_PER_ROW = 30
# Number of sweeps without a finished row after which a larger tolerance is used.
_MAX_SWEEPS_WITHOUT_PROGRESS = 12


class SchurState(NamedTuple):
    """An unfinished decomposition A = Z H Z^H.

    h: Hessenberg, padded with two rows and columns of zeros so that every window fits.
    z: unitary, padded with two columns of zeros.
    end: the last unfinished row; below it, H has its final form.
    sweep: the number of sweeps so far.
    tried: the number of sweeps since the last row was finished.
    """

    h: Any
    z: Any
    end: Any
    sweep: Any
    tried: Any


def schur(a: Any, *, compute_schur_vectors: bool, sort_eig_vals: bool, **options: Any) -> Any:
    """Computes A = Z T Z^H for a [..., n, n]; the parameters are those of JAX's primitive.

    Returns:
      T [..., n, n], and with `compute_schur_vectors` also Z [..., n, n]. T is upper triangular if A
      is complex. If A is real, T is real, with a diagonal block [[p, q], [r, p]], q r < 0, for
      each pair of complex eigenvalues. A matrix that is not finite gives NaN.
    """
    del options
    if sort_eig_vals:
        raise NotImplementedError("schur with sort_eig_vals: JAX has it on no platform.")
    t, z = map_matrices(schur_of_matrix, a)
    return (t, z) if compute_schur_vectors else (t,)


def schur_of_matrix(a: Any) -> tuple[Any, Any]:
    """Computes T and Z of one matrix [n, n]."""
    n = a.shape[0]
    if n == 0:
        return a, a
    size = lax.abs(a)
    finite = lax.reduce(lax.is_finite(size), np.array(True), lax.bitwise_and, (0, 1))
    largest = lax.reduce(where(finite, size, 0), np.zeros((), size.dtype), lax.max, (0, 1))
    scale = lax.convert_element_type(where(largest > 0, largest, 1), a.dtype)
    h, z = _reduce_to_hessenberg(where(finite, a, 0) / scale)
    padding = [(0, 2, 0)]
    zero = np.zeros((), a.dtype)
    state = SchurState(
        lax.pad(h, zero, padding * 2),
        lax.pad(z, zero, [(0, 0, 0), *padding]),
        int32(n) - np.int32(1),
        *(np.array(0, np.int32),) * 2,
    )
    max_sweeps = lax.max(int32(n), np.int32(10)) * np.int32(_MAX_SWEEPS_PER_ROW)
    final = lax.while_loop(lambda s: (s.end > 0) & (s.sweep < max_sweeps), _iterate, state)
    correct = finite & (final.end <= 0)
    nan = np.array(np.nan, a.dtype)
    return where(correct, resize(final.h, (n, n)) * scale, nan), where(
        correct, resize(final.z, (n, n)), nan
    )


def _reduce_to_hessenberg(a: Any) -> tuple[Any, Any]:
    n = a.shape[0]
    packed, taus = hessenberg(a)
    h = where(distance_below_diagonal(n) > 1, 0, packed)
    # The reflectors begin in row 1. Shifted up to row 0, and with an identity reflector at the end,
    # they give a Q that is then moved one step down the diagonal. So no array is empty.
    zero = np.zeros((), a.dtype)
    vectors = lax.pad(packed, zero, [(-1, 1, 0), (0, 0, 0)])
    vectors = where(distance_below_diagonal(n) > 0, vectors, 0)
    product = lax.linalg.householder_product(vectors, resize(taus, (n,)))
    z = lax.pad(product, zero, [(1, -1, 0)] * 2)
    first = lax.iota(np.int32, n) == 0
    return h, where(columns(first) & rows(first), 1, z)


def _iterate(state: SchurState) -> SchurState:
    """Marks the last block as finished if it is, or else makes one sweep over it."""
    # If sweeps do not help, entries that are negligible in the whole matrix are zeroed too.
    stuck = state.tried >= np.int32(_MAX_SWEEPS_WITHOUT_PROGRESS)
    h = _zero_negligible(state.h, stuck)
    state = state._replace(h=h)
    index = lax.iota(np.int32, h.shape[0])
    subdiagonal = _take_subdiagonal(h)
    # The first row of the unreduced block that ends in row `end`.
    starts = (subdiagonal == 0) & (index <= state.end)
    first = lax.reduce(where(starts, index, 0), np.int32(0), lax.max, (0,))
    rows_left = state.end - first
    done = (rows_left == 0) if is_complex(h) else (rows_left <= 1)
    following: SchurState = lax.cond(
        done, lambda s: _finish(s, first), lambda s: _sweep(s, first), state
    )
    return following


def _finish(state: SchurState, first: Any) -> SchurState:
    if not is_complex(state.h):
        state = lax.cond(first < state.end, lambda s: _standardize(s, first), lambda s: s, state)
    return state._replace(end=first - np.int32(1), tried=np.array(0, np.int32))


def _take_subdiagonal(h: Any) -> Any:
    """Returns the subdiagonal, indexed by row; entry 0 is zero."""
    masked = where(distance_below_diagonal(h.shape[0]) == 1, h, 0)
    return lax.reduce(masked, np.zeros((), h.dtype), lax.add, (1,))


def _zero_negligible(h: Any, stuck: Any) -> Any:
    """Zeroes the subdiagonal entries of H that are rounding errors of their neighbours.

    If `stuck`, it zeroes those that are rounding errors of the largest entry of A, which is 1.
    """
    below = distance_below_diagonal(h.shape[0])
    size = lax.reduce(where(below == 0, _abs1(h), 0), np.zeros((), _abs1(h).dtype), lax.add, (1,))
    neighbours = size + lax.concatenate([size[:1], size[:-1]], 0)
    neighbours = where((neighbours > 0) & lax.bitwise_not(stuck), neighbours, 1)
    negligible = _abs1(h) <= epsilon(h.dtype) * columns(neighbours)
    return where((below == 1) & negligible, 0, h)


def _abs1(x: Any) -> Any:
    return lax.abs(lax.real(x)) + lax.abs(lax.imag(x)) if is_complex(x) else lax.abs(x)


def _entry_at(h: Any, i: Any, j: Any) -> Any:
    return lax.reshape(lax.dynamic_slice(h, (i, j), (1, 1)), ())


def _sweep(state: SchurState, first: Any) -> SchurState:
    """Chases a bulge from row `first` to row `end`."""
    h, end = state.h, state.end
    # Every tenth shift is exceptional, because the sweeps could cycle.
    exceptional = (state.tried % np.int32(10)) == np.int32(9)
    start = _start_complex_bulge if is_complex(h) else _start_real_bulge
    window = start(h, first, end, exceptional)
    width = window.shape[0]
    offsets = lax.iota(np.int32, width)

    def chase(k: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        k = lax.convert_element_type(k, np.int32)
        h, z, x = carry
        v, factor = _make_reflector(where(offsets + k <= end, x, 0))
        block = lax.dynamic_slice_in_dim(h, k, width, 0)
        block = block - factor * columns(v) * matmul(adjoint(columns(v)), block)
        h = lax.dynamic_update_slice_in_dim(h, block, k, 0)
        h, z = (_reflect_columns(m, v, factor, k) for m in (h, z))
        following = lax.dynamic_slice(h, (k + np.int32(1), k), (width, 1))
        return h, z, lax.squeeze(following, (1,))

    h, z, _ = lax.fori_loop(first, end, chase, (h, state.z, window))
    return SchurState(
        where(distance_below_diagonal(h.shape[0]) > 1, 0, h),
        z,
        end,
        state.sweep + np.int32(1),
        state.tried + np.int32(1),
    )


def _reflect_columns(m: Any, v: Any, factor: Any, k: Any) -> Any:
    block = lax.dynamic_slice_in_dim(m, k, v.shape[0], 1)
    block = block - factor * matmul(block, columns(v)) * adjoint(columns(v))
    return lax.dynamic_update_slice_in_dim(m, block, k, 1)


def _make_reflector(x: Any) -> tuple[Any, Any]:
    """Returns v and f such that (I - f v v^H) x is a multiple of e_0, for a short vector x."""
    size = lax.abs(x)
    largest = lax.reduce(size, np.zeros((), size.dtype), lax.max, (0,))
    nonzero = largest > 0
    x = x / lax.convert_element_type(where(nonzero, largest, 1), x.dtype)
    size = lax.abs(x)
    norm = lax.sqrt(lax.reduce(size * size, np.zeros((), size.dtype), lax.add, (0,)))
    head = x[0]
    head_size = size[0]
    phase = where(
        head_size > 0,
        head / lax.convert_element_type(where(head_size > 0, head_size, 1), x.dtype),
        np.ones((), x.dtype),
    )
    first = lax.iota(np.int32, x.shape[0]) == 0
    v = where(first, x + phase * lax.convert_element_type(norm, x.dtype), x)
    length = norm * (norm + head_size)
    factor = where(nonzero, 1 / where(nonzero, length, 1), 0)
    return v, lax.convert_element_type(factor, x.dtype)


def _start_complex_bulge(h: Any, first: Any, end: Any, exceptional: Any) -> Any:
    """Returns the first column of H - s I.

    s is the eigenvalue of the last 2 x 2 block that is nearest to the block's last entry.
    """
    previous = end - np.int32(1)
    a, b, c, d = (_entry_at(h, i, j) for i in (previous, end) for j in (previous, end))
    half = (a - d) / 2
    root = lax.sqrt(half * half + b * c)
    same = lax.real(half) * lax.real(root) + lax.imag(half) * lax.imag(root) >= 0
    larger = half + where(same, root, -root)
    nonzero = lax.abs(larger) > 0
    shift = d - where(nonzero, b * c / where(nonzero, larger, 1), 0)
    shift = where(exceptional, d + lax.abs(c), shift)
    following = first + np.int32(1)
    return _make_vector(_entry_at(h, first, first) - shift, _entry_at(h, following, first))


def _start_real_bulge(h: Any, first: Any, end: Any, exceptional: Any) -> Any:
    """Returns the first column of (H - s I)(H - t I).

    s and t are the eigenvalues of the last 2 x 2 block.
    """
    previous, one = end - np.int32(1), np.int32(1)
    a, b, c, d = (_entry_at(h, i, j) for i in (previous, end) for j in (previous, end))
    product = b * c
    size = lax.abs(c) + lax.abs(_entry_at(h, previous, lax.max(previous - one, np.int32(0))))
    centre = d + size * 0.75
    a, d = where(exceptional, centre, a), where(exceptional, centre, d)
    product = where(exceptional, size * size * -0.4375, product)
    p, q = _entry_at(h, first, first), _entry_at(h, first, first + one)
    r, s = _entry_at(h, first + one, first), _entry_at(h, first + one, first + one)
    third = _entry_at(h, first + np.int32(2), first + one)
    # The differences are accurate even if all eigenvalues are nearly equal.
    return _make_vector((p - a) * (p - d) - product + q * r, r * ((s - a) + (p - d)), r * third)


def _make_vector(*entries: Any) -> Any:
    return lax.concatenate([lax.reshape(x, (1,)) for x in entries], 0)


def _standardize(state: SchurState, first: Any) -> SchurState:
    """Makes a real 2 x 2 block triangular, or if that is impossible, its diagonal constant."""
    second = first + np.int32(1)
    a, b, c, d = (_entry_at(state.h, i, j) for i in (first, second) for j in (first, second))
    cosine, sine, triangular = _find_rotation(a, b, c, d)
    rotation = lax.reshape(_make_vector(cosine, -sine, sine, cosine), (2, 2))
    block = lax.dynamic_slice_in_dim(state.h, first, 2, 0)
    h = lax.dynamic_update_slice_in_dim(
        state.h, matmul(lax.transpose(rotation, (1, 0)), block), first, 0
    )
    h, z = (
        lax.dynamic_update_slice_in_dim(
            m, matmul(lax.dynamic_slice_in_dim(m, first, 2, 1), rotation), first, 1
        )
        for m in (h, state.z)
    )
    index = lax.iota(np.int32, h.shape[0])
    row, column = columns(index), rows(index)
    h = where(triangular & (row == second) & (column == first), 0, h)
    mean = (_entry_at(h, first, first) + _entry_at(h, second, second)) / 2
    on_diagonal = (row == column) & ((row == first) | (row == second))
    h = where(on_diagonal & lax.bitwise_not(triangular), mean, h)
    return state._replace(h=h, z=z)


def _find_rotation(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any]:
    """Returns cosine and sine of a rotation, and whether it makes the block triangular."""
    one = np.ones((), a.dtype)
    p = (a - d) / 2
    discriminant = p * p + b * c
    # For nearly equal eigenvalues, the diagonal is made exactly constant instead.
    scale = lax.max(lax.abs(p), lax.max(lax.abs(b), lax.abs(c)))
    apart = discriminant >= 4 * epsilon(a.dtype) * scale * scale
    offset = p + _sign(p) * lax.sqrt(where(apart, discriminant, 0))
    length = _nonzero_length(c, offset)
    triangular_rotation = (offset / length, c / length)

    total = b + c
    length = _nonzero_length(total, a - d)
    # A block with the standard form already is not rotated.
    is_standard = (total == 0) & (p == 0)
    cosine = where(is_standard, one, lax.sqrt((one + lax.abs(total) / length) / 2))
    sine = -(p / (length * cosine)) * _sign(total)
    # The block with the constant diagonal may have real eigenvalues after all.
    upper, lower = _rotate_off_diagonal(a, b, c, d, cosine, sine)
    still_real = (upper * lower >= 0) & (lower != 0)
    hypotenuse = lax.sqrt(where(still_real, lax.abs(upper + lower), 1))
    more_cosine = lax.sqrt(lax.abs(upper)) / hypotenuse
    more_sine = _sign(upper) * _sign(lower) * lax.sqrt(lax.abs(lower)) / hypotenuse
    combined = (cosine * more_cosine - sine * more_sine, cosine * more_sine + sine * more_cosine)
    mean_rotation = tuple(
        where(still_real, t, u) for t, u in zip(combined, (cosine, sine), strict=True)
    )
    chosen = [where(apart, x, y) for x, y in zip(triangular_rotation, mean_rotation, strict=True)]
    return chosen[0], chosen[1], apart | still_real | (lower == 0)


def _rotate_off_diagonal(a: Any, b: Any, c: Any, d: Any, cosine: Any, sine: Any) -> tuple[Any, Any]:
    """Returns the off-diagonal entries of the rotated block."""
    squares, product = (cosine * cosine, sine * sine), cosine * sine
    upper = b * squares[0] - c * squares[1] - (a - d) * product
    lower = c * squares[0] - b * squares[1] - (a - d) * product
    return upper, lower


def _sign(x: Any) -> Any:
    return where(x < 0, np.array(-1, x.dtype), np.array(1, x.dtype))


def _nonzero_length(x: Any, y: Any) -> Any:
    """Returns the length of (x, y), or 1 for the zero vector."""
    largest = lax.max(lax.abs(x), lax.abs(y))
    scale = where(largest > 0, largest, np.ones((), x.dtype))
    length = scale * lax.sqrt((x / scale) * (x / scale) + (y / scale) * (y / scale))
    return where(largest > 0, length, np.ones((), x.dtype))
