"""Reduction of a square matrix to a bidiagonal one by Householder reflections from both sides."""

from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    columns,
    epsilon,
    is_complex,
    loop,
    matmul,
    multiple_of,
    real,
    resize,
    rows,
    sizes_known,
    where,
)

_HIGHEST = lax.Precision.HIGHEST

# Columns of a panel.
_WIDTH = 32


class Bidiagonal(NamedTuple):
    """A = P B Q^H with an upper bidiagonal B.

    d: the diagonal of B [n].
    e: the superdiagonal of B [n - 1].
    left, right: the vectors of the reflections of P and Q, for `apply_panels` (which wants rows up
      to theirs).
    """

    d: Any
    e: Any
    left: Any
    right: Any


class _Panel(NamedTuple):
    """Reflections of some columns and rows: A - V Y^H - X U^H is what they leave of A.

    v, y, x, u: [n, width].
    d, e: [width], the diagonal and superdiagonal.
    """

    v: Any
    y: Any
    x: Any
    u: Any
    d: Any
    e: Any


def bidiagonalize(a: Any) -> Bidiagonal:
    """Reduces a [n, n], n >= 1 or symbolic; its entries must be of the order of 1."""
    n = a.shape[0]
    width = min(_WIDTH, n) if sizes_known(n) else _WIDTH
    padded = multiple_of(width, n)
    count = padded // width

    def reduce(p: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        a, d, e, left, right = state
        start = p * np.int32(width)
        panel = _reduce_panel(a, width, start)
        a = a - matmul(panel.v, adjoint(panel.y)) - matmul(panel.x, adjoint(panel.u))
        d = lax.dynamic_update_slice_in_dim(d, panel.d, start, 0)
        e = lax.dynamic_update_slice_in_dim(e, panel.e, start, 0)
        left = lax.dynamic_update_slice_in_dim(left, lax.expand_dims(panel.v, (0,)), p, 0)
        right = lax.dynamic_update_slice_in_dim(right, lax.expand_dims(panel.u, (0,)), p, 0)
        return a, d, e, left, right

    entries = lax.full((padded,), 0, a.dtype)
    panels = lax.full((count, padded, width), 0, a.dtype)
    start = (resize(a, (padded, padded)), entries, entries, panels, panels)
    _, d, e, left, right = loop(count, reduce, start)
    return Bidiagonal(resize(d, (n,)), resize(e, (n - 1,)), left, right)


def _reduce_panel(a: Any, width: int, start: Any) -> _Panel:
    """Reduces `width` columns and rows of `a` [n, n] from `start` on; `a` stays as it is."""
    n = a.shape[0]
    index = lax.iota(np.int32, n)
    steps = lax.iota(np.int32, width)

    def step(j: Any, panel: _Panel) -> _Panel:
        here = lax.eq(steps, j)
        k = start + j
        column = lax.squeeze(lax.dynamic_slice_in_dim(a, k, 1, 1), (1,))
        column = column - _dot(panel.v, _row(panel.y, k)) - _dot(panel.x, _row(panel.u, k))
        v, alpha = _reflector(where(index >= k, column, 0), index, k)
        y = _adjoint_dot(a, v) - _dot(panel.y, _adjoint_dot(panel.v, v))
        y = y - _dot(panel.u, _adjoint_dot(panel.x, v))
        panel = panel._replace(
            v=where(rows(here), columns(v), panel.v),
            y=where(rows(here), columns(y), panel.y),
            d=where(here, alpha, panel.d),
        )

        # The conjugate of the row.
        row = _conj(lax.squeeze(lax.dynamic_slice_in_dim(a, k, 1, 0), (0,)))
        row = row - _dot(panel.y, _row(panel.v, k)) - _dot(panel.u, _row(panel.x, k))
        following = k + np.int32(1)
        u, beta = _reflector(where(index >= following, row, 0), index, following)
        x = _dot(a, u) - _dot(panel.v, _adjoint_dot(panel.y, u))
        x = x - _dot(panel.x, _adjoint_dot(panel.u, u))
        return panel._replace(
            u=where(rows(here), columns(u), panel.u),
            x=where(rows(here), columns(x), panel.x),
            e=where(here, _conj(beta), panel.e),
        )

    block = lax.full((n, width), 0, a.dtype)
    entries = lax.full((width,), 0, a.dtype)
    return loop(width, step, _Panel(block, block, block, block, entries, entries))


def _reflector(x: Any, index: Any, k: Any) -> tuple[Any, Any]:
    """Returns v and alpha with (I - v v^H) x = alpha e_k, for an x [n] that is 0 before k.

    v^H v is 2; or v is 0, where x is of that form already.
    """
    zero = np.zeros((), x.dtype)
    head = lax.reduce(where(index == k, x, 0), zero, lax.add, (0,))
    tail = where(index > k, x, 0)
    size = lax.abs(head)
    tail_squared = real(_dot(_conj(tail), tail))
    # The squares of what is this small underflow.
    trivial = tail_squared <= np.array(epsilon(x.dtype) ** 4, size.dtype)
    norm = lax.sqrt(size * size + tail_squared)
    divisor = lax.convert_element_type(where(size > 0, size, 1), x.dtype)
    phase = where(size > 0, head / divisor, np.ones((), x.dtype))
    alpha = where(trivial, head, -phase * lax.convert_element_type(norm, x.dtype))
    half = lax.convert_element_type(where(trivial, 1, norm * (norm + size)), x.dtype)
    v = where(index == k, x - alpha, x) / lax.sqrt(half)
    return where(trivial, zero, v), alpha


def _row(a: Any, k: Any) -> Any:
    """Returns the conjugate of row k."""
    return _conj(lax.squeeze(lax.dynamic_slice_in_dim(a, k, 1, 0), (0,)))


def _conj(x: Any) -> Any:
    return lax.conj(x) if is_complex(x) else x


def _dot(a: Any, x: Any) -> Any:
    return lax.dot(a, x, precision=_HIGHEST)


def _adjoint_dot(a: Any, x: Any) -> Any:
    """Computes A^H x, without a transposed copy."""
    product = lax.dot_general(_conj(x), a, (((0,), (0,)), ((), ())), precision=_HIGHEST)
    return _conj(product)
