"""Sums, extremes and windows: of jax.lax."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.primitives.arguments import booleans, distinct, integers, normal, uniform
from tests.primitives.case import COMPLEX, FLOATS, Case, cases

_INEXACT = (*FLOATS, *COMPLEX)


def _window(f: Any, x: Any, init: float, combine: Any) -> Any:
    return (
        f(x, np.asarray(init, x.dtype), combine, (2, 3), (1, 2), "VALID"),
        f(x, np.asarray(init, x.dtype), combine, (3, 3), (2, 2), "SAME"),
    )


def _dilated(f: Any, x: Any, init: float, combine: Any) -> Any:
    return f(
        x, np.asarray(init, x.dtype), combine, (2, 2), (1, 1), ((1, 0), (0, 2)), (2, 1), (1, 2)
    )


SIZES = (
    "JAX differentiates this reduction by splitting it, for which it needs every size as a number"
)
_LEAST = np.float32(-np.inf)
_DOWN, _UP = -jnp.inf, jnp.inf

CASES: tuple[Case, ...] = (
    *cases(
        "jax.lax.reduce_sum",
        normal(3, 4, 5),
        call=lambda f, x: (f(x, (0, 2)), f(x, (1,))),
        dtypes=(*_INEXACT, "int32", "uint8"),
    ),
    *cases(
        "jax.lax.reduce_prod",
        uniform(0.5, 1.5, 3, 4),
        call=lambda f, x: f(x, (1,)),
        no_open_gradient=SIZES,
        dtypes=("float32", "float64", "bfloat16", "complex64"),
    ),
    *cases(
        "jax.lax.reduce_prod", integers(1, 4, 3, 4), call=lambda f, x: f(x, (1,)), label="int32"
    ),
    *cases(
        "jax.lax: reduce_max reduce_min",
        distinct(3, 4, 5),
        call=lambda f, x: f(x, (0, 2)),
        dtypes=(*FLOATS, "int32", "uint8"),
    ),
    *cases(
        "jax.lax: reduce_and reduce_or reduce_xor",
        integers(0, 90, 3, 4),
        call=lambda f, x: f(x, (0,)),
    ),
    *cases(
        "jax.lax: reduce_and reduce_or reduce_xor",
        booleans(3, 4),
        call=lambda f, x: f(x, (0,)),
        label="bool",
    ),
    *cases(
        "jax.lax: argmax argmin",
        distinct(3, 8),
        call=lambda f, x: f(x, 1, jnp.int32),
        dtypes=("float32", "bfloat16", "int32"),
    ),
    *cases(
        "jax.lax.reduce",
        normal(3, 4),
        normal(3, 4),
        label="two operands",
        no_open_gradient=SIZES,
        call=lambda f, x, y: f(
            (x, y), (jnp.float32(0), jnp.float32(1)), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)
        ),
    ),
    *cases("jax.lax.reduce", normal(3, 4), call=lambda f, x: f(x, np.float32(0), lax.add, (1,))),
    *cases(
        "jax.lax.reduce",
        integers(0, 9, 3, 4),
        label="min of squares",
        call=lambda f, x: f(x, jnp.int32(99), lambda a, b: lax.min(a * 1, b), (1,)),
    ),
    *cases(
        "jax.lax: cumsum cumlogsumexp",
        normal(3, 8),
        call=lambda f, x: (f(x, axis=1), f(x, axis=0, reverse=True)),
        dtypes=FLOATS,
    ),
    *cases(
        "jax.lax.cumprod",
        uniform(0.5, 1.5, 3, 8),
        call=lambda f, x: (f(x, axis=1), f(x, axis=0, reverse=True)),
        dtypes=FLOATS,
    ),
    *cases(
        "jax.lax: cummax cummin",
        distinct(3, 8),
        call=lambda f, x: (f(x, axis=1), f(x, axis=0, reverse=True)),
        dtypes=FLOATS,
    ),
    *cases(
        "jax.lax: cumsum cumprod cummax cummin",
        integers(-3, 4, 3, 8),
        call=lambda f, x: f(x, axis=1),
        label="int32",
    ),
    *cases("jax.lax: cumsum cumprod", normal(3, 8), call=lambda f, x: f(x, axis=1), dtypes=COMPLEX),
    *cases(
        "jax.lax.reduce_window",
        normal(6, 7),
        label="sum",
        call=lambda f, x: _window(f, x, 0, lax.add),
        dtypes=(*FLOATS, "int32"),
    ),
    *cases(
        "jax.lax.reduce_window",
        distinct(6, 7),
        label="max",
        call=lambda f, x: _window(f, x, _DOWN, lax.max),
        dtypes=("float32", "float64", "bfloat16"),
    ),
    *cases(
        "jax.lax.reduce_window",
        distinct(6, 7),
        label="min",
        call=lambda f, x: _window(f, x, _UP, lax.min),
    ),
    *cases(
        "jax.lax.reduce_window",
        integers(1, 3, 6, 7),
        label="product",
        call=lambda f, x: _window(f, x, 1, lax.mul),
    ),
    *cases(
        "jax.lax.reduce_window",
        normal(6, 7),
        label="sum, dilated",
        call=lambda f, x: _dilated(f, x, 0, lax.add),
    ),
    *cases(
        "jax.lax.reduce_window",
        distinct(6, 7),
        label="max, dilated",
        call=lambda f, x: _dilated(f, x, _DOWN, lax.max),
        no_gradient="JAX differentiates no windows with dilation",
    ),
    *cases(
        "jax.jvp",
        distinct(6, 7),
        normal(6, 7),
        label="of the largest in a window",
        call=lambda f, x, t: f(
            lambda a: lax.reduce_window(a, np.float32(-np.inf), lax.max, (2, 3), (1, 2), "VALID"),
            (x,),
            (t,),
        ),
    ),
    *cases(
        "jax.lax.reduce_window",
        normal(6, 7),
        label="own function",
        no_gradient="JAX differentiates windows of sums, minima and maxima only",
        call=lambda f, x: f(x, np.float32(0), lambda a, b: a + b * 1.0, (2, 2), (1, 1), "VALID"),
    ),
)
