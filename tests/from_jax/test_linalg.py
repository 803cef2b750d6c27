"""Linear algebra exported without LAPACK: what is left in the module."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jax2tf_bridge.from_jax.lowering import make_lowering_overrides
from tests.from_jax.lowered import (
    ALL,
    CPU,
    WIDEST,
    check_everywhere,
    check_portable,
    compare,
    custom_calls,
    definite,
    export_function,
    matrix,
)


def test_without_the_overrides_the_check_fails() -> None:
    plain = export.export(jax.jit(jnp.linalg.cholesky), platforms=CPU)(matrix(4, 4))
    assert custom_calls(plain) == {"lapack_spotrf_ffi"}
    with pytest.raises(AssertionError):
        check_portable(plain)


def test_overrides_are_hashable_and_the_same_each_time() -> None:
    rules = make_lowering_overrides(ALL, WIDEST)
    assert hash(rules) == hash(make_lowering_overrides(ALL, WIDEST))


def test_tpu_alone_keeps_the_rules_of_jax() -> None:
    for platforms, replaced in ((("tpu",), False), (CPU, True)):
        primitives = [primitive for primitive, _ in make_lowering_overrides(platforms, WIDEST)]
        assert (lax.linalg.qr_p in primitives, lax.linalg.lu_p in primitives) == (replaced,) * 2


def test_the_module_holds_no_masks() -> None:
    # A mask of one bit per entry would be too large as well.
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


N, B = export.symbolic_shape("n, b")


@pytest.mark.parametrize(
    ("shape", "count", "substituted"),
    [
        ((7, 7), 4, True),
        ((7, 7), 5, False),
        ((512, 512), 1, True),
        ((513, 513), 1, False),
        ((2, 24, 24), 1, True),
        ((2, 23, 23), 1, False),
        ((B, 24, 24), 1, True),
        ((N, N), 1, False),
    ],
    ids=str,
)
def test_few_right_hand_sides_are_substituted_on_cpu(
    shape: tuple[Any, ...], count: int, substituted: bool
) -> None:
    a = jax.ShapeDtypeStruct(shape, np.float32)
    b = jax.ShapeDtypeStruct((*shape[:-1], count), np.float32)

    def f(a: Any, b: Any) -> Any:
        left = lax.linalg.triangular_solve(a, b, left_side=True)
        return left, lax.linalg.triangular_solve(a, b.mT, left_side=False)

    found = export_function(f, a, b).mlir_module().count("stablehlo.triangular_solve")
    assert found == (0 if substituted else 2)
    gpu = export_function(f, a, b, platforms=("cuda",)).mlir_module()
    assert gpu.count("stablehlo.triangular_solve") == 2


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16], ids=["bfloat16", "float16"])
def test_systems_of_16_bits_are_not_substituted(dtype: Any) -> None:
    """Each step would round: at 256 rows, errors are ten times as large."""
    a, b = (jax.ShapeDtypeStruct((8, n), dtype) for n in (8, 1))
    found = export_function(lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), a, b)
    assert "stablehlo.while" not in found.mlir_module()


def test_random_numbers_without_the_gpu_kernel() -> None:
    def f(x: Any) -> Any:
        return x + jax.random.normal(jax.random.key(3), x.shape)

    before = jax.config.values["jax_threefry_gpu_kernel_lowering"]
    jax.config.update("jax_threefry_gpu_kernel_lowering", True)
    try:
        check_everywhere(f, matrix(4, 4))
        compare(f, matrix(4, 4))
    finally:
        jax.config.update("jax_threefry_gpu_kernel_lowering", before)


def test_a_part_of_the_eigenvalues_is_refused() -> None:
    def f(a: Any) -> Any:
        return lax.linalg.eigh(a, subset_by_index=(0, 2))

    with pytest.raises(NotImplementedError, match=r"subset_by_index=\(0, 2\) of a matrix of 5"):
        export_function(f, matrix(5, 5))


def test_eigenvalues_of_general_matrices_need_no_lapack() -> None:
    names = custom_calls(export_function(jnp.linalg.eigvals, matrix(3, 3)))
    assert not any(name.startswith("lapack_") for name in names)
