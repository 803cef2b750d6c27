"""Linear algebra exported without LAPACK: what is left in the module, and what it computes."""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.extend import core as jax_core
from jax.extend import mlir as portable_artifacts
from jax.interpreters import mlir

from jax2tf_bridge.from_jax._overrides import lowering_overrides

WIDEST = (0, 14, 24)
CPU = ("cpu",)
ALL = ("cpu", "cuda", "rocm", "tpu")
# What XLA expands on every platform, and what only its TPU compiler knows.
EXPANDED = {"Qr", "Eigh", "ProductOfElementaryHouseholderReflectors", "shape_assertion"}
ON_TPU = {"LuDecomposition"}

Function = Callable[..., Any]


def export_function(f: Function, *args: Any, platforms: tuple[str, ...] = CPU) -> export.Exported:
    return export.export(
        jax.jit(f),
        platforms=platforms,
        _override_lowering_rules=lowering_overrides(platforms, WIDEST),
    )(*args)


def custom_calls(exported: export.Exported) -> set[str]:
    return set(re.findall(r"stablehlo\.custom_call @([\w.$]+)", exported.mlir_module()))


def check_portable(exported: export.Exported) -> None:
    allowed = EXPANDED | (ON_TPU if "tpu" in exported.platforms else set())
    assert custom_calls(exported) <= allowed
    with mlir.make_ir_context():
        module = portable_artifacts.deserialize_portable_artifact(exported.mlir_module_serialized)
        assert portable_artifacts.serialize_portable_artifact(module, "0.14.24", False)


def run(f: Function, *args: Any) -> list[Any]:
    """The outputs of the exported function; exporting it for all platforms is checked too."""
    check_portable(export_function(f, *args, platforms=ALL))
    exported = export_function(f, *args)
    check_portable(exported)
    return [np.asarray(x) for x in jax.tree.leaves(jax.jit(exported.call)(*args))]


def compare(f: Function, *args: Any) -> None:
    """Against JAX's own f on CPU."""
    got = run(f, *args)
    want = [np.asarray(x) for x in jax.tree.leaves(f(*args))]
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        scale = np.max(np.abs(w), initial=0)
        np.testing.assert_allclose(g, w, rtol=0, atol=tolerance(w.dtype) * max(scale, 1e-30))


def tolerance(dtype: Any) -> float:
    return 2e-4 if not np.issubdtype(dtype, np.inexact) or np.finfo(dtype).bits == 32 else 1e-9


def vjp_of(f: Function, *args: Any) -> tuple[Function, list[Any]]:
    """The VJP of f as a flat function of its arguments and cotangents, and such cotangents."""
    traced = jax.jit(f).trace(*args)
    flat = jax_core.jaxpr_as_fun(traced.jaxpr)
    random = np.random.default_rng(1)
    outputs = traced.jaxpr.out_avals
    cotangents = [random.standard_normal(aval.shape).astype(aval.dtype) for aval in outputs]

    def vjp(*args_and_cotangents: Any) -> Any:
        inputs = args_and_cotangents[: len(args)]
        return jax.vjp(flat, *inputs)[1](list(args_and_cotangents[len(args) :]))

    return vjp, [*args, *cotangents]


@pytest.fixture(params=["float32", "float64", "complex64", "complex128"])
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    with jax.enable_x64(request.param in ("float64", "complex128")):
        yield request.param


