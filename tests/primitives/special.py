"""Special functions: of jax.scipy.special."""

from __future__ import annotations

from typing import Any

from jax import lax

from tests.primitives.arguments import fixed, integers, normal, uniform
from tests.primitives.case import FLOATS, Case, cases

_REAL = ("float32", "float64")
# Ratios and products of gamma functions, which are of large logarithms.
_GAMMAS = 2e-4


def _order(f: Any, n: Any, x: Any) -> Any:
    """Derivatives with respect to an order are not there, or not finite."""
    return f(lax.stop_gradient(n), x)


CASES: tuple[Case, ...] = (
    *cases("jax.scipy.special: erf erfc expit", normal(3, 4), dtypes=FLOATS),
    *cases(
        "jax.scipy.special: entr i0 i0e i1 i1e ndtr log_ndtr dawsn erfcx fresnel",
        uniform(0.2, 3, 3, 4),
        dtypes=_REAL,
    ),
    *cases(
        "jax.scipy.special: ndtr log_ndtr",
        fixed([-30.0, -12.0, -5.0, 5.0, 12.0]),
        label="tails",
        dtypes=_REAL,
    ),
    *cases(
        "jax.scipy.special: digamma gamma gammaln loggamma", uniform(0.5, 5, 3, 4), dtypes=_REAL
    ),
    *cases("jax.scipy.special.gammasgn", fixed([-2.5, -1.5, -0.5, 0.5])),
    *cases("jax.scipy.special.erfinv", uniform(-0.9, 0.9, 3, 4), dtypes=_REAL),
    *cases("jax.scipy.special.erfcinv", uniform(0.1, 1.9, 3, 4), dtypes=_REAL),
    *cases("jax.scipy.special: ndtri logit", uniform(0.05, 0.95, 3, 4), dtypes=_REAL),
    *cases("jax.scipy.special: softmax log_softmax", normal(3, 4), call=lambda f, x: f(x, axis=1)),
    *cases(
        "jax.scipy.special.logsumexp",
        normal(3, 4),
        call=lambda f, x: (f(x), f(x, axis=1)),
        dtypes=("float32", "complex64"),
    ),
    *cases(
        "jax.scipy.special: beta betaln",
        uniform(0.5, 4, 3, 4),
        uniform(0.5, 4, 3, 4),
        dtypes=_REAL,
        tolerance=_GAMMAS,
    ),
    *cases(
        "jax.scipy.special.betainc",
        uniform(0.5, 4, 3, 4),
        uniform(0.5, 4, 3, 4),
        uniform(0.1, 0.9, 3, 4),
        call=lambda f, a, b, x: f(lax.stop_gradient(a), lax.stop_gradient(b), x),
    ),
    *cases(
        "jax.scipy.special: gammainc gammaincc",
        uniform(0.5, 4, 3, 4),
        uniform(0.5, 4, 3, 4),
        dtypes=_REAL,
    ),
    *cases(
        "jax.scipy.special: kl_div rel_entr xlogy xlog1py",
        uniform(0.2, 3, 3, 4),
        uniform(0.2, 3, 3, 4),
        dtypes=_REAL,
    ),
    *cases("jax.scipy.special: boxcox boxcox1p", uniform(0.2, 3, 3, 4), uniform(0.5, 2, 3, 4)),
    *cases("jax.scipy.special.bernoulli", normal(), call=lambda f, x: f(6) * x),
    *cases(
        "jax.scipy.special.bessel_jn",
        uniform(0.5, 4, 5),
        call=lambda f, x: f(x, v=2),
        tolerance=_GAMMAS,
    ),
    *cases(
        "jax.scipy.special.comb", fixed([5.0, 6.0, 9.0]), fixed([2.0, 3.0, 4.0]), tolerance=_GAMMAS
    ),
    *cases("jax.scipy.special: exp1 expi", uniform(0.2, 5, 3, 4), tolerance=_GAMMAS),
    *cases(
        "jax.scipy.special.expn",
        fixed([1.0, 2.0, 3.0]),
        uniform(0.5, 4, 3),
        call=_order,
        tolerance=_GAMMAS,
        # Before, jax.export fails on a gradient of what was traced already.
        since=(0, 12),
    ),
    *cases("jax.scipy.special.factorial", uniform(1, 5, 4), tolerance=_GAMMAS),
    *cases(
        "jax.scipy.special.hyp1f1",
        uniform(0.5, 2, 4),
        uniform(0.5, 2, 4),
        uniform(0.5, 2, 4),
        tolerance=_GAMMAS,
    ),
    *cases(
        "jax.scipy.special.hyp2f1",
        uniform(0.5, 1, 4),
        uniform(0.5, 1, 4),
        uniform(1.5, 2, 4),
        uniform(0.1, 0.4, 4),
        tolerance=_GAMMAS,
    ),
    *cases("jax.scipy.special.multigammaln", uniform(3, 5, 4), call=lambda f, a: f(a, 3)),
    *cases("jax.scipy.special.owens_t", uniform(0.2, 2, 4), uniform(0.2, 2, 4)),
    *cases("jax.scipy.special.poch", uniform(0.5, 2, 4), uniform(0.5, 2, 4), tolerance=_GAMMAS),
    *cases(
        "jax.scipy.special.polygamma",
        integers(0, 4, 4),
        uniform(0.5, 4, 4),
        tolerance=_GAMMAS,
        call=_order,
    ),
    *cases("jax.scipy.special.sici", uniform(0.5, 6, 4)),
    *cases("jax.scipy.special.spence", uniform(0.2, 3, 3, 4), dtypes=_REAL, tolerance=_GAMMAS),
    *cases(
        "jax.scipy.special.sph_harm_y",
        fixed([2, 3], "int32"),
        fixed([1, 2], "int32"),
        uniform(0.2, 1, 2),
        uniform(0.2, 1, 2),
        call=lambda f, n, m, t, p: f(n, m, t, p, n_max=3),
    ),
    *cases("jax.scipy.special.wofz", normal(4), dtypes=("complex64",)),
    *cases("jax.scipy.special.zeta", uniform(1.5, 4, 4), uniform(0.5, 4, 4), call=_order),
)
