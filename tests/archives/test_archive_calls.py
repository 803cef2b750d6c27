"""LAPACK's calls in modules, of either form, answer as LAPACK does when they become StableHLO."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

from jax2tf_bridge import from_exported, to_exported
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax import ir, jax_compat
from jax2tf_bridge.from_jax.stablehlo import StableHloModule
from tests.program_cases.record import Array, normal
from tests.sampling import sampled

F32, C64 = np.float32, np.complex64


def _well_conditioned(n: int, *batch: int, dtype: Any = F32) -> Array:
    return np.asarray(normal(*batch, n, n, dtype=dtype) / n + 2 * np.eye(n)).astype(dtype)


def _definite(n: int, *batch: int, dtype: Any = F32) -> Array:
    a = normal(*batch, n, n, dtype=dtype)
    return np.asarray(a @ np.swapaxes(a, -1, -2).conj() / n + np.eye(n)).astype(dtype)


def _ffi(target: str, outs: Sequence[Any], **flags: str) -> Any:
    """A function that makes the call as JAX does since 2025, with flags as characters."""
    attributes = {name: np.uint8(ord(flag)) for name, flag in flags.items()}

    def call(*arrays: Any) -> Any:
        return jax.ffi.ffi_call(
            target,
            list(outs),
            input_layouts=list(map(_layout, arrays)),
            output_layouts=list(map(_layout, outs)),
        )(*arrays, **attributes)

    return call


def _layout(array: Any) -> tuple[int, ...]:
    """Matrices lie column by column; pivots, which are integers, are vectors."""
    axes = tuple(range(len(array.shape)))
    is_matrix = len(axes) >= 2 and array.dtype != np.int32
    return (*axes[:-2], axes[-1], axes[-2]) if is_matrix else axes


def _both(function: Any, *arrays: Array) -> tuple[list[Array], list[Array]]:
    """Returns the answers of LAPACK, and of the rewritten module."""
    jax.block_until_ready(jnp.linalg.inv(jnp.eye(2)))  # jaxlib registers LAPACK's functions
    text = jax.jit(function).lower(*arrays).as_text()
    target = text.split("custom_call @")[1].split("(")[0]
    checks = [jax_export.DisabledSafetyCheck.custom_call(target)]
    exported = jax_export.export(jax.jit(function), platforms=["cpu"], disabled_checks=checks)
    portable = from_exported(exported(*arrays))
    assert not any(
        c.name == target for c in StableHloModule.read(portable.module.data).describe_custom_calls()
    )
    got = to_exported(portable).call(*arrays)
    return list(map(np.asarray, function(*arrays))), list(map(np.asarray, got))


def _like(*arrays: Array) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]


_INFO = np.zeros((), np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sampled([C64, F32], every=2))
def test_triangular_solve_with_every_flag(dtype: Any) -> None:
    a = _well_conditioned(3, 2, dtype=dtype)
    letter = {F32: "s", C64: "c"}[dtype]
    for side, uplo, trans, diag in itertools.product("LR", "LU", "NTC", "NU"):
        b = normal(2, 3, 4, dtype=dtype)
        b = b if side == "L" else np.swapaxes(b, -1, -2).copy()
        flags = {"side": side, "uplo": uplo, "trans_x": trans, "diag": diag}
        function = _ffi(f"lapack_{letter}trsm_ffi", _like(b), **flags)
        (expected,), (got,) = _both(function, a, b)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=str(flags))


# The fast ones have each value of each once.
@pytest.mark.parametrize(
    ("uplo", "dtype"),
    [
        ("L", F32),
        ("U", C64),
        pytest.param("U", F32, marks=pytest.mark.complete),
        pytest.param("L", C64, marks=pytest.mark.complete),
    ],
)
def test_cholesky(uplo: str, dtype: Any) -> None:
    a = _definite(4, dtype=dtype)
    target = f"lapack_{'s' if dtype is F32 else 'c'}potrf_ffi"
    expected, got = _both(_ffi(target, _like(a, _INFO), uplo=uplo), a)
    half = np.tril if uplo == "L" else np.triu
    np.testing.assert_allclose(half(got[0]), half(expected[0]), rtol=1e-4, atol=1e-5)
    assert expected[1] == got[1] == 0
    expected, got = _both(_ffi(target, _like(a, _INFO), uplo=uplo), -a)
    # LAPACK says which minor is not positive, the rule that one is not.
    assert expected[1] > 0
    assert got[1] > 0


@pytest.mark.parametrize("uplo", "LU")
def test_symmetric_eigenvalues_read_one_triangle(uplo: str) -> None:
    a = _well_conditioned(5)
    outs = _like(a, a[0], _INFO)
    function = _ffi("lapack_ssyevd_ffi", outs, mode="V", uplo=uplo)
    (_, expected, _), (vectors, values, info) = _both(function, a)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    half = np.tril(a) if uplo == "L" else np.triu(a)
    symmetric = half + half.T - np.diag(np.diag(a))
    np.testing.assert_allclose(symmetric @ vectors, vectors * values, atol=1e-4)
    assert info == 0


def test_lu_counts_pivots_from_one() -> None:
    for a in (normal(2, 4, 3), np.ones((1, 3, 3), F32)):
        pivots = np.zeros((a.shape[0], 3), np.int32)
        info = np.zeros(a.shape[0], np.int32)
        expected, got = _both(_ffi("lapack_sgetrf_ffi", _like(a, pivots, info)), a)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-6)
        assert got[1].tolist() == expected[1].tolist()
        # JAX fails on negative ones only: a singular matrix has factors.
        assert (got[2] >= 0).all()


# The fast ones have each value of each once.
SINGULAR_VALUES = list(itertools.product([(3, 5), (5, 3)], ["gesdd", "gesvd"], "AS"))
FAST = [((3, 5), "gesdd", "A"), ((5, 3), "gesvd", "S")]


@pytest.mark.parametrize("case", sampled(SINGULAR_VALUES, every=100, keep=FAST), ids=str)
def test_singular_values(case: tuple[tuple[int, int], str, str]) -> None:
    shape, routine, mode = case
    a = normal(*shape)
    columns, rows = (shape[0], shape[1]) if mode == "A" else (3, 3)
    u, vt = np.zeros((shape[0], columns), F32), np.zeros((rows, shape[1]), F32)
    s = np.zeros(3, F32)
    function = _ffi(f"lapack_s{routine}_ffi", _like(a, s, u, vt, _INFO), mode=mode)
    expected, got = _both(function, a)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-4)
    assert [g.shape for g in got[2:4]] == [u.shape, vt.shape]
    np.testing.assert_allclose((got[2][:, :3] * got[1]) @ got[3][:3], a, atol=1e-4)
    np.testing.assert_allclose(got[2].T @ got[2], np.eye(columns), atol=1e-4)
    assert got[4] == 0


def test_tridiagonal_solve() -> None:
    lower, diagonal, upper = normal(4, seed=1), normal(4, seed=2) + 4, normal(4, seed=3)
    lower[0] = upper[-1] = 0
    b = normal(4, 2)
    matrix = np.diag(diagonal) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1)
    outs = _like(lower, diagonal, upper, b, _INFO)
    portable = from_exported(
        jax_export.export(
            jax.jit(_ffi("lapack_sgtsv_ffi", outs)),
            platforms=["cpu"],
            disabled_checks=[jax_export.DisabledSafetyCheck.custom_call("lapack_sgtsv_ffi")],
        )(lower, diagonal, upper, b)
    )
    got = to_exported(portable).call(lower, diagonal, upper, b)
    np.testing.assert_allclose(got[3], np.linalg.solve(matrix, b), rtol=1e-4)


def _older(call: str, arrays: Sequence[Array], outs: Sequence[Any]) -> list[Array]:
    """Runs a module whose main's body is `call`, %0 and so on being its arguments."""
    types = [_type(a) for a in arrays], [_type(o) for o in outs]
    arguments = ", ".join(f"%arg{i}: {t}" for i, t in enumerate(types[0]))
    results = ", ".join(types[1])
    values = ", ".join(f"%0#{i}" for i in range(len(outs))) if len(outs) > 1 else "%0"
    text = f"""
        func.func public @main({arguments}) -> ({results}) {{
          {call}
          return {values} : {results}
        }}"""
    with jax_compat.make_ir_context():
        artifact = jax_compat.serialize_module(ir.Module.parse(text), "1.0.0")
    jitted = jax.jit(lambda *_: [jnp.zeros(o.shape, o.dtype) for o in outs], keep_unused=True)
    exported = replace(
        jax_export.export(jitted, platforms=["cpu"])(*arrays), mlir_module_serialized=artifact
    )
    return [np.asarray(r) for r in to_exported(from_exported(exported)).call(*arrays)]


