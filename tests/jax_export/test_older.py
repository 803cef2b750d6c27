"""Names of jax.experimental.export, and the questions about dimensions."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jax2tf_bridge as bridge
from jax2tf_bridge import jax_export as export
from jax2tf_bridge.errors import (
    DTypeError,
    FileFormatError,
    FunctionError,
    ShapeError,
    StructureError,
    TargetError,
    UnsupportedByTargetError,
)

x34 = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


class _Declared:
    """An argument that only a function of its own knows the shape of."""

    def __init__(self, *sizes: int | None) -> None:
        self.sizes = sizes


def _texts(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda s: f"{s.dtype}{[*map(str, s.shape)]}", tree)


def test_a_specification_of_one_argument() -> None:
    spec = export.poly_spec((None, 28, 3), np.float32, "(2*b, _, ...)")
    assert isinstance(spec, jax.ShapeDtypeStruct)
    assert _texts(spec) == "float32['2*b', '28', '3']"
    assert export.is_symbolic_dim(spec.shape[0])
    assert _texts(export.poly_spec((3, 4), "int32", None)) == "int32['3', '4']"
    assert _texts(export.poly_spec((None, 4), "int32", ("b", ...))) == "int32['b', '4']"
    scope = export.SymbolicScope(("b >= 4",))
    one, other = (export.poly_spec((None,), "float32", text, scope=scope) for text in ("b", "b+1"))
    assert one.shape[0] + 1 == other.shape[0]


@pytest.mark.parametrize(
    ("sizes", "text", "problem"),
    [
        ((None, 3), "b, 4", "expected size 3 for dimension 1, .* but found 4"),
        ((None, 3), None, r"dimension 0 .* is not known: name a variable"),
        ((3,), "b, c", "expected 1 dimension, .* but found more"),
        ((3,), "b +", "column"),
    ],
)
def test_a_specification_that_does_not_fit(sizes: Any, text: Any, problem: str) -> None:
    with pytest.raises(ShapeError, match=f"poly_spec for an argument of shape .*{problem}"):
        export.poly_spec(sizes, "float32", text)


def test_a_specification_that_is_no_text() -> None:
    with pytest.raises(StructureError, match=r"argument of shape \(3,\) must be"):
        export.poly_spec((3,), "float32", 3)
    with pytest.raises(DTypeError, match=r"arg_dtype must be a dtype of JAX, .* Got: 'flot32'"):
        export.poly_spec((None,), "flot32", "b")


def test_specifications_of_a_tree_share_their_variables() -> None:
    args = {"x": x34, "pair": (2.0, [x34[:, 0], None])}
    specs = export.poly_specs(args, {"x": "b, _", "pair": (None, "b")})
    expected = {
        "x": "float32['b', '4']",
        "pair": ("float32[]", ["float32['b']", None]),
    }
    assert _texts(specs) == expected
    exported = export.export(jax.jit(lambda x, y: x * y))(*export.poly_specs((x34, x34), "b, ..."))
    np.testing.assert_allclose(exported.call(x34[:2], x34[:2]), x34[:2] ** 2, rtol=1e-6)
    assert export.args_specs is export.poly_specs


def test_specifications_of_arguments_as_a_list() -> None:
    specs = export.poly_specs((x34, {"y": x34}), ["b, _", None])
    assert _texts(specs) == ("float32['b', '4']", {"y": "float32['3', '4']"})


def test_shapes_by_a_function_of_the_users() -> None:
    def declared(leaf: Any) -> Any:
        return leaf.sizes, jnp.float32

    specs = export.poly_specs([_Declared(None, 3)], "b, _", get_shape_and_dtype=declared)
    assert _texts(specs) == ["float32['b', '3']"]
    assert export.shape_and_dtype_jax_array(jnp.ones((2, 3))) == ((2, 3), np.dtype("float32"))
    assert export.shape_and_dtype_jax_array(3) == ((), np.dtype("int32"))
    assert export.shape_and_dtype_jax_array(specs[0])[0] == specs[0].shape
    with pytest.raises(DTypeError, match="must be an array"):
        export.shape_and_dtype_jax_array("text")


def test_specifications_of_another_structure() -> None:
    with pytest.raises(StructureError, match=r"is \{'y': 'b'\}, which is not a prefix"):
        export.poly_specs({"x": x34}, {"y": "b"})


def test_specifications_of_several_scopes_go_together_in_the_bridge() -> None:
    specs = [export.poly_spec((None, 4), "float32", "b, _") for _ in range(2)]
    with pytest.raises(ValueError, match="mixing of symbolic scopes"):
        jax_export.export(jax.jit(jnp.add))(*specs)
    assert str(export.export(jax.jit(jnp.add))(*specs).out_avals[0]) == "float32[b,4]"


def test_functions_in_the_place_of_methods() -> None:
    exported = export.export(jax.jit(jnp.sin))(x34)
    np.testing.assert_allclose(export.call(exported.portable)(x34), np.sin(x34), rtol=1e-6)
    for call in (export.call, export.call_exported):
        np.testing.assert_allclose(call(exported)(x34), np.sin(x34), rtol=1e-6)
        with pytest.raises(FunctionError, match=r"call expected a PortableFunction"):
            call(jnp.sin)  # type: ignore[arg-type]
    again = export.deserialize(export.serialize(exported, vjp_order=1))
    assert again.vjp().has_vjp() is False
    with pytest.raises(FunctionError, match=r"serialize expected a PortableFunction"):
        export.serialize(jnp.sin)  # type: ignore[arg-type]
    assert export.default_lowering_platform() == export.default_export_platform() == "cpu"
    versions = (
        export.minimum_supported_serialization_version,
        export.maximum_supported_serialization_version,
    )
    assert versions[0] <= exported.calling_convention_version <= versions[1]


def test_arguments_of_older_releases() -> None:
    several = export.export(jax.jit(jnp.sin), lowering_platforms=("tpu", "cpu"))(x34)
    assert several.platforms == several.lowering_platforms == ("tpu", "cpu")
    one = export.export(jax.jit(jnp.sin), lowering_platform="tpu")(x34)
    assert (one.platforms, one.lowering_platform) == (("tpu",), "tpu")
    assert one.strict_checks
    assert not one.module_uses_dim_vars
    assert one.xla_call_module_version == one.calling_convention_version
    assert one.in_shardings == one.out_shardings == (None,)
    with pytest.raises(
        TargetError,
        match="export got platforms and lowering_platform, which are names of one argument",
    ):
        export.export(jnp.sin, platforms=["cpu"], lowering_platform="cpu")


def test_checks_of_every_custom_call() -> None:
    def f(x: Any) -> Any:
        return jax.ffi.ffi_call("a_call", jax.ShapeDtypeStruct((3, 4), np.float32))(x)

    every = export.DisabledSafetyCheck.custom_call("ALL")
    allowed = export.export(jax.jit(f), disabled_checks=[every])(x34)
    assert "a_call" in allowed.mlir_module()
    assert allowed.portable.module.disabled_checks == (
        bridge.DisabledSafetyCheck.custom_call("ALL"),
    )
    assert bridge.retarget(allowed.portable).tensorflow_releases
    unchecked = export.export(jax.jit(f), lowering_platform="tpu", strict_checks=False)(x34)
    assert not unchecked.strict_checks
    assert export.DisabledSafetyCheck.platform() in unchecked.disabled_safety_checks
    with pytest.raises(UnsupportedByTargetError, match="'a_call'"):
        export.export(jax.jit(f), disabled_checks=[export.DisabledSafetyCheck.platform()])(x34)


def test_checks_that_the_bridge_alone_has_are_of_the_type_of_jax() -> None:
    check = export.DisabledSafetyCheck.debug_effects()
    assert isinstance(check, jax_export.DisabledSafetyCheck)

    def printing(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x

    exported = export.export(jax.jit(printing), disabled_checks=[check])(x34)
    assert exported.portable.module.disabled_checks == (bridge.DisabledSafetyCheck.debug_effects(),)
    assert str(export.DisabledSafetyCheck.shardings()) == "shardings"


def test_bounds_of_dimensions_hold_and_are_no_wider_than_those_of_jax() -> None:
    b, c = export.symbolic_shape("b, c", constraints=["b >= 3", "c <= 7", "b <= c"])
    of_jax = getattr(jax_export, "symbolic_dim_bounds", None)
    for dimension, closest in ((b, [3, 7]), (2 * b + c, [9, 21]), (b % 4, [0, 3]), (c - b, [0, 4])):
        lower, upper = export.symbolic_dim_bounds(dimension)
        assert [lower, upper] == closest
        if of_jax is not None:
            theirs = of_jax(dimension)
            assert theirs[0] <= lower
            assert upper <= theirs[1]
    assert export.symbolic_dim_bounds(5) == (5, 5)
    struct = jax.ShapeDtypeStruct(export.symbolic_shape("b + 1"), np.float32)
    portable = export.export(jax.jit(jnp.sin))(struct).portable
    assert export.symbolic_dim_bounds(portable.in_avals[0].shape[0]) == (2, math.inf)


def test_what_export_refuses() -> None:
    with pytest.raises(FunctionError, match="export expected a JAX function"):
        export.export(3)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match=r"unknown platform 'tpuu'\. Did you mean tpu"):
        export.export(jnp.sin, platforms=["tpuu"])
    with pytest.raises(TargetError, match=r"platforms must be a sequence of .* Got: 'cpu'"):
        export.export(jnp.sin, platforms="cpu")
    with pytest.raises(FileFormatError):
        export.deserialize(b"neither of the two formats")
