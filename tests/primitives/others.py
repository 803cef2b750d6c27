"""Rotations, integrals, clusters and minima: of jax.scipy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from tests.primitives.arguments import fixed, normal, uniform
from tests.primitives.case import Case, cases

_ROTATION = "jax.scipy.spatial.transform.Rotation"
_WHILE = "a while loop has no reverse mode"


def _rotation(q: Any) -> Any:
    from jax.scipy.spatial.transform import Rotation

    return Rotation.from_quat(q)


def _slerp(f: Any, q: Any, t: Any) -> Any:
    return f(jnp.arange(3.0), _rotation(q))(t).as_quat()


CASES: tuple[Case, ...] = (
    *cases(
        f"{_ROTATION}: as_matrix as_mrp as_quat as_rotvec inv magnitude",
        normal(5, 4),
        call=lambda f, q: f(_rotation(q)),
        tolerance=1e-4,
    ),
    # The quaternion's sign is the eigenvector's.
    *cases(
        f"{_ROTATION}.mean",
        normal(5, 4),
        call=lambda f, q: f(_rotation(q)).as_matrix(),
        tolerance=1e-4,
    ),
    *cases(
        f"{_ROTATION}.as_euler",
        normal(5, 4),
        call=lambda f, q: f(_rotation(q), "xyz"),
        tolerance=1e-4,
    ),
    *cases(
        f"{_ROTATION}.apply", normal(5, 4), normal(5, 3), call=lambda f, q, v: f(_rotation(q), v)
    ),
    *cases(
        f"{_ROTATION}.concatenate",
        normal(5, 4),
        normal(2, 4),
        call=lambda f, a, b: f([_rotation(a), _rotation(b)]).as_quat(),
    ),
    *cases(f"{_ROTATION}.from_quat", normal(5, 4), call=lambda f, q: f(q).as_quat()),
    *cases(f"{_ROTATION}.from_euler", normal(5, 3), call=lambda f, a: f("xyz", a).as_quat()),
    *cases(f"{_ROTATION}.from_mrp", normal(5, 3), call=lambda f, a: f(a).as_quat()),
    *cases(f"{_ROTATION}.from_rotvec", normal(5, 3), call=lambda f, a: f(a).as_quat()),
    *cases(
        f"{_ROTATION}.from_matrix",
        normal(5, 4),
        call=lambda f, q: f(_rotation(q).as_matrix()).as_quat(),
        tolerance=1e-4,
    ),
    *cases(f"{_ROTATION}.identity", normal(), call=lambda f, x: f(dtype=jnp.float32).as_quat() * x),
    *cases(
        "jax.scipy.spatial.transform.Slerp.init",
        normal(3, 4),
        uniform(0.1, 1.9, 5),
        call=_slerp,
        tolerance=1e-4,
    ),
    *cases(
        "jax.scipy.integrate.trapezoid",
        normal(3, 9),
        normal(9),
        call=lambda f, y, x: (f(y), f(y, x)),
    ),
    *cases("jax.scipy.cluster.vq.vq", normal(9, 3), normal(4, 3)),
    *cases(
        "jax.scipy.optimize.minimize",
        fixed([1.5, -0.5]),
        normal(2),
        no_gradient=_WHILE,
        tolerance=1e-3,
        call=lambda f, x, c: f(lambda p: jnp.sum((p - c) ** 2), x, method="BFGS").x,
    ),
)
