"""Helpers for tests of lowering rules: checked exports, and matrices of each kind."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend import core as jax_core
from jax.extend import mlir as portable_artifacts
from jax.interpreters import mlir

from jax2tf_bridge.from_jax.lowering import make_lowering_overrides

WIDEST = (0, 14, 24)
CPU = ("cpu",)
ALL = ("cpu", "cuda", "rocm", "tpu")
# XLA expands the first on every platform; only its TPU compiler knows the second.
EXPANDED = {"Qr", "Eigh", "ProductOfElementaryHouseholderReflectors", "shape_assertion"}
ON_TPU = {"LuDecomposition"}

Function = Callable[..., Any]


def export_function(
    f: Function,
    *args: Any,
    platforms: tuple[str, ...] = CPU,
    version: tuple[int, int, int] = WIDEST,
) -> export.Exported:
    return export.export(
        jax.jit(f),
        platforms=platforms,
        _override_lowering_rules=make_lowering_overrides(platforms, version),
    )(*args)


def serialized(exported: export.Exported) -> bytes:
    with mlir.make_ir_context():
        module = portable_artifacts.deserialize_portable_artifact(exported.mlir_module_serialized)
        artifact: bytes = portable_artifacts.serialize_portable_artifact(module, "0.14.24", False)
        return artifact


def custom_calls(exported: export.Exported) -> set[str]:
    return set(re.findall(r"stablehlo\.custom_call @([\w.$]+)", exported.mlir_module()))


def check_portable(exported: export.Exported) -> None:
    allowed = EXPANDED | (ON_TPU if "tpu" in exported.platforms else set())
    assert custom_calls(exported) <= allowed
    assert serialized(exported)


def check_everywhere(f: Function, *args: Any) -> None:
    """Checks that one export of the function for all platforms is portable."""
    check_portable(export_function(f, *args, platforms=ALL))


def run(f: Function, *args: Any) -> list[Any]:
    exported = export_function(f, *args)
    check_portable(exported)
    return [np.asarray(x) for x in jax.tree.leaves(jax.jit(exported.call)(*args))]


def compare(f: Function, *args: Any) -> None:
    """Compares the exported function with JAX's own on the CPU."""
    check_results(run(f, *args), jax.tree.leaves(jax.jit(f)(*args)))


def compare_each(f: Function, *matrices: Any) -> None:
    """Compares a function of one matrix at each of these matrices, in one module."""
    compare(lambda *matrices: [f(a) for a in matrices], *matrices)


def check_results(got: Sequence[Any], expected: Sequence[Any]) -> None:
    """Compares up to rounding errors, relative to the largest number of each result."""
    want = list(map(np.asarray, expected))
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        atol = tolerance(w.dtype) * max(np.max(np.abs(w), initial=0), 1e-30)
        np.testing.assert_allclose(g, w, rtol=0, atol=atol, err_msg=f"result {i}")


def tolerance(dtype: Any) -> float:
    return 2e-4 if not np.issubdtype(dtype, np.inexact) or np.finfo(dtype).bits == 32 else 1e-9


def vjp_of(f: Function, *args: Any) -> tuple[Function, list[Any]]:
    """Makes the VJP of f as a function of flat arguments and cotangents, and its arguments."""
    traced = jax.jit(f).trace(*args)
    flat = jax_core.jaxpr_as_fun(traced.jaxpr)
    random = np.random.default_rng(1)
    outputs = traced.jaxpr.out_avals
    cotangents = [random.standard_normal(aval.shape).astype(aval.dtype) for aval in outputs]

    def vjp(*args_and_cotangents: Any) -> Any:
        inputs = args_and_cotangents[: len(args)]
        return jax.vjp(flat, *inputs)[1](list(args_and_cotangents[len(args) :]))

    return vjp, [*args, *cotangents]


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
