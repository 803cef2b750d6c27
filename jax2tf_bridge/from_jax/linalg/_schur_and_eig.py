"""Schur decompositions of general matrices by the QR algorithm, and eigenvectors from them."""

import functools
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    abs1,
    adjoint,
    are_sizes_known,
    cast_like,
    columns,
    diagonal,
    distance_below_diagonal,
    epsilon,
    eye_like,
    find_scale,
    int32,
    is_complex,
    loop,
    map_matrices,
    matmul,
    max_over,
    real_dtype,
    resize,
    rows,
    shift,
    transpose,
    where,
)
from jax2tf_bridge.from_jax.linalg._reflectors import (
    hessenberg,
    make_reflector,
    reflect_columns,
    reflect_rows,
)

# Maximum number of sweeps for each row, as in LAPACK; three are usual.
_MAX_SWEEPS_PER_ROW = 30
# Number of sweeps without a finished row after which a larger tolerance is used.
_MAX_SWEEPS_WITHOUT_PROGRESS = 12


class _SchurState(NamedTuple):
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
        raise NotImplementedError(
            "JAX supports schur with sort_eig_vals on no platform. Remove it."
        )
    t, z = map_matrices(_schur, a)
    return (t, z) if compute_schur_vectors else (t,)


def _schur(a: Any) -> tuple[Any, Any]:
    """Computes T and Z of one matrix [n, n]."""
    n = a.shape[0]
    if n == 0:
        return a, a
    scale, finite = find_scale(a)
    scale = cast_like(scale, a)
    h, z = _compute_hessenberg(where(finite, a, 0) / scale)
    state = _SchurState(
        resize(h, (n + 2, n + 2)),
        resize(z, (n, n + 2)),
        int32(n) - np.int32(1),
        *(np.array(0, np.int32),) * 2,
    )
    max_sweeps = lax.max(int32(n), np.int32(10)) * np.int32(_MAX_SWEEPS_PER_ROW)
    final = lax.while_loop(lambda s: (s.end > 0) & (s.sweep < max_sweeps), _iterate, state)
    correct = finite & (final.end <= 0)
    t, z = resize(final.h, (n, n)) * scale, resize(final.z, (n, n))
    return where(correct, t, np.nan), where(correct, z, np.nan)


def _compute_hessenberg(a: Any) -> tuple[Any, Any]:
    n = a.shape[0]
    packed, taus = hessenberg(a)
    h = where(distance_below_diagonal(n) > 1, 0, packed)
    # The reflectors begin in row 1. Shifted up to row 0, and with an identity reflector at the end,
    # they give a Q that is then moved one step down the diagonal. So no array is empty.
    vectors = where(distance_below_diagonal(n) > 0, shift(packed, -1, 0), 0)
    product = lax.linalg.householder_product(vectors, resize(taus, (n,)))
    z = shift(product, 1, 0, 1)
    first = lax.iota(np.int32, n) == 0
    return h, where(columns(first) & rows(first), 1, z)


def _iterate(state: _SchurState) -> _SchurState:
    """Marks the last block as finished if it is, or else makes one sweep over it."""
    # If sweeps do not help, entries that are negligible in the whole matrix are zeroed too.
    stuck = state.tried >= np.int32(_MAX_SWEEPS_WITHOUT_PROGRESS)
    h = _zero_negligible(state.h, stuck)
    state = state._replace(h=h)
    index = lax.iota(np.int32, h.shape[0])
    below = distance_below_diagonal(h.shape[0])
    subdiagonal = lax.reduce_sum(where(below == 1, h, 0), (1,))
    # The first row of the unreduced block that ends in row `end`.
    starts = (subdiagonal == 0) & (index <= state.end)
    first = max_over(where(starts, index, 0), 0)
    rows_left = state.end - first
    done = (rows_left == 0) if is_complex(h) else (rows_left <= 1)
    following: _SchurState = lax.cond(
        done, lambda s: _finish(s, first), lambda s: _sweep(s, first), state
    )
    return following


def _finish(state: _SchurState, first: Any) -> _SchurState:
    if not is_complex(state.h):
        state = lax.cond(first < state.end, lambda s: _standardize(s, first), lambda s: s, state)
    return state._replace(end=first - np.int32(1), tried=np.array(0, np.int32))