def _type(array: Any) -> str:
    element = {"float32": "f32", "complex64": "complex<f32>", "int32": "i32"}[array.dtype.name]
    return f"tensor<{''.join(f'{d}x' for d in array.shape)}{element}>"


def _scalars(**values: int) -> str:
    return "\n".join(
        f"%{name} = stablehlo.constant dense<{value}> : tensor<i32>"
        for name, value in values.items()
    )


@pytest.mark.slow
def test_the_older_triangular_solve_with_a_scale() -> None:
    for dtype, letter in ((F32, "s"), (C64, "c")):
        a, b = _well_conditioned(3, dtype=dtype), normal(2, 3, dtype=dtype)
        t, element = _type(a), _type(a[0, 0])
        for left, lower, trans, unit, scale in itertools.product(
            (0, 1), (0, 1), (0, 2), (0, 1), "13"
        ):
            right = b if not left else b.T.copy()
            constant = f"({scale}.0, 0.0)" if dtype is C64 else f"{scale}.0"
            call = f"""
              {_scalars(left=left, lower=lower, trans=trans, unit=unit, m=3, n=3, batch=1)}
              %scale = stablehlo.constant dense<{constant}> : {element}
              %0 = stablehlo.custom_call @blas_{letter}trsm(%left, %lower, %trans, %unit, %m, %n,
                %batch, %scale, %arg0, %arg1) {{api_version = 2 : i32}}
                : ({"tensor<i32>, " * 7}{element}, {t}, {_type(right)}) -> {_type(right)}
            """
            (got,) = _older(call, [a, right], [right])
            matrix = np.tril(a) if lower else np.triu(a)
            if unit:
                matrix = matrix - np.diag(np.diag(a)) + np.eye(3, dtype=dtype)
            matrix = matrix.conj().T if trans else matrix
            product = matrix @ got if left else got @ matrix
            np.testing.assert_allclose(product, float(scale) * right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["lapack_ssyevd", "lapack_cheevd"])
