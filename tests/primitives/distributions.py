"""Distributions and statistics: of jax.scipy.stats."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from tests.primitives.arguments import Argument, fixed, integers, normal, symmetric, uniform
from tests.primitives.case import Case, cases
from tests.primitives.reductions import SIZES

# Logarithms of gamma functions are large, and their differences small.
_GAMMAS = 2e-4
_XLOGY = "JAX fails to differentiate its xlogy of an integer"
_DENSITIES = "cdf logcdf logpdf logsf pdf sf"

_P = uniform(0.1, 0.9, 4)
_SHAPE = uniform(0.5, 3, 4)
_COUNT = integers(0, 6, 4, dtype="float32")


def _of(name: str, functions: str, *arguments: Argument, **attributes: Any) -> tuple[Case, ...]:
    return cases(f"jax.scipy.stats.{name}: {functions}", *arguments, **attributes)


def _steady(f: Any, k: Any, *rest: Any) -> Any:
    """Counts are whole numbers: no derivative with respect to them."""
    return f(k.astype(jnp.int32), *rest)


def _of_constant_scale(f: Any, x: Any, location: Any, scale: Any) -> Any:
    """JAX fails to differentiate with respect to the scale."""
    return f(x, location, lax.stop_gradient(scale))


def _kde(f: Any, data: Any, x: Any) -> Any:
    kde = f(data)
    return (
        kde.pdf(x),
        kde.logpdf(x),
        kde.integrate_gaussian(jnp.zeros(1), jnp.eye(1)),
        kde.integrate_box_1d(-1.0, 1.0),
    )


CASES: tuple[Case, ...] = (
    *_of("norm", _DENSITIES, normal(4), normal(4), _SHAPE),
    *_of("norm", "isf ppf", _P, normal(4), _SHAPE),
    *_of("norm", "cdf logpdf", normal(4), normal(4), _SHAPE, dtypes=("float64",)),
    *_of("cauchy", _DENSITIES, normal(4), normal(4), _SHAPE),
    *_of("cauchy", "isf ppf", _P, normal(4), _SHAPE),
    *_of("logistic", "cdf logpdf pdf sf", normal(4), normal(4), _SHAPE),
    *_of("logistic", "isf ppf", _P, normal(4), _SHAPE),
    *_of("laplace", "cdf logpdf pdf", normal(4), normal(4), _SHAPE),
    *_of("gumbel_l", "cdf logcdf logsf sf", normal(4), normal(4), _SHAPE, tolerance=_GAMMAS),
    *_of("gumbel_r", "cdf logcdf logsf sf", normal(4), normal(4), _SHAPE, tolerance=_GAMMAS),
    *_of("gumbel_l", "logpdf pdf", normal(4), normal(4), _SHAPE, call=_of_constant_scale),
    *_of("gumbel_r", "logpdf pdf", normal(4), normal(4), _SHAPE, call=_of_constant_scale),
    *_of("gumbel_l", "ppf", _P, normal(4), _SHAPE, no_gradient=_XLOGY),
    *_of("gumbel_r", "ppf", _P, normal(4), _SHAPE, no_gradient=_XLOGY),
    *_of("uniform", "cdf logpdf pdf", _P, uniform(-1, 0, 4), uniform(2, 3, 4)),
    *_of("uniform", "ppf", _P, normal(4), _SHAPE),
    *_of("expon", _DENSITIES, uniform(0.5, 3, 4), uniform(-1, 0, 4), _SHAPE),
    *_of("expon", "ppf", _P, normal(4), _SHAPE),
    *_of("gamma", _DENSITIES, uniform(0.5, 3, 4), _SHAPE, tolerance=_GAMMAS),
    *_of("chi2", _DENSITIES, uniform(0.5, 3, 4), uniform(1, 5, 4), tolerance=_GAMMAS),
    *_of("beta", "logpdf pdf", _P, uniform(1, 3, 4), uniform(1, 3, 4), tolerance=_GAMMAS),
    *_of(
        "beta",
        "cdf logcdf logsf sf",
        _P,
        uniform(1, 3, 4),
        uniform(1, 3, 4),
        call=lambda f, x, a, b: f(x, lax.stop_gradient(a), lax.stop_gradient(b)),
    ),
    *_of("pareto", _DENSITIES, uniform(1.5, 3, 4), _SHAPE),
    *_of("pareto", "ppf", _P, _SHAPE),
    *_of("t", "logpdf pdf", normal(4), uniform(1, 5, 4), tolerance=_GAMMAS),
    *_of(
        "truncnorm",
        _DENSITIES,
        uniform(-0.5, 0.5, 4),
        uniform(-2, -1, 4),
        uniform(1, 2, 4),
        tolerance=_GAMMAS,
    ),
    *_of("vonmises", "logpdf pdf", normal(4), _SHAPE),
    *_of("wrapcauchy", "logpdf pdf", uniform(0.1, 3, 4), _P),
    *_of("gennorm", "cdf logpdf pdf", normal(4), uniform(1, 3, 4), tolerance=_GAMMAS),
    *_of("bernoulli", "cdf logpmf pmf", integers(0, 2, 4), _P),
    *_of("bernoulli", "ppf", _P, _P),
    *_of("poisson", "cdf logpmf pmf", _COUNT, _SHAPE, call=_steady, tolerance=_GAMMAS),
    *_of("poisson", "entropy", _SHAPE, tolerance=_GAMMAS),
    *_of("geom", "logpmf pmf", integers(1, 6, 4), _P),
    *_of(
        "binom",
        "logpmf pmf",
        integers(0, 5, 4),
        fixed([6, 7, 8, 9], "int32"),
        _P,
        tolerance=_GAMMAS,
    ),
    *_of(
        "nbinom",
        "logpmf pmf",
        integers(0, 5, 4),
        fixed([6, 7, 8, 9], "int32"),
        _P,
        tolerance=_GAMMAS,
    ),
    *_of(
        "betabinom",
        "logpmf pmf",
        integers(0, 5, 4),
        fixed([6, 7, 8, 9], "int32"),
        _SHAPE,
        _SHAPE,
        tolerance=_GAMMAS,
    ),
    *_of(
        "multinomial",
        "logpmf pmf",
        fixed([1, 2, 3], "int32"),
        uniform(1, 2, 3),
        tolerance=_GAMMAS,
        call=lambda f, x, p: f(x, 6, p / jnp.sum(p)),
    ),
    *_of(
        "dirichlet",
        "logpdf pdf",
        uniform(1, 2, 3),
        uniform(1, 3, 3),
        tolerance=_GAMMAS,
        call=lambda f, x, a: f(x / jnp.sum(x), a),
    ),
    *_of(
        "multivariate_normal", "logpdf pdf", normal(3), normal(3), symmetric(3), tolerance=_GAMMAS
    ),
    *cases(
        "jax.scipy.stats.gaussian_kde",
        normal(12),
        normal(4),
        call=_kde,
        tolerance=_GAMMAS,
        no_open_gradient=SIZES,
    ),
    *cases("jax.scipy.stats.mode", integers(0, 4, 3, 9), call=lambda f, x: f(x, axis=1)),
    *cases(
        "jax.scipy.stats.rankdata",
        integers(0, 4, 9),
        call=lambda f, x: [f(x, method=m) for m in ("average", "min", "max", "dense", "ordinal")],
    ),
    *cases("jax.scipy.stats.sem", normal(3, 9), call=lambda f, x: (f(x), f(x, axis=1))),
)
