"""Neural networks and images: of jax.nn, jax.image, jax.scipy.ndimage and jax.scipy.interpolate."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from tests.primitives.arguments import booleans, fixed, integers, normal, uniform
from tests.primitives.case import Case, cases

_NARROW = ("float32", "bfloat16", "float16")
_METHODS = ("nearest", "linear", "cubic", "lanczos3", "lanczos5")


def _grid(f: Any, values: Any, points: Any) -> Any:
    axes = (jnp.arange(4.0), jnp.arange(5.0) * 2)
    return [f(axes, values, method=m)(points) for m in ("linear", "nearest")]


CASES: tuple[Case, ...] = (
    *cases(
        "jax.nn: celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu"
        " log_sigmoid mish relu relu6 selu sigmoid silu soft_sign softplus sparse_plus"
        " sparse_sigmoid squareplus swish tanh",
        normal(3, 4),
        dtypes=_NARROW,
    ),
    *cases("jax.nn: softmax log_softmax standardize glu", normal(3, 4), dtypes=_NARROW),
    *cases(
        "jax.nn: softmax log_softmax",
        normal(3, 4),
        fixed([True, False, True, True], "bool"),
        label="where",
        call=lambda f, x, w: jnp.where(w, f(x, where=w), 0),
    ),
    *cases(
        "jax.nn.gelu",
        normal(3, 4),
        call=lambda f, x: f(x, approximate=False),
        label="exact",
        dtypes=_NARROW,
    ),
    *cases("jax.nn.log1mexp", uniform(0.1, 3, 3, 4)),
    *cases(
        "jax.nn: logsumexp logmeanexp",
        normal(3, 4),
        call=lambda f, x: (f(x), f(x, axis=1, keepdims=True)),
    ),
    *cases(
        "jax.nn.logsumexp",
        normal(3, 4),
        normal(3, 4),
        label="signs",
        call=lambda f, x, b: f(x, b=b, axis=1, return_sign=True),
    ),
    *cases("jax.nn.one_hot", integers(-1, 5, 3), call=lambda f, x: f(x, 4)),
    *cases(
        "jax.nn.dot_product_attention",
        normal(2, 5, 4, 8),
        normal(2, 6, 4, 8),
        normal(2, 6, 4, 8),
        dtypes=("float32", "bfloat16"),
    ),
    *cases(
        "jax.nn.dot_product_attention",
        normal(2, 6, 4, 8),
        normal(2, 6, 2, 8),
        normal(2, 6, 2, 8),
        label="causal, grouped",
        call=lambda f, q, k, v: f(q, k, v, is_causal=True),
    ),
    *cases(
        "jax.nn.dot_product_attention",
        normal(2, 6, 4, 8),
        normal(2, 6, 4, 8),
        normal(2, 6, 4, 8),
        normal(2, 4, 6, 6),
        booleans(2, 4, 6, 6),
        label="bias, mask",
        call=lambda f, q, k, v, b, m: f(q, k, v, b, m | jnp.eye(6, dtype=bool)),
    ),
    *cases(
        "jax.nn.dot_product_attention",
        normal(2, 6, 4, 8),
        normal(2, 6, 4, 8),
        normal(2, 6, 4, 8),
        integers(3, 7, 2),
        label="lengths",
        call=lambda f, q, k, v, n: f(q, k, v, key_value_seq_lengths=n, local_window_size=3),
    ),
    *cases(
        "jax.nn.scaled_dot_general",
        normal(8, 32),
        normal(16, 32),
        call=lambda f, x, y: f(x, y, (((1,), (1,)), ((), ()))),
    ),
    *cases(
        "jax.nn.scaled_matmul",
        uniform(-2, 2, 1, 32, 64),
        uniform(-2, 2, 1, 32, 64),
        no_gradient="JAX has no derivative of it",
        needs="jax.lax.one_minus_square",  # older releases assert what does not hold
        call=lambda f, x, y: f(
            x.astype(jnp.float8_e4m3fn),
            y.astype(jnp.float8_e4m3fn),
            *[jnp.ones((1, 32, 2), jnp.float8_e8m0fnu)] * 2,
        ),
    ),
    *cases(
        "jax.image.resize",
        uniform(0, 1, 5, 7, 3),
        call=lambda f, x: [f(x, (9, 4, 3), method=m) for m in _METHODS],
        dtypes=("float32", "bfloat16"),
    ),
    *cases(
        "jax.image.resize",
        uniform(0, 1, 5, 7, 3),
        label="without antialiasing",
        call=lambda f, x: f(x, (3, 4, 3), method="linear", antialias=False),
    ),
    *cases(
        "jax.image.scale_and_translate",
        uniform(0, 1, 5, 7),
        uniform(0.5, 2, 2),
        normal(2),
        call=lambda f, x, s, t: [f(x, (6, 6), (0, 1), s, t, m) for m in _METHODS if m != "nearest"],
        tolerance=1e-4,
    ),  # derivatives of the kernels divide by their sum
    *cases(
        "jax.scipy.ndimage.map_coordinates",
        uniform(0, 1, 5, 7),
        uniform(-2, 8, 2, 6),
        call=lambda f, x, c: [
            f(x, c, order=o, mode=m)
            for o in (0, 1)
            for m in ("constant", "nearest", "wrap", "mirror", "reflect")
        ],
    ),
    *cases(
        "jax.scipy.interpolate.RegularGridInterpolator",
        normal(4, 5),
        uniform(0.1, 2.9, 6, 2),
        call=_grid,
    ),
)
