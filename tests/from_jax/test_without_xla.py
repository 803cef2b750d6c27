"""Exports for targets without XLA: what stays whole, what is refused, and the way back."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax import lax
from jax.experimental import pallas

from jax2tf_bridge import PortableFunction, Target, export, from_exported, retarget, to_exported
from jax2tf_bridge.bytecode import Block, Operation, read_program
from jax2tf_bridge.errors import NotExportableError, UnsupportedByTargetError
from jax2tf_bridge.from_jax import jax_compat
from jax2tf_bridge.portable import without_xla
from tests.sharding.meshes import X, by_parts

NO_XLA = Target.tensorflow("2.17", xla=False)
x43 = np.arange(12, dtype=np.float32).reshape(4, 3) / 8 + 0.5


def operations(portable: PortableFunction) -> Iterator[Operation]:
    blocks: list[Block] = [f.body for f in read_program(portable.module.data).functions.values()]
    while blocks:
        for operation in blocks.pop().operations:
            yield operation
            blocks += operation.regions


def composites(portable: PortableFunction) -> dict[str, Any]:
    found = [o for o in operations(portable) if o.name == "composite"]
    return {o.text("name"): o.attributes.get("composite_attributes") for o in found}


def special(x: Any) -> Any:
    found = lax.erf(x) + lax.erfc(x) * lax.lgamma(x) + lax.digamma(x) + lax.asinh(x)
    return found + jnp.cumsum(x, axis=1) + lax.cummax(x, axis=0, reverse=True), lax.top_k(x, 2)


def linear_algebra(x: Any) -> Any:
    square = jnp.einsum("bij,bik->bjk", x, x)
    return (
        *jnp.linalg.qr(x),
        jnp.linalg.eigvalsh(square, symmetrize_input=False),
        jnp.linalg.svd(x, compute_uv=False),
        jnp.linalg.solve(square, jnp.swapaxes(x, 1, 2)[:, :, :1]),
        jnp.linalg.cholesky(square),
        jnp.linalg.eigvals(square).real.sum(),
    )


@pytest.mark.parametrize("shapes", [None, "(b, 3)"])
def test_what_tensorflow_has_stays_whole(shapes: str | None) -> None:
    portable = export(special, polymorphic_shapes=shapes, target=NO_XLA)(x43)
    found = composites(portable)
    assert {"chlo.erfc", "chlo.lgamma", "chlo.digamma"} <= found.keys()
    assert found["jax2tf.cumsum"] == {"axis": 1, "reverse": False, **_sizes(shapes)}
    assert found["jax2tf.cummax"] == {"axis": 0, "reverse": True, **_sizes(shapes)}
    assert portable.platforms == ("cpu",)
    assert portable.target == NO_XLA
    assert portable.tensorflow_releases[0] == "2.15"
    assert "as its own operations" in repr(portable)
    _same_results(special, x43, portable)


def _sizes(shapes: str | None) -> dict[str, int]:
    return {} if shapes is None else {"sizes": 1}


def _same_results(f: Any, x: Any, portable: PortableFunction) -> None:
    """Runs it in JAX as it is, and retargeted to XLA, which runs the decompositions."""
    expected = jax.tree.leaves(f(x))
    back = retarget(portable, Target.tensorflow("2.17"))
    assert not composites(back)
    for each in (portable, back):
        results = jax.tree.leaves(to_exported(each).call(x))
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=2e-3, atol=1e-3)


def test_equal_operations_share_a_decomposition_in_each_export() -> None:
    def sums(x: Any) -> Any:
        return lax.cumsum(x) + lax.cumsum(x * 2) + lax.cumsum(x, reverse=True)

    for constraint in ("b >= 1", "b >= 3"):
        portable = export(
            sums,
            polymorphic_shapes="(b, 3)",
            polymorphic_constraints=[constraint],
            target=NO_XLA,
        )(x43)
        found = [o for o in operations(portable) if o.name == "composite"]
        assert len(found) == 3
        assert len({o.text("decomposition") for o in found}) == 2
        assert portable.constraints == (constraint,)


@pytest.mark.slow
def test_linear_algebra_stays_whole() -> None:
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    portable = export(linear_algebra, target=NO_XLA)(x)
    found = composites(portable)
    assert found["jax2tf.qr"] == {"full_matrices": False}
    assert found["jax2tf.eigh"] == {"lower": True}
    assert found["jax2tf.svd"] == {"full_matrices": True, "compute_uv": False}
    assert {"jax2tf.lu", "jax2tf.eig"} <= found.keys()
    assert "cholesky" in {o.name for o in operations(portable)}
    solve = export(jax.scipy.linalg.solve_triangular, target=NO_XLA)(x[0, :3], x[0, 3])
    assert {"triangular_solve", "while"} & {o.name for o in operations(solve)} == {
        "triangular_solve"
    }
    back = retarget(portable, Target.tensorflow("2.17"))
    assert not composites(back)
    assert back.module.stablehlo_version <= (1, 1, 1)


def test_calls_of_lapack_become_whole_operations_too() -> None:
    exported = jax_export.export(jax.jit(jnp.linalg.eigh), platforms=["cpu"])(np.eye(3))
    assert "lapack" in exported.mlir_module()
    portable = from_exported(exported, target=NO_XLA)
    assert composites(portable)["jax2tf.eigh"] == {"lower": True}


def test_gradients_are_for_the_same_target() -> None:
    portable = export(lambda x: jnp.cumsum(x, axis=1) * x, target=NO_XLA)(x43)
    vjp = portable.vjp()
    assert vjp.target == vjp.vjp().target == NO_XLA
    sums = [o for o in operations(vjp) if o.attributes.get("name") == "jax2tf.cumsum"]
    assert {"axis": 1, "reverse": True} in [o.attributes["composite_attributes"] for o in sums]
    plain = without_xla(export(jnp.sin)(x43))
    assert not plain.vjp().target.xla
    assert not without_xla(export(jnp.sin)(x43).with_vjp(1)).gradient.vjp.target.xla  # type: ignore[union-attr]


def test_there_and_back() -> None:
    for shapes in (None, "(b, 3)"):
        portable = export(special, polymorphic_shapes=shapes)(x43).with_vjp(0)
        there = retarget(portable, NO_XLA)
        assert there.target == NO_XLA
        newest = jax_compat.get_stablehlo_version()
        assert there.module.stablehlo_version >= min((1, 13, 7), newest)
        _same_results(special, x43, there)


def test_the_platform_is_the_cpu_if_it_is_asked_for() -> None:
    assert export(jnp.sin, target=NO_XLA, platforms=["tpu", "cpu"])(x43).platforms == ("cpu",)
    assert export(jnp.sin, target=NO_XLA, platforms=["tpu", "cuda"])(x43).platforms == ("tpu",)


def test_narrow_integers_and_gathers_lose_nothing() -> None:
    portable = export(lambda x: x.astype(jnp.int4) + 1, target=NO_XLA)(x43)
    assert portable.out_avals[0].dtype == "int4"
    x = np.array([1, -2]).astype(jnp.int2)
    doubled = to_exported(export(lambda x: jnp.cumsum(x + x), target=NO_XLA)(x)).call(x)
    assert doubled.tolist() == [-2, -2]

    def gather(x: Any, i: Any) -> Any:
        return jax.vmap(lambda row, at: row[at])(x, i)

    found = export(gather, target=NO_XLA)(x43, np.zeros((4, 2), np.int32))
    gathers = [o for o in operations(found) if o.name == "gather"]
    assert gathers[0].ints("operand_batching_dims") == (0,)


def my_kernel(x: Any) -> Any:
    return jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_a_custom_call_is_refused_with_its_line() -> None:
    with pytest.raises(
        UnsupportedByTargetError,
        match=r"my_kernel cannot run on TensorFlow 2\.17 without XLA, where it has to become "
        r"TensorFlow's own operations: they cannot express the custom call 'my_kernel' at "
        r".*test_without_xla.py:\d+\. Write this part of the function with other JAX operations\.$",
    ) as info:
        export(my_kernel, target=NO_XLA)(x43)
    assert info.value.operation == "my_kernel"
    assert "test_without_xla.py" in str(info.value.source)


def with_kernel(x: Any, *, interpret: bool = False) -> Any:
    def add_one(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas.pallas_call(add_one, out_shape=shape, interpret=interpret)(x)


def test_a_kernel_of_pallas_is_refused_with_its_line() -> None:
    with pytest.raises(
        UnsupportedByTargetError,
        match=r"with_kernel cannot run on .*: they cannot express the Pallas kernel at "
        r".*test_without_xla.py:\d+.*\. Replace it by JAX operations, call it with interpret=True,",
    ) as info:
        export(with_kernel, target=NO_XLA)(x43)
    assert info.value.operation == "pallas_call"
    interpreted = functools.partial(with_kernel, interpret=True)
    assert export(interpreted, target=NO_XLA)(x43).platforms == ("cpu",)


def test_a_kernel_for_other_platforms_is_left_out() -> None:
    def chosen(x: Any) -> Any:
        return lax.platform_dependent(x, tpu=with_kernel, default=lambda x: x + 1)

    portable = export(chosen, target=NO_XLA)(x43)
    assert "custom_call" not in {o.name for o in operations(portable)}


def test_host_callbacks_are_refused_as_for_any_target() -> None:
    def calls_back(x: Any) -> Any:
        return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(NotExportableError, match=r"calls back to Python by jax.pure_callback"):
        export(calls_back, target=NO_XLA)(x43)


def test_what_xla_alone_has_is_refused_with_the_target_that_has_it() -> None:
    portable = export(calls_xla)(x43)
    with pytest.raises(
        UnsupportedByTargetError,
        match=r"'xla.sdy.PropagationBarrier'.* or export it without xla=False, for a TensorFlow",
    ):
        retarget(portable, NO_XLA)


def calls_xla(x: Any) -> Any:
    return jax.ffi.ffi_call("xla.sdy.PropagationBarrier", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_approximate_top_k_is_exact() -> None:
    portable = export(lambda x: lax.approx_max_k(x, 2), target=NO_XLA)(x43)
    calls = {o.text("call_target_name") for o in operations(portable) if o.name == "custom_call"}
    assert {"chlo.top_k", "mhlo.topk"} & {*composites(portable), *calls}  # JAX before 0.10 calls it
    smallest = export(lambda x: lax.approx_min_k(x, 2, reduction_dimension=0), target=NO_XLA)(x43)
    values, indices = to_exported(smallest).call(x43)
    np.testing.assert_array_equal(values, x43[:2])
    np.testing.assert_array_equal(indices, [[0] * 3, [1] * 3])
    more = export(lambda x: lax.approx_max_k(x, 2, aggregate_to_topk=False), target=NO_XLA)(x43)
    assert more.out_avals[0].shape == (4, 3)


def test_several_devices_are_refused() -> None:
    with pytest.raises(UnsupportedByTargetError, match="spread over 8 devices, and TensorFlow's"):
        export(by_parts(), target=NO_XLA)(X)
    spread = export(by_parts())(X)
    with pytest.raises(UnsupportedByTargetError, match="spread over 8 devices, and TensorFlow's"):
        retarget(spread, NO_XLA)