def matrix(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    a = random.standard_normal(shape)
    if dtype.startswith("complex"):
        a = a + 1j * random.standard_normal(shape)
    return a.astype(dtype)


def well_conditioned(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    n = shape[-1]
    return (matrix(*shape, dtype=dtype, seed=seed) + 2 * n * np.eye(n)).astype(dtype)


def adjoint(a: Any) -> Any:
    return a.conj().swapaxes(-1, -2)


def hermitian(a: Any) -> Any:
    return a + adjoint(a)


def definite(a: Any) -> Any:
    return a @ adjoint(a) / a.shape[-1] + jnp.eye(a.shape[-1], dtype=a.dtype)


def with_spectrum(values: Any, dtype: str = "float32", seed: int = 0) -> Any:
    n = len(values)
    wide = "complex128" if dtype.startswith("complex") else "float64"
    q = np.linalg.qr(matrix(n, n, dtype=wide, seed=seed))[0]
    return ((q * values) @ q.conj().T).astype(dtype)


def test_without_the_overrides_the_check_fails() -> None:
    plain = export.export(jax.jit(jnp.linalg.cholesky), platforms=CPU)(matrix(4, 4))
    assert custom_calls(plain) == {"lapack_spotrf_ffi"}
    with pytest.raises(AssertionError):
        check_portable(plain)


def test_overrides_are_hashable_and_the_same_each_time() -> None:
    rules = lowering_overrides(ALL, WIDEST)
    assert hash(rules) == hash(lowering_overrides(ALL, WIDEST))


def test_tpu_alone_keeps_the_rules_of_jax() -> None:
    for platforms, replaced in ((("tpu",), False), (CPU, True)):
        primitives = [primitive for primitive, _ in lowering_overrides(platforms, WIDEST)]
        assert (lax.linalg.qr_p in primitives, lax.linalg.svd_p in primitives) == (False, replaced)


def test_the_module_holds_no_masks() -> None:
    # Not even at one bit an entry.
    exported = export_function(jnp.linalg.svd, matrix(200, 200))
    assert len(exported.mlir_module_serialized) < 40_000


def test_strict_promotion_of_the_user_is_not_about_the_rules() -> None:
    a = matrix(34, 34)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        for f in (lax.linalg.svd, lax.linalg.lu, lax.linalg.cholesky):
            assert export_function(f, a).out_avals


def test_platforms_that_share_a_rule_share_a_branch() -> None:
    a = matrix(8, 8)
    for f in (lambda a: jnp.linalg.qr(a), lambda a: jnp.linalg.cholesky(a)):
        assert "stablehlo.case" not in export_function(f, a, platforms=ALL).mlir_module()
    both = export_function(lax.linalg.lu, a, platforms=ALL).mlir_module()
    outer, *branches = re.findall(r'"stablehlo\.case"', both)
    assert (outer, len(branches)) == ('"stablehlo.case"', 1)  # one picks the rule, one is it


def test_cpu_and_gpus_differ_where_the_gpu_has_an_op() -> None:
    a = np.asarray(definite(matrix(40, 40)))
    assert "stablehlo.cholesky" not in export_function(jnp.linalg.cholesky, a).mlir_module()
    for platform in ("cuda", "rocm", "tpu"):
        module = export_function(jnp.linalg.cholesky, a, platforms=(platform,)).mlir_module()
        assert "stablehlo.cholesky" in module


SHAPES = [(1, 1), (2, 2), (5, 3), (3, 5), (40, 40), (64, 30), (30, 64)]


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_qr(m: int, n: int) -> None:
    def f(a: Any) -> Any:
        return [jnp.linalg.qr(a, mode=mode) for mode in ("reduced", "complete", "r")]

    compare(f, matrix(m, n))


@pytest.mark.parametrize(("m", "n"), [*SHAPES, (200, 200)])
def test_lu(m: int, n: int) -> None:
    compare(lax.linalg.lu, matrix(m, n))


@pytest.mark.parametrize(
    ("m", "n", "full_matrices"),
    [
        (1, 1, True),
        (3, 3, True),
        (5, 3, True),
        (3, 5, True),
        (5, 3, False),
        (30, 64, False),
        (64, 30, True),
    ],
)
def test_svd(m: int, n: int, full_matrices: bool) -> None:
    a = matrix(m, n)
    u, s, vh = run(functools.partial(jnp.linalg.svd, full_matrices=full_matrices), a)
    assert (u.shape, vh.shape) == (
        ((m, m), (n, n)) if full_matrices else ((m, s.size), (s.size, n))
    )
    check_svd(a, u, s, vh)


def check_svd(a: Any, u: Any, s: Any, vh: Any) -> None:
    atol = tolerance(a.dtype)
    want = np.linalg.svd(a, compute_uv=False)
    k = s.shape[-1]
    np.testing.assert_allclose(s, want, rtol=0, atol=atol * max(want[0], 1e-30))
    np.testing.assert_allclose((u[:, :k] * s) @ vh[:k], a, rtol=0, atol=atol * max(want[0], 1e-30))
    check_orthonormal(u)
    check_orthonormal(vh.conj().T)


def check_orthonormal(q: Any) -> None:
    gram = q.conj().T @ q
    np.testing.assert_allclose(gram, np.eye(len(gram)), rtol=0, atol=tolerance(q.dtype))


@pytest.mark.parametrize(
    ("n", "triangle"), [(1, "L"), (2, "U"), (3, "L"), (32, "U"), (33, "U"), (64, "L"), (200, "L")]
)
def test_eigh(n: int, triangle: str) -> None:
    # The other triangle must not be read.
    a = np.tril(matrix(n, n)) if triangle == "L" else np.triu(matrix(n, n))
    values, vectors = run(
        functools.partial(jnp.linalg.eigh, UPLO=triangle, symmetrize_input=False), a
    )
    check_eigh(np.asarray(a + a.T - np.diag(np.diag(a))), values, vectors)


def check_eigh(a: Any, values: Any, vectors: Any) -> None:
    want = np.linalg.eigvalsh(a)
    atol = tolerance(a.dtype) * max(np.abs(want).max(), 1e-30)
    np.testing.assert_allclose(values, want, rtol=0, atol=atol)
    assert np.all(np.diff(values) >= 0)
    np.testing.assert_allclose(a @ vectors, vectors * values, rtol=0, atol=atol)
    check_orthonormal(vectors)


SPECTRA = {
    "repeated": np.repeat(np.arange(1.0, 9.0), 5),
    "one": np.ones(40),
    "zero": np.zeros(40),
    "rank one": np.concatenate([np.zeros(39), [1.0]]),
    "graded": np.logspace(0, -7, 40),
    "clusters": np.sort(np.concatenate([1 + 1e-6 * np.arange(20), 2 + 1e-7 * np.arange(20)])),
}


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_spectra_that_are_hard(dtype: str) -> None:
    with jax.enable_x64(True):
        example = np.eye(40, dtype=dtype)
        eigh = jax.jit(export_function(jnp.linalg.eigh, example).call)
        svd = jax.jit(export_function(jnp.linalg.svd, example).call)
        for values in SPECTRA.values():
            a = with_spectrum(values, dtype)
            a = (a + a.conj().T) / 2
            check_eigh(a, *(np.asarray(x) for x in eigh(a)))
            check_svd(a, *(np.asarray(x) for x in svd(a)))


def test_small_singular_values_keep_their_size() -> None:
    a = with_spectrum(np.array([1.0, 1e-2, 1e-4, 1e-6]), "float32")
    s = run(functools.partial(jnp.linalg.svd, compute_uv=False), a)[0]
    np.testing.assert_allclose(s, [1, 1e-2, 1e-4, 1e-6], rtol=0, atol=3e-7)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_sizes_near_the_ends_of_the_range(scale: float) -> None:
    a = np.asarray(hermitian(matrix(40, 40))) * np.float32(scale)
    values, vectors = run(jnp.linalg.eigh, a)
    check_eigh(a, values, vectors)


@pytest.mark.parametrize("n", [1, 24, 25, 64, 200])
def test_cholesky(n: int) -> None:
    a = np.asarray(definite(matrix(n, n)))
    compare(jnp.linalg.cholesky, a)
    compare(functools.partial(jnp.linalg.cholesky, upper=True), a)


@pytest.mark.parametrize("n", [3, 40])
def test_cholesky_of_an_indefinite_matrix_is_nan(n: int) -> None:
    good = np.asarray(definite(matrix(n, n)))
    bad = good - 100 * np.eye(n, dtype="float32")
    lower = np.tri(n, dtype=bool)
    got = run(jnp.linalg.cholesky, np.stack([good, bad]))[0]
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1][lower]).all()


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("f", [jnp.linalg.eigh, jnp.linalg.svd])
def test_not_finite_gives_nan(f: Function, n: int) -> None:
    a = np.stack([np.asarray(hermitian(matrix(n, n)))] * 2)
    a[1, 0, 0] = np.nan
    for got in run(f, a):
        assert np.isfinite(got[0]).all()
        assert np.isnan(got[1]).all()