def test_the_older_eigenvalues_with_workspaces(target: str) -> None:
    dtype = C64 if target == "lapack_cheevd" else F32
    a = _well_conditioned(4, dtype=dtype)
    workspaces: list[Array] = [np.zeros(9, dtype), np.zeros(7, np.int32)]
    if dtype is C64:
        workspaces.insert(1, np.zeros(8, F32))
    outs = [a, a[0].real, _INFO, *workspaces]
    call = f"""
      {_scalars(lower=0, batch=1, n=4)}
      %0:{len(outs)} = stablehlo.custom_call @{target}(%lower, %batch, %n, %arg0)
        {{api_version = 2 : i32}}
        : (tensor<i32>, tensor<i32>, tensor<i32>, {_type(a)}) -> ({", ".join(map(_type, outs))})
    """
    vectors, values, info, work, *_ = _older(call, [a], outs)
    hermitian = np.triu(a) + np.triu(a, 1).T.conj()
    np.fill_diagonal(hermitian, hermitian.diagonal().real)
    np.testing.assert_allclose(hermitian @ vectors, vectors * values, atol=1e-4)
    assert info == 0
    assert not work.any()


def test_a_flag_that_is_computed_is_refused() -> None:
    a, flag = _definite(3), np.zeros((), np.int32)
    call = f"""
      {_scalars(batch=1, n=3)}
      %0:2 = stablehlo.custom_call @lapack_spotrf(%arg1, %batch, %n, %arg0)
        {{api_version = 2 : i32}}
        : (tensor<i32>, tensor<i32>, tensor<i32>, tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<i32>)
    """
    with pytest.raises(ModuleError, match=r"'lapack_spotrf' computes its flag 'lower', where JAX"):
        _older(call, [a, flag], [a, _INFO])


@pytest.mark.parametrize(
    ("target", "arrays", "outs"),
    [
        ("lapack_sgetrf_ffi", [_definite(3), _definite(3)], [_definite(3)]),
        ("lapack_sgetrf_ffi", [], [_definite(3)]),
        ("lapack_spotrf_ffi", [_definite(3)], [_definite(3), _INFO]),
        ("lapack_sgetrf_ffi", [_INFO[None, None]], [_INFO, _INFO, _INFO]),
        ("lapack_sgetrf_ffi", [_definite(3)], [_definite(4), _INFO, _INFO]),
        ("lapack_strsm_ffi", [_definite(3), _definite(4)], [_definite(3)]),
    ],
)
def test_a_call_that_jax_would_not_write_is_refused(
    target: str, arrays: list[Array], outs: list[Array]
) -> None:
    with pytest.raises(ModuleError, match=f"{target}"):
        _older(_gpu_call(target, "", arrays, outs), arrays, outs)