def _zero_negligible(h: Any, stuck: Any) -> Any:
    """Zeroes the subdiagonal entries of H that are rounding errors of their neighbours.

    If `stuck`, it zeroes those that are rounding errors of the largest entry of A, which is 1.
    """
    below = distance_below_diagonal(h.shape[0])
    size = lax.reduce_sum(where(below == 0, abs1(h), 0), (1,))
    neighbours = size + shift(size, 1, 0)
    neighbours = where((neighbours > 0) & lax.bitwise_not(stuck), neighbours, 1)
    negligible = abs1(h) <= epsilon(h.dtype) * columns(neighbours)
    return where((below == 1) & negligible, 0, h)


def _entry_at(h: Any, i: Any, j: Any) -> Any:
    return lax.reshape(lax.dynamic_slice(h, (i, j), (1, 1)), ())


def _sweep(state: _SchurState, first: Any) -> _SchurState:
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
        v, tau, _ = make_reflector(where(offsets + k <= end, x, 0), 0)
        block = lax.dynamic_slice_in_dim(h, k, width, 0)
        h = lax.dynamic_update_slice_in_dim(h, reflect_rows(block, v, tau), k, 0)
        h, z = (_reflect_columns_from(k, m, v, tau) for m in (h, z))
        following = lax.dynamic_slice(h, (k + np.int32(1), k), (width, 1))
        return h, z, lax.squeeze(following, (1,))

    h, z, _ = lax.fori_loop(first, end, chase, (h, state.z, window))
    return _SchurState(
        where(distance_below_diagonal(h.shape[0]) > 1, 0, h),
        z,
        end,
        state.sweep + np.int32(1),
        state.tried + np.int32(1),
    )


def _reflect_columns_from(k: Any, m: Any, v: Any, tau: Any) -> Any:
    block = lax.dynamic_slice_in_dim(m, k, v.shape[0], 1)
    return lax.dynamic_update_slice_in_dim(m, reflect_columns(block, v, tau), k, 1)


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
    s = d - where(nonzero, b * c / where(nonzero, larger, 1), 0)
    s = where(exceptional, d + lax.abs(c), s)
    following = first + np.int32(1)
    return _make_vector(_entry_at(h, first, first) - s, _entry_at(h, following, first))


def _start_real_bulge(h: Any, first: Any, end: Any, exceptional: Any) -> Any:
    """Returns the first column of (H - s I)(H - t I).

    s and t are the eigenvalues of the last 2 x 2 block.
    """
    previous, second = end - np.int32(1), first + np.int32(1)
    a, b, c, d = (_entry_at(h, i, j) for i in (previous, end) for j in (previous, end))
    product = b * c
    size = lax.abs(c) + lax.abs(
        _entry_at(h, previous, lax.max(previous - np.int32(1), np.int32(0)))
    )
    centre = d + size * 0.75
    a, d = where(exceptional, centre, a), where(exceptional, centre, d)
    product = where(exceptional, size * size * -0.4375, product)
    p, q = _entry_at(h, first, first), _entry_at(h, first, second)
    r, s = _entry_at(h, second, first), _entry_at(h, second, second)
    third = _entry_at(h, first + np.int32(2), second)
    # The differences are accurate even if all eigenvalues are nearly equal.
    return _make_vector((p - a) * (p - d) - product + q * r, r * ((s - a) + (p - d)), r * third)


def _make_vector(*entries: Any) -> Any:
    return lax.concatenate([lax.reshape(x, (1,)) for x in entries], 0)


def _standardize(state: _SchurState, first: Any) -> _SchurState:
    """Makes a real 2 x 2 block triangular, or if that is impossible, its diagonal constant."""
    second = first + np.int32(1)
    a, b, c, d = (_entry_at(state.h, i, j) for i in (first, second) for j in (first, second))
    cosine, sine, triangular = _find_rotation(a, b, c, d)
    rotation = lax.reshape(_make_vector(cosine, -sine, sine, cosine), (2, 2))
    block = lax.dynamic_slice_in_dim(state.h, first, 2, 0)
    h = lax.dynamic_update_slice_in_dim(state.h, matmul(transpose(rotation), block), first, 0)
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
    cosine = where(is_standard, 1, lax.sqrt((1 + lax.abs(total) / length) / 2))
    sine = -(p / (length * cosine)) * _sign(total)
    # The block with the constant diagonal may have real eigenvalues after all.
    squares, product = (cosine * cosine, sine * sine), cosine * sine
    upper = b * squares[0] - c * squares[1] - (a - d) * product
    lower = c * squares[0] - b * squares[1] - (a - d) * product
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


def _sign(x: Any) -> Any:
    return where(x < 0, np.array(-1, x.dtype), 1)


