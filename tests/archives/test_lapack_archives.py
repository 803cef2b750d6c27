"""Archives that call LAPACK in the forms of older JAX releases answer under this JAX as there.

The files in tests/archives/lapack come from write_lapack_archives, run in those releases.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from jax import export as jax_export

from jax2tf_bridge import PortableFunction, from_exported, retarget, to_exported, to_tf
from jax2tf_bridge.bytecode import read_summary
from jax2tf_bridge.errors import ModuleError, UnsupportedByTargetError
from jax2tf_bridge.serialization import deserialize, read_function
from tests.consumers.comparison import differences

pytestmark = pytest.mark.checkout

FOLDER = Path(__file__).parent / "lapack"
MEMBERS = sorted(FOLDER.glob("*/*.exported"))
LARGEST = 20_000
OLDEST = FOLDER / "0.4.30"

# The tolerance is that of the less precise type.
TOLERANCE = {"float32": 2e-5, "complex64": 2e-5, "float64": 1e-12, "complex128": 1e-12, "int32": 0}

# For real and for complex matrices.
OLDER_ROUTINES = [
    *(("gees",) * 2, ("geev",) * 2, ("gehrd",) * 2, ("geqrf",) * 2, ("gesdd",) * 2, ("getrf",) * 2),
    *(("orgqr", "ungqr"), ("potrf",) * 2, ("syevd", "heevd"), ("sytrd", "hetrd")),
]
NEWER_ROUTINES = ("geqp3", "gesvd", "gtsv")


def _array(listed: dict[str, Any]) -> npt.NDArray[Any]:
    dtype = np.dtype(listed["dtype"])
    values = np.array(listed["values"], np.float64 if dtype.kind == "c" else dtype)
    if dtype.kind == "c":
        values = values[0::2] + 1j * values[1::2]
    return values.astype(dtype).reshape(listed["shape"])


def _calls(member: Path) -> list[dict[str, list[npt.NDArray[Any]]]]:
    facts = json.loads(member.with_suffix(".json").read_text())
    return [{k: [_array(a) for a in arrays] for k, arrays in c.items()} for c in facts["calls"]]


def _called(data: bytes) -> set[str]:
    names = read_summary(data).custom_calls
    return {name for name in names if name.startswith(("lapack_", "blas_"))}


def _differences(what: str, got: Any, expected: list[npt.NDArray[Any]]) -> list[str]:
    return [
        f"{what} {i}: {line}"
        for i, (g, e) in enumerate(zip(got, expected, strict=True))
        for line in differences("", [g], [e], TOLERANCE[e.dtype.name])
    ]


def test_every_call_that_the_oldest_release_wrote_is_among_them() -> None:
    assert max(m.stat().st_size for m in MEMBERS) <= LARGEST
    assert all(m.with_suffix(".json").exists() for m in MEMBERS)
    called = {m: _called(read_function(m).module.data) for m in MEMBERS}
    oldest = set().union(*(names for m, names in called.items() if m.parent == OLDEST))
    expected = {
        f"lapack_{letter}{name}"
        for real, its_complex in OLDER_ROUTINES
        for letter, name in (("s", real), ("d", real), ("c", its_complex), ("z", its_complex))
    }
    assert oldest == expected | {f"blas_{letter}trsm" for letter in "sdcz"}
    since = set().union(*called.values()) - oldest
    assert since >= {f"lapack_{c}{name}_ffi" for c in "sdcz" for name in NEWER_ROUTINES}
    assert since >= {f"lapack_{letter}mqr_ffi" for letter in ("sor", "dor", "cun", "zun")}


def _of_schur(inputs: list[npt.NDArray[Any]], results: Any) -> list[npt.NDArray[Any]]:
    """Keeps what is unique of Schur forms, each given with its vectors and then once more alone.

    The phases of complex vectors are not: LAPACK's choice depends on the CPU.
    """
    forms = [np.asarray(r) for r in results]
    found = []
    for i, a in enumerate(inputs):
        form, vectors, alone = forms[3 * i : 3 * i + 3]
        product = vectors @ form @ np.swapaxes(vectors, -1, -2).conj()
        assert _differences("product", [product], [a]) == []
        if a.dtype.kind == "c":
            found += [np.diagonal(t, axis1=-2, axis2=-1) for t in (form, alone)]
            form, vectors, alone = abs(form), abs(vectors), abs(alone)
        found += [form, vectors, alone]
    assert len(forms) == 3 * len(inputs)
    return found


@functools.cache
def _exported(member: Path) -> jax_export.Exported:
    """Makes what JAX compiles once for the tests that call it with the same shapes."""
    with jax.enable_x64(True):
        return to_exported(read_function(member))


@functools.cache
def _retargeted(member: Path) -> PortableFunction:
    return retarget(read_function(member))


# The replacements of these calls take long to compile, in four types and several forms; there are
# "hessenberg_open" and "tridiagonal_open" in two types, and forms of one type in the other files.
LONG = {"eigh", "svd", "hessenberg", "tridiagonal"}
# "eig" and "schur" make the calls of these, and the two of open sizes above are enough.
SAME_CALLS = {"eig_open", "schur_open"}


@pytest.mark.parametrize(
    "member",
    [
        pytest.param(m, marks=pytest.mark.slow if m.stem in LONG else pytest.mark.complete)
        if m.stem in LONG | SAME_CALLS
        else m
        for m in MEMBERS
    ],
    ids=lambda m: f"{m.parent.name}-{m.stem}",
)
def test_values_and_gradients_are_those_of_the_release_that_wrote_it(member: Path) -> None:
    exported = _exported(member)
    with jax.enable_x64(True):
        for call in _calls(member):
            results, expected = exported.call(*call["inputs"]), call["results"]
            if member.stem in ("schur", "schur_open"):
                results, expected = (_of_schur(call["inputs"], r) for r in (results, expected))
            assert _differences("result", results, expected) == []
            if call["gradients"]:
                results, pull_back = jax.vjp(exported.call, *call["inputs"])
                got = pull_back([np.ones_like(r) for r in results])
                assert _differences("gradient", got, call["gradients"]) == []


# The others hold more of the same calls.
EIGENVALUES = ["eigvals", *(pytest.param(n, marks=pytest.mark.slow) for n in ("eig", "schur"))]


@pytest.mark.costly
@pytest.mark.parametrize("name", EIGENVALUES)
def test_eigenvalues_are_lapacks_in_jax_and_the_bridges_in_tensorflow(name: str) -> None:
    portable = read_function(OLDEST / f"{name}.exported")
    older = sorted(_called(portable.module.data))
    exported = to_exported(portable)
    assert sorted(_called(exported.mlir_module_serialized)) == [f"{t}_ffi" for t in older]
    with pytest.raises(ModuleError, match=rf"no handler for the custom calls? .*'{older[0]}'"):
        to_tf(portable)
    assert _called(_retargeted(OLDEST / f"{name}.exported").module.data) == set()
    if name != "eigvals":  # test_what_jax_writes_today has the same of what JAX exports
        assert _called(from_exported(exported).module.data) == set()


@pytest.mark.parametrize("name", EIGENVALUES)
def test_eigenvalues_of_archives_are_found_in_tensorflow(name: str) -> None:
    member = OLDEST / f"{name}.exported"
    (call, *_) = _calls(member)
    results = to_tf(_retargeted(member))(*call["inputs"])
    assert all(np.isfinite(r).all() for r in results)
    if name == "eigvals":
        for got, expected in zip(results, call["results"], strict=True):
            np.testing.assert_allclose(np.sum(got, -1), np.sum(expected, -1), rtol=1e-4)
            np.testing.assert_allclose(np.prod(got, -1), np.prod(expected, -1), rtol=1e-4)


def test_open_sizes_of_matrices_are_for_lapack_alone() -> None:
    portable = read_function(OLDEST / "schur_open.exported")
    with pytest.raises(ModuleError, match=r"lapack_sgees of .*only batch dimensions may be open"):
        retarget(portable)


MATRIX = np.random.default_rng(0).normal(size=(2, 5, 5))


def _eig(a: Any) -> list[Any]:
    """Keeps what does not depend on the eigenvalues' order and the eigenvectors' lengths."""
    values, left, right = jax.lax.linalg.eig(a)
    scaled = [(v[..., None, :] * x) for v, x in ((values, right), (values.conj(), left))]
    adjoint = jnp.swapaxes(a, -1, -2).conj()
    return [a @ right - scaled[0], adjoint @ left - scaled[1], values.sum(-1), values.prod(-1)]


def _schur(a: Any) -> list[Any]:
    form, vectors = jax.lax.linalg.schur(a)
    alone = jax.lax.linalg.schur(a, compute_schur_vectors=False)[0]
    product = vectors @ form @ jnp.swapaxes(vectors, -1, -2).conj()
    return [product, jnp.trace(form, axis1=-2, axis2=-1), form - alone]


def _hessenberg(a: Any) -> list[Any]:
    return list(jax.lax.linalg.hessenberg(a))


def _tridiagonal(a: Any) -> list[Any]:
    return list(jax.lax.linalg.tridiagonal(a + jnp.swapaxes(a, -1, -2).conj(), lower=False))


def _pivoted_qr(a: Any) -> list[Any]:
    q, r, order = jax.lax.linalg.qr(a, pivoting=True, full_matrices=False)
    return [q @ r, order, abs(r)]


def _eig_and_packed(a: Any) -> list[Any]:
    return [*_eig(a), *_hessenberg(a), *_pivoted_qr(a)]


def _schur_and_packed(a: Any) -> list[Any]:
    return [*_schur(a), *_tridiagonal(a)]


ALL_TODAY = _eig, _schur, _hessenberg, _tridiagonal, _pivoted_qr


@pytest.mark.costly
@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (_eig_and_packed, np.float32),
        (_schur_and_packed, np.complex128),
        *(
            pytest.param(function, dtype, marks=pytest.mark.complete)
            for function in ALL_TODAY
            for dtype in (np.float32, np.complex128)
        ),
    ],
)
def test_what_jax_writes_today_runs_in_tensorflow(function: Any, dtype: Any) -> None:
    a = np.asarray(MATRIX * (1 + 0.3j) if dtype is np.complex128 else MATRIX, dtype)
    with jax.enable_x64(True):
        exported = jax_export.export(
            jax.jit(function), platforms=["cpu"], disabled_checks=_every_call(function, a)
        )(a)
        expected = [np.asarray(r) for r in exported.call(a)]
    assert _called(exported.mlir_module_serialized)
    portable = from_exported(exported)
    assert _called(portable.module.data) == set()
    tolerance = 1e-4 if dtype is np.float32 else 1e-10
    for result, wanted in zip(to_tf(portable)(a), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)


def _every_call(function: Any, a: Any) -> list[Any]:
    """Leave for the LAPACK calls that JAX does not promise to keep."""
    text = jax.jit(function).lower(a).as_text()
    names = set(re.findall(r"@(lapack_\w+)", text))
    return [jax_export.DisabledSafetyCheck.custom_call(name) for name in names]


@pytest.mark.costly
def test_what_lapack_refuses_is_nan() -> None:
    for name in ("eig", "schur"):
        exported = _exported(OLDEST / f"{name}.exported")
        with jax.enable_x64(True):
            results = exported.call(*(np.full(a.shape, np.nan, a.dtype) for a in exported.in_avals))
            assert all(np.isnan(r).all() for r in results)


def test_a_call_that_no_release_wrote_is_refused_by_name() -> None:
    call = jax.ffi.ffi_call("lapack_sgetrs", jax.ShapeDtypeStruct((3,), np.float32))
    check = jax_export.DisabledSafetyCheck.custom_call("lapack_sgetrs")
    exported = jax_export.export(jax.jit(call), platforms=["cpu"], disabled_checks=[check])
    portable = deserialize(exported(np.ones(3, np.float32)).serialize())
    with pytest.raises(UnsupportedByTargetError, match=r"call 'lapack_sgetrs'.*no longer") as e:
        to_exported(portable)
    assert e.value.operation == "lapack_sgetrs"
