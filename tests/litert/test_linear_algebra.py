"""Linear algebra and special functions in LiteRT, which has kernels for none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import special

from jax2tf_bridge import Signature, save_litert
from tests.litert.running import interpreter


def positive(a: Any) -> Any:
    return a @ a.mT + jnp.eye(a.shape[-1])


def from_eigenvectors(a: Any) -> Any:
    values, vectors = jnp.linalg.eigh(a)
    return values, (vectors * values[..., None, :]) @ vectors.mT  # without the vectors' signs


def from_singular_vectors(a: Any) -> Any:
    u, values, vh = jnp.linalg.svd(a, full_matrices=False)
    return values, (u * values[..., None, :]) @ vh


def gradient(a: Any) -> Any:
    return jax.grad(lambda a: jnp.linalg.slogdet(a)[1].sum() + jnp.linalg.inv(a).sum())(a)


def solve_by_columns(a: Any) -> Any:
    # The lower triangle must not be read.
    a = jnp.where(jnp.tri(a.shape[-1], k=-1, dtype=bool), jnp.nan, a + 3)
    return lax.linalg.triangular_solve(a, a[:, :2], transpose_a=True)


OPEN = "(b, n, n)"
FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "qr": (lambda a: tuple(jnp.linalg.qr(a)), OPEN),
}
SLOW: dict[str, tuple[Callable[..., Any], str]] = {
    "cholesky": (lambda a: jnp.linalg.cholesky(positive(a)), OPEN),
    "cholesky of matrices that are not definite": (jnp.linalg.cholesky, OPEN),
    "solve": (lambda a: jnp.linalg.solve(a, jnp.ones((a.shape[-1], 2))), OPEN),
    "triangular_solve": (solve_by_columns, OPEN),
    "eigh": (from_eigenvectors, "(b, 3, 3)"),
    "svd": (from_singular_vectors, "(b, 3, 3)"),
    "expm": (jax.scipy.linalg.expm, "(b, 3, 3)"),
    "pinv": (jnp.linalg.pinv, "(b, 3, 3)"),
    "a gradient": (gradient, OPEN),
}


@pytest.mark.costly
@pytest.mark.parametrize(
    "name", [*FUNCTIONS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_linear_algebra(tmp_path: Path, name: str) -> None:
    function, sizes = (FUNCTIONS | SLOW)[name]
    rng = np.random.default_rng(0)
    a = rng.normal(size=(2, 3, 3)).astype(np.float32)
    signature = Signature(function, args=[a], polymorphic_shapes=sizes)
    model = save_litert(tmp_path / "f.tflite", signature)
    (key,) = model.signatures["serving_default"].inputs
    n = 5 if sizes == OPEN else 3
    x = rng.normal(size=(4, n, n)).astype(np.float32)
    answers = interpreter(model.path).get_signature_runner()(**{key: x})
    for i, expected in enumerate(jax.tree.leaves(function(x))):
        np.testing.assert_allclose(answers[f"output_{i}"], expected, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_special_functions(tmp_path: Path) -> None:
    def functions(a: Any, x: Any) -> Any:
        return {
            "betainc": special.betainc(a, a + 1, x),
            "digamma": special.digamma(a),
            "gammainc": special.gammainc(a, x),
            "gammaincc": special.gammaincc(a, x),
            "i0e": special.i0e(a),
            "i1e": special.i1e(a),
            "polygamma": special.polygamma(1, a),
            "zeta": special.zeta(a, x),
        }

    a, x = np.linspace(1.5, 4, 6, dtype=np.float32), np.linspace(0.1, 0.9, 6, dtype=np.float32)
    model = save_litert(
        tmp_path / "f.tflite", Signature(functions, args=[a, x], polymorphic_shapes=["b", "b"])
    )
    answers = interpreter(model.path).get_signature_runner()(a=a, x=x)
    for name, expected in functions(a, x).items():
        np.testing.assert_allclose(answers[name], expected, rtol=1e-5, err_msg=name)