def _nonzero_length(x: Any, y: Any) -> Any:
    """Returns the length of (x, y), or 1 for the zero vector."""
    largest = lax.max(lax.abs(x), lax.abs(y))
    scale = where(largest > 0, largest, 1)
    length = scale * lax.sqrt((x / scale) * (x / scale) + (y / scale) * (y / scale))
    return where(largest > 0, length, 1)


_MAX_BALANCING_SWEEPS = 20


def eig(
    a: Any, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, **options: Any
) -> tuple[Any, ...]:
    """Computes the eigenvalues and the requested eigenvectors of a [..., n, n]; all are complex.

    The conventions are LAPACK's: u^H A = w u^H for a left eigenvector u, and eigenvectors have
    length 1 and a real largest entry. Eigenvalues of a real matrix are real or in conjugate pairs,
    the one with positive imaginary part first. A matrix that is not finite gives NaN.

    Returns:
      The eigenvalues [..., n]; left eigenvectors [..., n, n]; right eigenvectors [..., n, n].
    """
    del options
    function = functools.partial(
        _eig, left=compute_left_eigenvectors, right=compute_right_eigenvectors
    )
    return map_matrices(function, a)


def _eig(a: Any, *, left: bool, right: bool) -> tuple[Any, ...]:
    a, scales = _balance(a)
    t, z = _schur(a)
    scale, _ = find_scale(t)
    t = t / cast_like(scale, t)
    was_real = not is_complex(a)
    if was_real:
        t, z, values = _to_complex_schur(t, z)
    else:
        values = diagonal(t)
    results = [values * cast_like(scale, values)]
    if left:
        # y^H T = w y^H: T^H is upper triangular in reverse order.
        mirrored = lax.rev(adjoint(t), (0, 1))
        vectors = lax.rev(_solve_triangular(mirrored, lax.rev(lax.conj(values), (0,))), (0, 1))
        unscaled = matmul(z, vectors) / columns(cast_like(scales, z))
        results.append(_normalize(unscaled, values, was_real))
    if right:
        vectors = matmul(z, _solve_triangular(t, values))
        unscaled = vectors * columns(cast_like(scales, z))
        results.append(_normalize(unscaled, values, was_real))
    return tuple(results)


