"""Functions that move numbers without changing them, and those that make new arrays: of jax.lax."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from tests.primitives.arguments import fixed, integers, normal
from tests.primitives.case import Case, cases

_KINDS = ("float32", "bfloat16", "complex64", "int32")

CASES: tuple[Case, ...] = (
    *cases("jax.lax.broadcast", normal(3, 4), call=lambda f, x: f(x, (2, 5)), dtypes=_KINDS),
    *cases(
        "jax.lax.broadcast_in_dim",
        normal(3, 1),
        call=lambda f, x: f(x, (2, 3, 4), (1, 2)),
        dtypes=_KINDS,
    ),
    *cases("jax.lax.broadcast_to_rank", normal(3, 4), call=lambda f, x: f(x, 4)),
    *cases("jax.lax.broadcast_like", normal(1, 4), normal(3, 4)),
    *cases(
        "jax.lax.reshape",
        normal(3, 4),
        call=lambda f, x: (f(x, (2, 6)), f(x, (12,), (1, 0))),
        dtypes=_KINDS,
    ),
    *cases("jax.lax.squeeze", normal(3, 1, 4, 1), call=lambda f, x: f(x, (1, 3)), dtypes=_KINDS),
    *cases("jax.lax.expand_dims", normal(3, 4), call=lambda f, x: f(x, (0, 2))),
    *cases("jax.lax.collapse", normal(2, 3, 4), call=lambda f, x: f(x, 1, 3)),
    *cases("jax.lax.transpose", normal(2, 3, 4), call=lambda f, x: f(x, (2, 0, 1)), dtypes=_KINDS),
    *cases("jax.lax.rev", normal(3, 4), call=lambda f, x: f(x, (0, 1)), dtypes=_KINDS),
    *cases(
        "jax.lax.slice", normal(5, 7), call=lambda f, x: f(x, (1, 0), (5, 6), (2, 3)), dtypes=_KINDS
    ),
    *cases("jax.lax.slice_in_dim", normal(5, 7), call=lambda f, x: f(x, 1, -1, 2, axis=1)),
    *cases(
        "jax.lax.index_in_dim", normal(5, 7), call=lambda f, x: f(x, -2, axis=1, keepdims=False)
    ),
    *cases(
        "jax.lax.pad",
        normal(3, 4),
        normal(),
        call=lambda f, x, p: f(x, p, ((1, 2, 1), (-1, 0, 2))),
        dtypes=_KINDS,
    ),
    *cases(
        "jax.lax.concatenate",
        normal(3, 4),
        normal(3, 2),
        normal(3, 1),
        call=lambda f, *xs: f(xs, 1),
        dtypes=_KINDS,
    ),
    *cases("jax.lax.stack", normal(3, 4), normal(3, 4), call=lambda f, *xs: f(xs, 1)),
    *cases("jax.lax.unstack", normal(3, 4), call=lambda f, x: f(x, 1)),
    *cases("jax.lax.split", normal(6, 4), call=lambda f, x: f(x, (1, 2, 3)), dtypes=_KINDS),
    *cases("jax.lax.tile", normal(3, 4), call=lambda f, x: f(x, (2, 3))),
    *cases("jax.lax.full_like", normal(3, 4), call=lambda f, x: f(x, 2.5)),
    *cases("jax.lax.full", normal(), call=lambda f, x: f((2, 3), x)),
    *cases("jax.lax.iota", normal(5), call=lambda f, x: x * f(jnp.float32, 5)),
    *cases(
        "jax.lax.iota",
        call=lambda f: [f(t, 4) for t in (jnp.int32, jnp.uint8, jnp.bfloat16)],
        label="alone",
    ),
    *cases(
        "jax.lax.broadcasted_iota", normal(2, 3), call=lambda f, x: x * f(jnp.float32, (2, 3), 1)
    ),
    # The elements of `empty` are undefined, so they are overwritten.
    *cases("jax.lax.empty", normal(3), call=lambda f, x: f((3,), jnp.float32).at[:].set(x)),
    *cases("jax.lax.shape_as_value", normal(3, 4), call=lambda f, x: f(x.shape)),
    *cases("jax.numpy.size", normal(3, 4), call=lambda f, x: jnp.float32(f(x)) * x),
    # Positions along sorted and cumulated axes.
    *cases(
        "jax.lax.sort",
        normal(3, 8),
        call=lambda f, x: (f(x), f(x, dimension=0)),
        dtypes=("float32", "float64", "bfloat16", "float16", "int32", "uint8", "complex64"),
    ),
    *cases(
        "jax.lax.sort",
        integers(0, 3, 8),
        normal(8),
        normal(8),
        label="two keys",
        call=lambda f, *xs: f(xs, num_keys=2),
    ),
    *cases(
        "jax.lax.sort",
        fixed([3.0, np.nan, -np.inf, 1.0, np.inf, -0.0, 0.0]),
        label="nan",
        call=lambda f, x: f((x, jnp.arange(7)), num_keys=1),
    ),
    *cases("jax.lax.sort_key_val", integers(0, 3, 3, 8), normal(3, 8)),
    *cases(
        "jax.lax.top_k",
        normal(3, 8),
        call=lambda f, x: f(x, 3),
        dtypes=("float32", "bfloat16", "int32", "uint8"),
    ),
    *cases("jax.lax.top_k", normal(3, 8), call=lambda f, x: f(x, 2, axis=0), label="axis"),
    *cases("jax.lax: approx_max_k approx_min_k", normal(3, 8), call=lambda f, x: f(x, 2)),
)