def test_singular_matrices() -> None:
    # As in LAPACK: the factorisation exists, and has zeros on the diagonal of U.
    a = np.array([[1, 2, 3], [2, 4, 6], [1, 1, 1]], "float32")
    compare(lax.linalg.lu, a)
    compare(lax.linalg.lu, np.zeros((5, 5), "float32"))
    compare(jnp.linalg.det, a)
    compare(jnp.linalg.slogdet, np.diag(np.array([-1, 2, 3], "float32")))
    for singular in (np.zeros((3, 3), "float32"), np.array([[1, 2], [2, 4]], "float32")):
        assert not np.isfinite(run(jnp.linalg.inv, singular)[0]).any()
        assert not np.isfinite(np.asarray(jnp.linalg.inv(singular))).any()
        assert np.linalg.matrix_rank(singular) == run(jnp.linalg.matrix_rank, singular)[0]


BUILT_ON: dict[str, tuple[Function, tuple[str, ...]]] = {
    "solve": (jnp.linalg.solve, ("square", "right")),
    "inv": (jnp.linalg.inv, ("square",)),
    "det": (lambda a: jnp.linalg.det(a / a.shape[-1]), ("square",)),
    "slogdet": (jnp.linalg.slogdet, ("square",)),
    "pinv": (jnp.linalg.pinv, ("tall",)),
    "lstsq": (lambda a, b: jnp.linalg.lstsq(a, b)[0], ("tall", "right")),
    "matrix_rank": (jnp.linalg.matrix_rank, ("tall",)),
    "expm": (lambda a: jax.scipy.linalg.expm(a / 20), ("square",)),
    "cho_solve": (
        lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(definite(a)), b),
        ("square", "right"),
    ),
    "eigvalsh": (lambda a: jnp.linalg.eigvalsh(hermitian(a)), ("square",)),
    "svdvals": (jnp.linalg.svdvals, ("tall",)),
    "lower": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        ("square", "right"),
    ),
    "upper adjoint": (
        lambda a, b: lax.linalg.triangular_solve(
            a, b, left_side=True, lower=False, transpose_a=True, conjugate_a=True
        ),
        ("square", "right"),
    ),
    "right unit": (
        lambda a, b: lax.linalg.triangular_solve(a / 20, b.mT, left_side=False, unit_diagonal=True),
        ("square", "right"),
    ),
    "tridiagonal": (
        lambda a, b: lax.linalg.tridiagonal_solve(a[0], a[1] + 10, a[2], b),
        ("square", "right"),
    ),
    "householder": (lambda a: lax.linalg.householder_product(*lax_geqrf(a)), ("tall",)),
    "cholesky update": (
        lambda a: lax.linalg.cholesky_update(jnp.linalg.cholesky(definite(a)).mT.conj(), a[0]),
        ("square",),
    ),
    "symmetric product": (
        lambda a: lax.linalg.symmetric_product(a, a, alpha=2.0, beta=0.5, symmetrize_output=True),
        ("square",),
    ),
    "qdwh": (lambda a: lax.linalg.qdwh(a)[0], ("square",)),
}
REAL_ONLY = {"cholesky update", "symmetric product", "lstsq"}


