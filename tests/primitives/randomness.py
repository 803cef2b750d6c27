"""Random numbers: of jax.random and of jax.lax. The same key gives the same numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.primitives.arguments import (
    fixed,
    integers,
    key,
    normal,
    symmetric,
    uniform,
)
from tests.primitives.case import Case, cases


def _shape(*shape: int, **options: Any) -> Any:
    return lambda f, k, *args: f(k, *args, shape=shape, **options)


CASES: tuple[Case, ...] = (
    *cases(
        "jax.random: bits normal uniform cauchy exponential gumbel laplace logistic maxwell"
        " rademacher",
        key(),
        call=_shape(3, 4),
    ),
    *cases(
        "jax.random: normal uniform exponential gumbel laplace",
        key(),
        label="narrow",
        call=lambda f, k: (f(k, (5,), jnp.bfloat16), f(k, (5,), jnp.float16)),
        tolerance=8e-3,
    ),
    *cases(
        "jax.random: normal uniform",
        key(),
        dtypes=("float64",),
        call=lambda f, k: f(k, (5,), "float64"),
    ),
    *cases(
        "jax.random.normal", key(), call=lambda f, k: f(k, (5,), "complex64"), dtypes=("complex64",)
    ),
    *cases(
        "jax.random.bits",
        key(),
        label="types",
        call=lambda f, k: [f(k, (5,), t) for t in (jnp.uint8, jnp.uint16, jnp.uint32)],
    ),
    *cases(
        "jax.random.uniform",
        key(),
        uniform(-1, 0),
        uniform(1, 2),
        label="bounds",
        call=lambda f, k, low, high: f(k, (5,), minval=low, maxval=high),
    ),
    *cases(
        "jax.random: bernoulli geometric", key(), uniform(0.2, 0.8, 4), call=lambda f, k, p: f(k, p)
    ),
    *cases(
        "jax.random.randint",
        key(),
        integers(-9, 0),
        integers(1, 9),
        call=lambda f, k, a, b: f(k, (6,), a, b),
    ),
    *cases(
        "jax.random: gamma loggamma chisquare pareto rayleigh wald",
        key(),
        uniform(0.5, 4, 4),
        tolerance=1e-4,
    ),  # Marsaglia's method: the derivative is a ratio of small differences
    *cases("jax.random.t", key(), uniform(0.5, 4, 4), call=_shape(4), tolerance=1e-4),
    *cases("jax.random: gamma loggamma", key(), uniform(0.5, 4, 4), dtypes=("float64",)),
    *cases("jax.random: beta f", key(), uniform(0.5, 4, 4), uniform(5, 9, 4), tolerance=1e-4),
    *cases("jax.random.dirichlet", key(), uniform(0.5, 4, 4), tolerance=1e-4),
    *cases("jax.random.lognormal", key(), uniform(0.5, 1, 4)),
    *cases(
        "jax.random: weibull_min double_sided_maxwell",
        key(),
        uniform(0.5, 2),
        uniform(0.5, 2),
        call=_shape(4),
    ),
    *cases("jax.random.generalized_normal", key(), uniform(1, 3), call=_shape(4), tolerance=1e-4),
    *cases("jax.random.triangular", key(), uniform(-2, -1, 4), uniform(-1, 1, 4), uniform(1, 2, 4)),
    *cases("jax.random.truncated_normal", key(), uniform(-2, -1, 4), uniform(1, 2, 4)),
    *cases("jax.random.poisson", key(), uniform(0.5, 20, 4)),
    *cases("jax.random.binomial", key(), fixed([5.0, 20.0, 50.0]), uniform(0.2, 0.8, 3)),
    *cases(
        "jax.random.multinomial",
        key(),
        fixed(20.0),
        uniform(1, 2, 4),
        call=lambda f, k, n, p: f(k, n, p / jnp.sum(p)),
    ),
    *cases("jax.random.categorical", key(), normal(3, 4)),
    *cases(
        "jax.random.categorical",
        key(),
        normal(6),
        label="without replacement",
        call=lambda f, k, x: f(k, x, shape=(3,), replace=False),
    ),
    *cases(
        "jax.random.choice",
        key(),
        normal(6),
        call=lambda f, k, x: (f(k, x, (4,)), f(k, x, (4,), replace=False)),
    ),
    *cases(
        "jax.random.choice",
        key(),
        normal(6),
        uniform(0.1, 1, 6),
        label="probabilities",
        call=lambda f, k, x, p: f(k, x, (4,), p=lax.stop_gradient(p / jnp.sum(p))),
    ),
    *cases(
        "jax.random.permutation",
        key(),
        normal(6, 2),
        call=lambda f, k, x: (f(k, x), f(k, x, independent=True), f(k, 5)),
    ),
    *cases("jax.random.multivariate_normal", key(), normal(3), symmetric(3)),
    # The signs of singular vectors, and so the numbers themselves, are LAPACK's choice.
    *cases(
        "jax.random.multivariate_normal",
        key(),
        label="one dimension, svd",
        call=lambda f, k: jnp.abs(f(k, jnp.zeros(1), 2 * jnp.eye(1), method="svd")),
    ),
    *cases("jax.random: ball", key(), call=lambda f, k: f(k, 3, shape=(4,)), tolerance=1e-4),
    *cases("jax.random.orthogonal", key(), call=lambda f, k: f(k, 4), tolerance=1e-4),
    # Keys.
    *cases("jax.random: clone key_data", key()),
    *cases("jax.random.split", key(), call=lambda f, k: (f(k), f(k, 3))),
    *cases("jax.random.fold_in", key(), integers(0, 99)),
    *cases("jax.random: key PRNGKey", integers(0, 99)),
    *cases(
        "jax.random.key",
        integers(0, 99),
        label="rbg, unsafe_rbg",
        call=lambda f, s: [jax.random.normal(f(s, impl=i), (4,)) for i in ("rbg", "unsafe_rbg")],
    ),
    *cases(
        "jax.random.wrap_key_data",
        integers(0, 2**32, 2, dtype="uint32"),
        call=lambda f, w: jax.random.uniform(f(w), (3,)),
    ),
    *cases(
        "jax.extend.random.threefry_2x32",
        integers(0, 2**32, 2, dtype="uint32"),
        integers(0, 2**32, 5, dtype="uint32"),
    ),
    *cases(
        "jax.lax.rng_bit_generator",
        integers(0, 2**32, 4, dtype="uint32"),
        call=lambda f, k: (f(k, (3, 5)), f(k, (7,), jnp.uint8)),
        depends_on_batch="a batch of generators is one, of the first key",
    ),
    *cases(
        "jax.lax.rng_uniform",
        uniform(0, 1),
        uniform(2, 3),
        no_gradient="random numbers have no derivative",
        no_batch="JAX does not map it",
        call=lambda f, a, b: (f(a, b, (9,)) >= a, f(a, b, (9,)) < b),
    ),
    *cases(
        "jax.lax.rng_bit_generator",
        integers(0, 2**32, 4, dtype="uint32"),
        depends_on_batch="as above",
        label="Philox, ThreeFry",
        call=lambda f, k: (
            f(k, (6,), algorithm=lax.RandomAlgorithm.RNG_PHILOX),
            f(k, (6,), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY),
        ),
    ),
    *cases(
        "jax.nn.initializers: glorot_normal glorot_uniform he_normal he_uniform kaiming_normal"
        " kaiming_uniform"
        " lecun_normal lecun_uniform normal truncated_normal uniform xavier_normal xavier_uniform",
        key(),
        call=lambda f, k: f()(k, (3, 4)),
    ),
    *cases("jax.nn.initializers.constant", key(), call=lambda f, k: f(2.5)(k, (3, 4))),
    *cases("jax.nn.initializers: ones zeros", key(), call=lambda f, k: f(k, (3, 4))),
    *cases(
        "jax.nn.initializers.variance_scaling",
        key(),
        call=lambda f, k: f(2.0, "fan_avg", "truncated_normal")(k, (3, 4)),
    ),
    *cases(
        "jax.nn.initializers.orthogonal", key(), call=lambda f, k: f()(k, (3, 4)), tolerance=1e-4
    ),
    *cases(
        "jax.nn.initializers.delta_orthogonal",
        key(),
        call=lambda f, k: f()(k, (3, 3, 4)),
        tolerance=1e-4,
    ),
)