def _gpu_call(target: str, config: str, arrays: Sequence[Array], outs: Sequence[Any]) -> str:
    results = ", ".join(map(_type, outs))
    count = f":{len(outs)}" if len(outs) > 1 else ""
    operands = ", ".join(f"%arg{i}" for i in range(len(arrays)))
    return f"""
      %0{count} = stablehlo.custom_call @{target}({operands}) {{mhlo.backend_config = {{{config}}}}}
        : ({", ".join(map(_type, arrays))}) -> ({results})
    """


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", sampled(list(itertools.product([(3, 5), (5, 3)], [False, True], [F32, C64])), every=3)
)
def test_singular_values_for_gpus(case: tuple[tuple[int, int], bool, Any]) -> None:
    shape, full, dtype = case
    a = normal(*shape, dtype=dtype)
    m, n = shape
    s, u = np.zeros(3, F32), np.zeros((m, m if full else 3), dtype)
    vh = np.zeros((n if full else 3, n), dtype)
    config = f"compute_uv = true, full_matrices = {str(full).lower()}"
    outs = [a, s, u, vh.T, _INFO]
    jacobi = _older(_gpu_call("cusolver_gesvdj_ffi", config, [a], outs), [a], outs)
    vectors = [(jacobi[2], jacobi[3].conj().T, jacobi[1])]
    for transposed in (False, True):
        more = f"{config}, transposed = {str(transposed).lower()}"
        outs = [a, s, vh, u, _INFO] if transposed else [a, s, u, vh, _INFO]
        got = _older(_gpu_call("hipsolver_gesvd_ffi", more, [a], outs), [a], outs)
        pair = (got[3], got[2]) if transposed else (got[2], got[3])
        vectors.append((*pair, got[1]))
    expected = np.linalg.svd(a, compute_uv=False)
    for left, right, values in vectors:
        assert (left.shape, right.shape) == (u.shape, vh.shape)
        np.testing.assert_allclose(values, expected, rtol=1e-4)
        np.testing.assert_allclose((left[:, :3] * values) @ right[:3], a, atol=1e-4)


@pytest.mark.parametrize("lower", ["true", "false"])
def test_eigenvalues_and_cholesky_for_gpus(lower: str) -> None:
    half = np.tril if lower == "true" else np.triu
    a = _well_conditioned(4)
    symmetric = half(a) + half(a).T - np.diag(np.diag(a))
    outs = [a, a[0], _INFO]
    config = f"algorithm = 0 : ui8, lower = {lower}"
    vectors, values, _ = _older(_gpu_call("cusolver_syevd_ffi", config, [a], outs), [a], outs)
    np.testing.assert_allclose(symmetric @ vectors, vectors * values, atol=1e-4)
    a = _definite(4)
    call = _gpu_call("cusolver_potrf_ffi", f"lower = {lower}", [a], [a, _INFO])
    factor, info = _older(call, [a], [a, _INFO])
    factor = half(factor) if lower == "true" else half(factor).T
    np.testing.assert_allclose(factor @ factor.T, a, atol=1e-4)
    assert info == 0


def test_pivots_for_gpus() -> None:
    pivots = np.array([[2, 2, 3], [0, 1, 2]], np.int32)
    order = np.zeros((2, 4), np.int32)
    call = _gpu_call("cu_lu_pivots_to_permutation", "", [pivots], [order])
    (got,) = _older(call, [pivots], [order])
    assert got.tolist() == [[2, 0, 3, 1], [0, 1, 2, 3]]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_products_with_packed_reflectors_for_gpus(left: bool, transpose: bool) -> None:
    a = normal(4, 3, dtype=C64)
    packed, taus = (np.asarray(x) for x in jnp.linalg.qr(a, mode="raw"))
    c = normal(4, 2, dtype=C64) if left else normal(2, 4, dtype=C64)
    config = f"left = {str(left).lower()}, transpose = {str(transpose).lower()}"
    arrays = [packed.T, taus, c]
    (got,) = _older(_gpu_call("cusolver_ormqr_ffi", config, arrays, [c]), arrays, [c])
    q = np.linalg.qr(a, mode="complete")[0]
    q = q.conj().T if transpose else q
    np.testing.assert_allclose(got, q @ c if left else c @ q, atol=1e-5)
