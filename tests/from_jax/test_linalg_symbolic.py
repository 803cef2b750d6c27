"""Linear algebra of matrices whose sizes are symbolic: one export for all of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jax2tf_bridge import export as bridge_export
from jax2tf_bridge.bytecode import read_summary
from jax2tf_bridge.errors import InconclusiveShapeError
from tests.from_jax.lowered import (
    ALL,
    Function,
    check_portable,
    export_function,
    hermitian,
    matrix,
    serialized,
)

# The largest has three panels, and three blocks of 32 rows.
SIZES = [1, 2, 3, 7, 33, 65]


class Case(NamedTuple):
    """A function of matrices.

    shapes: of its arguments, by letters: b, m, n, k.
    differentiable: JAX has its derivative.
    tall: its derivative, or JAX itself, asks which of m and n is the larger.
    """

    function: Function
    shapes: tuple[str, ...] = ("nn",)
    differentiable: bool = True
    tall: bool = False


def eigh_projected(a: Any) -> Any:
    values, vectors = jnp.linalg.eigh(hermitian(a))
    return values, weighted(vectors) @ vectors.mT.conj()


def svd_projected(a: Any) -> Any:
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    return s, weighted(u) @ vh


def weighted(vectors: Any) -> Any:
    return vectors * jnp.linspace(0, 1, 70, dtype=vectors.dtype)[jnp.arange(vectors.shape[-1])]


def full_svd(a: Any) -> Any:
    u, s, vh = jnp.linalg.svd(a)
    k = s.shape[0]
    return u @ u.mT, vh @ vh.mT, jnp.abs(u.mT @ a @ vh.mT), k


def eig_residual(a: Any) -> Any:
    values, vectors = jnp.linalg.eig(a)
    return 1 + jnp.abs(a @ vectors - vectors * values), jnp.sum(jnp.abs(values))


def rebuilt_schur(a: Any) -> Any:
    t, z = jax.scipy.linalg.schur(a)
    return z @ t @ z.mT, z @ z.mT


def rebuilt_hessenberg(a: Any) -> Any:
    h, q = jax.scipy.linalg.hessenberg(a, calc_q=True)
    return q @ h @ q.mT, q @ q.mT


CASES = {
    "solve": Case(jnp.linalg.solve, ("nn", "nk")),
    "inv": Case(jnp.linalg.inv),
    "slogdet": Case(lambda a: jnp.linalg.slogdet(a)[1]),
    "lu": Case(lambda a: lax.linalg.lu(a)[0], ("mn",), tall=True),
    "lu of batches": Case(lambda a: lax.linalg.lu(a), ("bnn",), differentiable=False),
    "qr": Case(jnp.linalg.qr, ("mn",), tall=True),
    "pivoted qr": Case(
        lambda a: jax.scipy.linalg.qr(a, mode="economic", pivoting=True), ("mn",), False
    ),
    "cholesky": Case(lambda a: jnp.linalg.cholesky(a @ a.mT + jnp.eye(a.shape[0]))),
    "eigh": Case(eigh_projected),
    "eigh of batches": Case(jax.vmap(eigh_projected), ("bnn",)),
    "svd": Case(svd_projected, ("mn",), tall=True),
    "svd of batches": Case(jax.vmap(svd_projected), ("bnn",)),
    "full svd": Case(lambda a: full_svd(a)[:3], ("mn",), differentiable=False),
    "svdvals": Case(jnp.linalg.svdvals, ("mn",)),
    "matrix_rank": Case(lambda a: jnp.linalg.matrix_rank(a, rtol=1e-5), ("mn",), False),
    "pinv": Case(jnp.linalg.pinv, ("mn",), tall=True),
    "lstsq": Case(lambda a, b: jnp.linalg.lstsq(a, b)[0], ("mn", "mk"), tall=True),
    "eig": Case(eig_residual, differentiable=False),
    "eigvals": Case(lambda a: jnp.sum(jnp.linalg.eigvals(a) ** 2).real),
    "schur": Case(rebuilt_schur, differentiable=False),
    "hessenberg": Case(rebuilt_hessenberg, differentiable=False),
    "expm": Case(lambda a: jax.scipy.linalg.expm(a / 20)),
    "tridiagonal": Case(
        lambda a, b: lax.linalg.tridiagonal_solve(a[0], a[0] + 20, a[0], b), ("nn", "nk")
    ),
}


def export_symbolic(case: Case, dtype: str, *, gradient: bool = False) -> export.Exported:
    """Exports the function, or its VJP."""
    letters = sorted(set("".join(case.shapes)))
    constraints = ["m >= n + 1"] if case.tall else []
    symbols = export.symbolic_shape(",".join(letters), constraints=constraints)
    sizes = dict(zip(letters, symbols, strict=True))
    args = [jax.ShapeDtypeStruct(tuple(sizes[c] for c in s), dtype) for s in case.shapes]
    return export_function(vjp_with_cosines(case.function) if gradient else case.function, *args)


def vjp_with_cosines(f: Function) -> Function:
    def vjp(*args: Any) -> Any:
        out, pull = jax.vjp(lambda *args: jax.tree.leaves(f(*args)), *args)
        return pull([jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for x in out])

    return vjp


def arguments(case: Case, n: int, dtype: str) -> Sequence[Any]:
    sizes = {"b": 2, "n": n, "m": n + 2, "k": 3}
    made = []
    for seed, letters in enumerate(case.shapes):
        shape = tuple(sizes[c] for c in letters)
        made.append(
            matrix(*shape, dtype=dtype, seed=seed) + 4 * np.eye(shape[-2], shape[-1], dtype=dtype)
        )
    return made


def check(
    case: Case, sizes: Sequence[int], dtype: str = "float32", *, gradient: bool = False
) -> None:
    exported = export_symbolic(case, dtype, gradient=gradient)
    assert serialized(exported)
    function = vjp_with_cosines(case.function) if gradient else case.function
    for n in sizes:
        args = arguments(case, n, dtype)
        got, want = exported.call(*args), jax.jit(function)(*args)
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            close = 1e-9 if np.finfo(dtype).bits == 64 else 1e-4
            atol = close * max(np.abs(w).max(initial=0), 1e-2)
            np.testing.assert_allclose(g, w, rtol=0, atol=atol, err_msg=f"n = {n}")


@pytest.mark.costly
@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (["lu"], [1, 33]),
        (["solve"], [33]),
        (["eigh"], [1, 33]),
        (["svd"], [3]),
        (["schur", "pivoted qr", "tridiagonal"], [1, 3]),
    ],
    ids=str,
)
def test_values(names: list[str], sizes: list[int]) -> None:
    for name in names:
        check(CASES[name], sizes)


@pytest.mark.slow
def test_gradients_of_a_small_matrix() -> None:
    check(CASES["eigh"], [3], gradient=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_values_at_many_sizes(name: str) -> None:
    check(CASES[name], SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.differentiable])
def test_gradients_at_many_sizes(name: str) -> None:
    check(CASES[name], SIZES, gradient=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eigh", "svd", "lu", "eig", "qr"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_values_in_64_bits(name: str, dtype: str) -> None:
    with jax.enable_x64(True):
        check(CASES[name], [1, 3, 33, 65], dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_large_matrix(dtype: str) -> None:
    with jax.enable_x64(True):
        (n,) = export.symbolic_shape("n")
        exported = export_function(jnp.linalg.eigh, jax.ShapeDtypeStruct((n, n), dtype))
        a = np.asarray(hermitian(matrix(300, 300, dtype=dtype)))
        values, vectors = (np.asarray(x) for x in exported.call(a))
    want = np.linalg.eigvalsh(a)
    close = 40 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(values, want, rtol=0, atol=close * want.max())
    np.testing.assert_allclose(a @ vectors, vectors * values, rtol=0, atol=close * want.max())
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(300), rtol=0, atol=close)


@pytest.mark.slow
def test_all_platforms() -> None:
    m, n = export.symbolic_shape("m, n")

    def f(a: Any) -> Any:
        d = a[0] + 20
        solved = lax.linalg.tridiagonal_solve(d, d, d, a.T)
        return jnp.linalg.svd(a), jnp.linalg.qr(a), lax.linalg.lu(a), solved

    a = jax.ShapeDtypeStruct((m, n), np.float32)
    check_portable(export_function(f, a, platforms=ALL))


@pytest.mark.parametrize(
    ("f", "shape", "advice"),
    [
        (jnp.linalg.matrix_rank, "(n, n)", r"or give jnp\.linalg\.matrix_rank its rtol, as 1e-5"),
        (
            lambda a: jax.random.choice(jax.random.key(0), a, (1,), replace=False),
            "(n, 3)",
            r"jax\.random\.choice without replacement takes equal probabilities, "
            r"p=jnp\.full\(n, 1 / n\), and jnp\.argsort",
        ),
    ],
)
def test_what_needs_a_number(f: Function, shape: str, advice: str) -> None:
    with pytest.raises(InconclusiveShapeError, match=advice):
        bridge_export(f, polymorphic_shapes=[shape])(matrix(3, 3))


@pytest.mark.slow
def test_the_ways_without_a_number() -> None:
    def f(a: Any) -> Any:
        n, key = a.shape[0], jax.random.key(0)
        return (
            jnp.linalg.matrix_rank(a, rtol=1e-5),
            jax.random.choice(key, a, (1,), replace=False, p=jnp.full(n, 1 / n)),
            a[jnp.argsort(jax.random.uniform(key, (n,)))],
        )

    a = matrix(3, 3)
    (n,) = export.symbolic_shape("n")
    exported = export_function(f, jax.ShapeDtypeStruct((n, n), np.float32))
    for g, w in zip(exported.call(a), f(a), strict=True):
        np.testing.assert_array_equal(g, w)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eigh", "svd"])
def test_the_tpu_has_our_algorithm_at_open_sizes_alone(name: str) -> None:
    function, x = getattr(jnp.linalg, name), np.ones((3, 3), np.float32)
    for platforms in (["tpu"], None):
        portable = bridge_export(function, polymorphic_shapes="(n, n)", platforms=platforms)(x)
        assert "tpu" in portable.platforms, portable.dropped_platforms
    fixed = bridge_export(function, platforms=["tpu"])(x)
    assert "Eigh" in read_summary(fixed.module.data).custom_calls