def lax_geqrf(a: Any) -> tuple[Any, Any]:
    h, taus = jnp.linalg.qr(a, mode="raw")
    return h.mT, taus


@pytest.mark.parametrize("name", BUILT_ON)
def test_built_on_them(name: str) -> None:
    f, kinds = BUILT_ON[name]
    with jax.enable_x64(True):
        for dtype in ("float32", "float64" if name in REAL_ONLY else "complex128"):
            made = {
                "square": well_conditioned(8, 8, dtype=dtype),
                "tall": matrix(8, 5, dtype=dtype),
                "right": matrix(8, 3, dtype=dtype, seed=2),
            }
            compare(f, *(made[kind] for kind in kinds))


FACTORIZATIONS: dict[str, Function] = {
    "qr": jnp.linalg.qr,
    # Vectors of close values are not determined well, functions of them and the values are.
    "eigh": lambda a: rebuilt_eigh(*jnp.linalg.eigh(hermitian(a))),
    "svd": lambda a: rebuilt_svd(*jnp.linalg.svd(a, full_matrices=False)),
    "lu": lax.linalg.lu,
    "cholesky": lambda a: jnp.linalg.cholesky(definite(a)),
}


def rebuilt_eigh(values: Any, vectors: Any) -> Any:
    squares = (vectors * values[..., None, :] ** 2) @ adjoint(vectors)
    return values, squares, vectors @ adjoint(vectors)


