"""from_exported(): what jax.export exported or deserialized, as portable functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jax2tf_bridge as bridge
from jax2tf_bridge import PortableFunction, export, from_exported, to_exported
from jax2tf_bridge.errors import FunctionError, NotExportableError, UnsupportedByTargetError
from jax2tf_bridge.from_jax.arguments import portable_aval
from jax2tf_bridge.from_jax.stablehlo import StableHloModule
from shape_poly import parse_dimension

x34 = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def test_fields_of_an_exported_function() -> None:
    def f(p: Any, x: Any, *, scale: Any) -> Any:
        return {"y": x @ p["w"] * scale}

    scope = jax_export.SymbolicScope(("b >= 2",))
    x = jax.ShapeDtypeStruct(jax_export.symbolic_shape("b, 4", scope=scope), np.float32)
    p = {"w": jax.ShapeDtypeStruct((4, 5), np.float32)}
    exported = jax_export.export(jax.jit(f), platforms=["cpu", "tpu"])(p, x, scale=1.5)
    portable = from_exported(exported)
    assert portable.name == "f"
    assert portable.in_paths() == ("x0['w']", "x1", "scale")
    assert [str(a) for a in portable.in_avals] == ["float32[4,5]", "float32[b,4]", "float32[]"]
    assert portable.out_avals[0].shape == (parse_dimension("b"), 5)
    assert str(portable.out_tree) == "{'y': *}"
    assert portable.platforms == ("cpu", "tpu")
    assert portable.constraints == ("b >= 2",)
    assert portable.constraints_known
    assert portable.module.uses_shape_polymorphism
    assert portable.module.stablehlo_version == (0, 14, 24)
    assert portable.gradient.vjp is None
    vjp = portable.vjp()
    names = ("primal_0", "primal_1", "primal_2", "cotangent_0")
    assert vjp.argument_names == names
    exported = jax_export.export(jax.jit(f), platforms=["cpu", "tpu"])(p, x, scale=1.5)
    assert bridge.deserialize(exported.serialize(vjp_order=1)).vjp().argument_names == names
    assert [str(a) for a in vjp.out_avals] == [str(a) for a in portable.in_avals]
    assert vjp.target == portable.target


def test_constraints_of_a_deserialized_function_are_those_that_its_module_checks() -> None:
    scope = jax_export.SymbolicScope(("b >= 2",))
    x = jax.ShapeDtypeStruct(jax_export.symbolic_shape("b, 4", scope=scope), np.float32)
    data = jax_export.export(jax.jit(jnp.sin))(x).serialize()
    portable = from_exported(jax_export.deserialize(data))
    assert portable.constraints == ("b >= 2",)
    # There may have been more.
    assert not portable.constraints_known
    assert not bridge.deserialize(data).constraints_known
    free = jax.ShapeDtypeStruct(jax_export.symbolic_shape("b, 4"), np.float32)
    portable = from_exported(jax_export.export(jax.jit(jnp.sin))(free))
    assert not portable.constraints_known
    assert not portable.has_vjp or portable.vjp().constraints == ()


def _custom_calls(portable: PortableFunction) -> list[str]:
    return [
        call.name for call in StableHloModule.read(portable.module.data).describe_custom_calls()
    ]


@pytest.mark.costly
@pytest.mark.parametrize(
    "platforms", [pytest.param(("cpu",), marks=pytest.mark.slow), ("cpu", "cuda", "rocm")], ids=str
)
def test_solvers_in_an_exported_function_become_stablehlo(platforms: tuple[str, ...]) -> None:
    def f(a: Any, y: Any) -> Any:
        return jnp.linalg.solve(a, y)

    a, y = np.eye(4, dtype=np.float32) * 3 + x34[:1], x34.T.copy()
    exported = jax_export.export(jax.jit(f), platforms=platforms)(a, y)
    libraries = {"cpu": "lapack_s", "cuda": "cusolver_", "rocm": "hipsolver_"}
    called = {
        c.name
        for c in StableHloModule.read(exported.mlir_module_serialized).describe_custom_calls()
    }
    assert {f"{libraries[platform]}getrf_ffi" for platform in platforms} <= called
    portable = from_exported(exported)
    assert portable.platforms == platforms
    assert _custom_calls(portable) == _custom_calls(portable.vjp()) == []
    again = to_exported(portable)
    np.testing.assert_allclose(again.call(a, y), f(a, y), rtol=1e-4)
    got = jax.grad(lambda a: jnp.sum(again.call(a, y)))(a)
    np.testing.assert_allclose(got, jax.grad(lambda a: jnp.sum(f(a, y)))(a), rtol=1e-4, atol=1e-5)


def test_what_has_no_form_in_stablehlo_says_so() -> None:
    def f(x: Any) -> Any:
        return jax.lax.linalg.tridiagonal_solve(x[0], x[1], x[2], x)

    x = np.ones((3, 3), np.float32)
    exported = jax_export.export(jax.jit(f), platforms=["cuda"])(x)
    with pytest.raises(UnsupportedByTargetError, match=r"'cusparse_gtsv2.*no equivalent") as e:
        from_exported(exported)
    assert e.value.operation is not None
    assert e.value.operation.startswith("cusparse_gtsv2")


def test_where_an_array_lies_is_kept() -> None:
    space = getattr(jax.memory, "Space", None) if hasattr(jax, "memory") else None
    if space is None:
        pytest.skip("this JAX has no public name of memory spaces")
    aval = jax.core.ShapedArray((2,), np.dtype(np.float32), memory_space=space.Host)
    assert portable_aval(aval).memory_space == "host"
    assert portable_aval(jax.ShapeDtypeStruct((2,), np.float32)).memory_space == "device"


def test_what_is_no_function_of_jax_or_no_function() -> None:
    portable = export(jnp.sin)(np.ones(2, np.float32))
    with pytest.raises(FunctionError, match=r"^from_exported expected a jax\.export\.Exported, wh"):
        from_exported(portable)  # type: ignore[arg-type]
    with pytest.raises(FunctionError, match=r"^to_exported expected a PortableFunction"):
        to_exported(to_exported(portable))  # type: ignore[arg-type]


class _Counted:
    """An effect that equals only itself."""


class _Named:
    """An effect whose constructor needs an argument."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize("effect", [_Counted(), _Named("a")], ids=["no ==", "an argument"])
@pytest.mark.parametrize("field", ["ordered_effects", "unordered_effects"])
def test_effects_that_nobody_can_make_anew(effect: Any, field: str) -> None:
    changed: dict[str, Any] = {field: (effect,)}
    exported = replace(jax_export.export(jax.jit(jnp.sin))(np.float32(1)), **changed)
    name = type(effect).__name__
    with pytest.raises(
        NotExportableError,
        match=rf"^sin has the effect .*test_from_exported\.{name}, which cannot be recreated "
        rf"when the function is read, because {name}\(\) does not return an equal object\. Give "
        r"the class a constructor without arguments, and __eq__ and __hash__\.$",
    ):
        bridge.from_exported(exported)