def _balance(a: Any) -> tuple[Any, Any]:
    """Returns D^-1 A D and the diagonal D [n] that makes rows and columns about equally long.

    This is LAPACK's gebal. Without it, the small eigenvalues of a badly scaled matrix would be lost
    in the rounding errors of its largest entries.
    """
    n = a.shape[0]
    dtype = real_dtype(a.dtype)
    ones = lax.full((n,), 1, dtype)
    if are_sizes_known(n) and n < 2:
        return a, ones
    index = lax.iota(np.int32, n)

    def length(entries: Any, i: Any) -> Any:
        others = where(index == i, 0, lax.abs(lax.reshape(entries, (n,))))
        return lax.reduce_sum(others, (0,))

    def balance_row(i: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, scales, changed = state
        column = lax.dynamic_slice_in_dim(a, i, 1, 1)
        c, r = length(column, i), length(lax.dynamic_slice_in_dim(a, i, 1, 0), i)
        possible = (c > 0) & (r > 0) & lax.is_finite(c) & lax.is_finite(r)
        log_ratio = lax.log(where(possible, r, 1)) - lax.log(where(possible, c, 1))
        power = lax.round(log_ratio / np.array(2 * np.log(2), dtype))
        factor = lax.exp2(lax.clamp(np.array(-40, dtype), power, np.array(40, dtype)))
        shorter = possible & (c * factor + r / factor < 0.95 * (c + r))
        factor = where(shorter, factor, 1)
        typed_factor = cast_like(factor, a)
        a = lax.dynamic_update_slice_in_dim(a, column * typed_factor, i, 1)
        row = lax.dynamic_slice_in_dim(a, i, 1, 0)
        a = lax.dynamic_update_slice_in_dim(a, row / typed_factor, i, 0)
        return a, where(index == i, scales * factor, scales), changed | shorter

    def sweep(state: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        a, scales, _, count = state
        start = (a, scales, np.array(False))
        a, scales, changed = loop(n, balance_row, start)
        return a, scales, changed, count + np.int32(1)

    balanced, scales, _, _ = lax.while_loop(
        lambda state: state[2] & (state[3] < np.int32(_MAX_BALANCING_SWEEPS)),
        sweep,
        (a, ones, np.array(True), np.array(0, np.int32)),
    )
    return balanced, scales


def _to_complex_schur(t: Any, z: Any) -> tuple[Any, Any, Any]:
    """Converts a real Schur decomposition to a complex one: triangular T, Z, and the eigenvalues.

    The blocks [[p, q], [r, p]] have the eigenvalues p +- i sqrt(-q r), and (q, +- i sqrt(-q r)) as
    eigenvectors.
    """
    n = t.shape[0]
    dtype = np.result_type(t.dtype, np.complex64)
    below = distance_below_diagonal(n)

    def off_diagonal(offset: int) -> Any:
        entries = where(below == offset, t, 0)
        return lax.reduce_sum(entries, (1 if offset < 0 else 0,))

    # The entries below and above the diagonal, indexed by the first row of each pair.
    lower, upper = off_diagonal(1), off_diagonal(-1)
    first = lower != 0
    imaginary = where(first, lax.sqrt(lax.abs(upper)) * lax.sqrt(lax.abs(lower)), 0)
    imaginary = imaginary - shift(imaginary, 1, 0)
    values = lax.complex(diagonal(t), imaginary)

    length = lax.sqrt(where(first, upper * upper + imaginary * imaginary, 1))
    head = where(first, upper / length, 1)
    tail = where(first, imaginary / length, 0)
    on_diagonal = where(shift(lower, 1, 0) != 0, shift(head, 1, 0), head)
    zeros = lax.full_like(t, 0)
    unitary = lax.complex(
        where(below == 0, rows(on_diagonal), 0) + zeros,
        # i tail, below the diagonal in the first column of a pair and above it in the second.
        where(below == 1, rows(tail), 0) + where(below == -1, columns(tail), 0),
    )
    t, z = (lax.convert_element_type(m, dtype) for m in (t, z))
    t = matmul(matmul(adjoint(unitary), t), unitary)
    t = where(below > 0, 0, where(below == 0, columns(values), t))
    return t, matmul(z, unitary), values


def _solve_triangular(t: Any, values: Any) -> Any:
    """Computes the right eigenvectors of an upper triangular T with `values` on its diagonal.

    The entries of T must be of order 1.
    """
    n = t.shape[0]
    if n == 0:
        return t
    index = lax.iota(np.int32, n)
    dtype = real_dtype(t.dtype)
    min_difference = np.array(np.finfo(dtype).eps, dtype)  # the largest entry of T is 1

    def substitute(step: Any, x: Any) -> Any:
        i = int32(n) - np.int32(1) - step
        row = lax.dynamic_slice_in_dim(t, i, 1, 0)
        sums = matmul(where(rows(index > i), row, 0), x)
        value = lax.dynamic_slice_in_dim(values, i, 1, 0)
        difference = value - values
        # Equal eigenvalues are separated by a rounding error of T, as in LAPACK, so they get
        # independent vectors only if T has such.
        close = lax.abs(difference) < min_difference
        divisor = where(close, cast_like(min_difference, t), difference)
        solved = where(rows(index > i), -sums / rows(divisor), 0)
        solved = where(rows(index == i), 1, solved)
        # Rescaled, because nearly equal eigenvalues make entries that would overflow.
        x = lax.dynamic_update_slice_in_dim(x, solved, i, 0)
        longest = max_over(lax.abs(x), 0)
        scale = where(longest > 1, longest, 1)
        return x / rows(cast_like(scale, t))

    return loop(n, substitute, eye_like(t, n, n))


def _normalize(vectors: Any, values: Any, was_real: bool) -> Any:
    """Scales columns to length 1 and a positive largest entry.

    Eigenvectors of a real matrix become exactly real or exactly conjugate pairs.
    """
    if vectors.shape[0] == 0:
        return vectors
    size = lax.abs(vectors)
    positions = lax.argmax(size, 0, np.int32)
    chosen = where(lax.broadcasted_iota(np.int32, vectors.shape, 0) == rows(positions), vectors, 0)
    largest = lax.reduce_sum(chosen, (0,))
    sizes = where(lax.abs(largest) > 0, lax.abs(largest), 1)
    vectors = vectors * rows(lax.conj(largest) / cast_like(sizes, vectors))
    if was_real:
        imaginary = rows(lax.imag(values))
        vectors = where(imaginary < 0, lax.conj(shift(vectors, 1, 1)), vectors)
        parts = where(imaginary == 0, 0, lax.imag(vectors))
        vectors = lax.complex(lax.real(vectors), parts)
    size = lax.abs(vectors)
    squares = lax.reduce_sum(size * size, (0,))
    length = lax.sqrt(where(squares > 0, squares, 1))
    return vectors / rows(cast_like(length, vectors))