def rebuilt_svd(u: Any, s: Any, vh: Any) -> Any:
    return s, (u * s[..., None, :] ** 2) @ vh, adjoint(u) @ u, vh @ adjoint(vh)


@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_dtypes(name: str, dtype: str) -> None:
    compare(FACTORIZATIONS[name], matrix(34, 34, dtype=dtype))


@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_batches(name: str) -> None:
    f = FACTORIZATIONS[name]
    compare(jax.vmap(f, in_axes=1), matrix(2, 3, 34, 34))
    compare(f, matrix(0, 4, 4))


SYMBOLIC: dict[str, Function] = {
    **FACTORIZATIONS,
    "inv": jnp.linalg.inv,
    "solve": lambda a: jnp.linalg.solve(a, a.mT),
    "det": jnp.linalg.det,
    "pinv": lambda a: jnp.linalg.pinv(a),
    "tridiagonal": lambda a: lax.linalg.tridiagonal_solve(a[:, 0], a[:, 1] + 10, a[:, 2], a),
}


@pytest.mark.parametrize(
    ("name", "n"), [*((name, 4) for name in SYMBOLIC), ("eigh", 34), ("lu", 70), ("cholesky", 34)]
)
def test_symbolic_batch(name: str, n: int) -> None:
    f = SYMBOLIC[name]
    (b,) = export.symbolic_shape("b")
    symbolic = jax.ShapeDtypeStruct((b, n, n), np.float32)
    check_portable(export_function(f, symbolic, platforms=ALL))
    exported = export_function(f, symbolic)
    check_portable(exported)
    for size in (1, 3):
        a = well_conditioned(size, n, n, seed=size)
        want = [np.asarray(x) for x in jax.tree.leaves(f(a))]
        for g, w in zip(jax.tree.leaves(exported.call(a)), want, strict=True):
            np.testing.assert_allclose(g, w, rtol=0, atol=2e-4 * np.abs(w).max())


DIFFERENTIABLE: dict[str, Function] = {
    "solve": jnp.linalg.solve,
    "inv": lambda a, b: jnp.linalg.inv(a) @ b,
    "det": lambda a, b: jnp.linalg.det(a / a.shape[-1]) * b,
    "cholesky": lambda a, b: jnp.linalg.cholesky(definite(a)) @ b,
    "qr": lambda a, b: tuple(x @ b for x in jnp.linalg.qr(a)),
    # Functions of the vectors that their signs do not change.
    "eigh": lambda a, b: of_eigh(b, *jnp.linalg.eigh(hermitian(a))),
    "svd": lambda a, b: of_svd(b, *jnp.linalg.svd(a, full_matrices=False)),
    "lu": lambda a, b: lax.linalg.lu(a)[0] @ b,
    "triangular": lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
    "expm": lambda a, b: jax.scipy.linalg.expm(a / 20) @ b,
    "pinv": lambda a, b: jnp.linalg.pinv(a) @ b,
    "tridiagonal": lambda a, b: lax.linalg.tridiagonal_solve(a[0], a[1] + 20, a[2], b),
}


def of_eigh(b: Any, values: Any, vectors: Any) -> Any:
    return values, (vectors * jnp.arange(values.size)) @ adjoint(vectors) @ b


def of_svd(b: Any, u: Any, s: Any, vh: Any) -> Any:
    return s, (u * jnp.arange(s.size)) @ vh @ b


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str) -> None:
    n = 5
    with jax.enable_x64(True):
        a, b = well_conditioned(n, n, dtype="float64"), matrix(n, 3, dtype="float64", seed=2)
        vjp, args = vjp_of(DIFFERENTIABLE[name], a, b)
        got, want = run(vjp, *args), vjp(*args)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=0, atol=1e-8 * np.abs(w).max())


@pytest.mark.parametrize(("m", "n"), [(0, 0), (0, 3), (3, 0)])
def test_matrices_without_elements(m: int, n: int) -> None:
    a = np.zeros((m, n), "float32")
    compare(lax.linalg.lu, a)
    compare(jnp.linalg.svd, a)
    compare(jnp.linalg.qr, a)
    if m == n:
        compare(jnp.linalg.eigh, a)
        compare(jnp.linalg.cholesky, a)


def test_tridiagonal_systems_that_need_pivoting() -> None:
    dl = np.array([0, 1, 1, 1], "float32")
    d = np.array([0, 1e-8, 2, 0], "float32")
    du = np.array([2, 1, 3, 0], "float32")
    b = matrix(4, 2)
    compare(lax.linalg.tridiagonal_solve, dl, d, du, b)
    compare(lax.linalg.tridiagonal_solve, dl[:1], d[:1] + 3, du[:1], b[:1])
    zero = np.zeros(4, "float32")
    assert np.isnan(run(lax.linalg.tridiagonal_solve, zero, zero, zero, b)[0]).all()


@pytest.mark.skipif(
    not hasattr(jax.scipy.linalg, "qr_multiply"), reason="this JAX has no qr_multiply"
)
def test_qr_multiply() -> None:
    a = matrix(7, 4)
    multiply: Function = getattr(jax.scipy.linalg, "qr_multiply")  # noqa: B009
    compare(functools.partial(multiply, mode="left"), a, matrix(4, 2))
    compare(functools.partial(multiply, mode="right"), a, matrix(3, 7))


def test_random_numbers_without_the_gpu_kernel() -> None:
    def f(x: Any) -> Any:
        return x + jax.random.normal(jax.random.key(3), x.shape)

    before = jax.config.values["jax_threefry_gpu_kernel_lowering"]
    jax.config.update("jax_threefry_gpu_kernel_lowering", True)
    try:
        compare(f, matrix(4, 4))
    finally:
        jax.config.update("jax_threefry_gpu_kernel_lowering", before)


def test_a_part_of_the_eigenvalues_is_refused() -> None:
    def f(a: Any) -> Any:
        return lax.linalg.eigh(a, subset_by_index=(0, 2))

    with pytest.raises(NotImplementedError, match=r"subset_by_index=\(0, 2\) of a matrix of 5"):
        export_function(f, matrix(5, 5))


def test_what_has_only_a_lapack_form_stays() -> None:
    names = custom_calls(export_function(jnp.linalg.eigvals, matrix(3, 3)))
    assert names == {"lapack_sgeev_ffi"}
