"""Exported: JAX's fields, types and calls around a portable function."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export as jax_export

import jax2tf_bridge as bridge
from jax2tf_bridge import to_exported
from jax2tf_bridge.errors import (
    FunctionError,
    GradientError,
    ModuleError,
    SerializationError,
    StructureError,
)
from jax2tf_bridge.jax_export import DisabledSafetyCheck, Exported, deserialize
from jax2tf_bridge.jax_export import export as export_as_jax
from tests.jax_export.calls import largest_difference
from tests.programs import PROGRAMS, Program
from tests.serialization.records import changed

x34 = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
w44 = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)

QUICK = {"control_flow", "sort_top_k_symbolic", "mlp_captured", "qr"}


def _on_cpu(f: Any, shapes: Any = None, **options: Any) -> Any:
    exporting = bridge.export(f, polymorphic_shapes=shapes, platforms=["cpu"], **options)
    return lambda *args: Exported(exporting(*args))


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(p, marks=() if p.name in QUICK else pytest.mark.complete, id=p.name)
        for p in PROGRAMS
    ],
)
def test_functions_for_tensorflow_give_their_values_in_jax(program: Program) -> None:
    assert largest_difference(program) <= program.tolerance


def test_approximate_top_k_is_exported_for_the_platform_of_the_process() -> None:
    exported = export_as_jax(jax.jit(lambda x: jax.lax.approx_max_k(x, 2)))(x34)
    assert exported.platforms == ("cpu",)
    assert deserialize(exported.serialize()).call(x34)[1].tolist() == [[3, 2]] * 3


@pytest.mark.parametrize("dtype", ["int2", "uint2"])
def test_two_bits_need_no_file_of_jax(dtype: str) -> None:
    x = jnp.ones(3, dtype)
    exported = export_as_jax(jax.jit(lambda x, y: (x + x, y * 2)))(x, np.float32(0))
    for made in (exported, deserialize(exported.serialize(vjp_order=1))):
        assert [a.dtype for a in made.in_avals] == [dtype, "float32"]
        double, _ = made.call(x, np.float32(3))
        assert (double.dtype, double.tolist()) == (x.dtype, (x + x).tolist())
        assert jax.grad(lambda y: made.call(x, y)[1])(3.0) == 2  # noqa: B023


@pytest.mark.parametrize("module", [jax_export, bridge.jax_export])
def test_the_constructor_takes_the_fields_of_jax(module: Any) -> None:
    original = module.export(jax.jit(lambda x, scale: {"y": jnp.sin(x) * scale}))(x34, 2.0)
    fields = {f.name: getattr(original, f.name) for f in dataclasses.fields(jax_export.Exported)}
    made = Exported(**fields)
    assert (made.fun_name, made.in_avals) == (original.fun_name, original.in_avals)
    again = deserialize(made.serialize(vjp_order=1))
    for exported in (made, again):
        np.testing.assert_allclose(exported.call(x34, 2.0)["y"], np.sin(x34) * 2, rtol=1e-6)
        slope = jax.grad(lambda x: jnp.sum(exported.call(x, 2.0)["y"]))(x34)  # noqa: B023
        np.testing.assert_allclose(slope, np.cos(x34) * 2, rtol=1e-6)
    np.testing.assert_allclose(bridge.to_tf(made)(x34, 2.0)["y"], np.sin(x34) * 2, rtol=1e-6)


def test_the_constructor_needs_a_function_or_every_field() -> None:
    with pytest.raises(FunctionError, match="Exported expected"):
        Exported()
    with pytest.raises(TypeError, match="in_tree"):
        Exported(fun_name="f")


def _layers(x: Any) -> Any:
    return jnp.tanh(x @ w44) @ w44


def test_captured_arrays_are_right_at_every_order_and_are_sent_once() -> None:
    exported = _on_cpu(_layers, "(b, _)")(np.ones((2, 64), np.float32))
    assert [c.aval.shape for c in exported.portable.lifted_constants] == [(64, 64)]
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 64)).astype(np.float32))

    def slope(f: Any) -> Any:
        return jax.jit(jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(f(x)))(x) ** 2)))

    np.testing.assert_allclose(exported.call(x), _layers(x), rtol=1e-4, atol=1e-4)
    of_exported = slope(exported.call)
    np.testing.assert_allclose(of_exported(x), slope(_layers)(x), rtol=1e-3, atol=1e-2)
    with jax.transfer_guard("disallow"):
        exported.call(x)
        of_exported(x)
        with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
            exported.call(np.asarray(x))


def test_captured_arrays_stay_beside_the_module_that_the_function_is_called_in() -> None:
    inner = _on_cpu(_layers, "(b, _)")(np.ones((2, 64), np.float32))
    outer = _on_cpu(lambda x: inner.call(x) * 2, "(n, _)")(np.ones((2, 64), np.float32))
    (constant,) = outer.portable.lifted_constants
    assert constant.digest == inner.portable.lifted_constants[0].digest
    assert len(outer.portable.module.data) < w44.nbytes
    x = np.random.default_rng(3).normal(size=(3, 64)).astype(np.float32)
    np.testing.assert_allclose(outer.call(x), 2 * _layers(x), rtol=1e-4, atol=1e-4)


def test_jax_has_one_object_for_a_function_and_one_for_its_vjp() -> None:
    portable = _on_cpu(jnp.sin)(x34).portable
    with ThreadPoolExecutor(8) as threads:
        barrier = threading.Barrier(8)

        def made(_: int) -> Any:
            barrier.wait()
            return to_exported(portable)

        exported = list(threads.map(made, range(8)))
    assert len(set(map(id, exported))) == 1
    vjp = to_exported(portable).vjp()
    assert vjp is to_exported(portable).vjp() is to_exported(portable.vjp())
    traces = []

    @jax.custom_jvp
    def counted(x: Any) -> Any:
        traces.append(x)
        return x * 2

    counted.defjvp(lambda primals, tangents: (counted(*primals), tangents[0] * 2))
    again = _on_cpu(counted)(x34)
    before = len(traces)
    for _ in range(3):
        jax.grad(lambda x: again.call(x).sum())(x34)
    assert len(traces) <= before + 1
    assert again.vjp() is again.vjp()


def test_what_jax_has_is_neither_pickled_nor_copied() -> None:
    exported = _on_cpu(jnp.sin)(x34)
    portable = exported.portable.with_vjp(1)
    data = pickle.dumps(portable)
    of_jax = to_exported(portable)
    assert pickle.dumps(portable) == data
    for other in (pickle.loads(data), copy.copy(portable), replace(portable, name="other")):
        assert to_exported(other) is not of_jax
        np.testing.assert_allclose(to_exported(other).call(x34), np.sin(x34), rtol=1e-6)
    for copied in (copy.copy(exported), pickle.loads(pickle.dumps(exported))):
        assert isinstance(copied, Exported)
        np.testing.assert_allclose(copied.call(x34), np.sin(x34), rtol=1e-6)


def test_fields_have_the_types_of_jax() -> None:
    def f(pair: Any, *, scale: Any) -> Any:
        return {"y": pair[0] * scale, "n": pair[1]}

    exported = export_as_jax(jax.jit(f))((x34, np.int32(2)), scale=np.float32(3))
    assert isinstance(exported, jax_export.Exported)
    in_tree: Any = exported.in_tree
    out_tree: Any = exported.out_tree
    assert in_tree == jax.tree.structure((((0, 0),), {"scale": 0}))
    assert in_tree.num_leaves == 3
    assert out_tree == jax.tree.structure({"y": 0, "n": 0})
    assert exported.in_avals[0].dtype == jnp.float32
    assert exported.in_avals[1] == jax.typeof(np.int32(2))
    assert all(isinstance(aval, jax.core.ShapedArray) for aval in exported.out_avals)
    assert repr(exported).startswith("Exported around PortableFunction f(pair[0]: float32[3,4]")
    assert str(exported) == "Exported(fun_name=f, ...)"
    with pytest.raises(AttributeError, match="'Exported' object has no attribute 'in_no_jax'"):
        _ = exported.in_no_jax


def test_it_is_made_of_a_portable_function() -> None:
    exported = export_as_jax(jax.jit(jnp.sin))(x34)
    assert Exported(exported.portable).portable is exported.portable
    given: Any = jax_export.export(jax.jit(jnp.sin))(x34)
    with pytest.raises(
        FunctionError,
        match=r"^Exported expected a PortableFunction\. Got: 'sin' .* from_exported\(exported\)",
    ):
        Exported(given)


def test_little_is_known_without_jaxs_form_of_it() -> None:
    portable = changed(_on_cpu(jnp.sin)(x34).portable, module=b"")
    exported = Exported(portable)
    assert (exported.fun_name, exported.platforms, exported.nr_devices) == ("sin", ("cpu",), 1)
    with pytest.raises(ModuleError, match="module of sin cannot be read"):
        _ = exported.in_avals


def test_numbers_keep_their_weak_types_in_this_process() -> None:
    def f(x: Any, scale: Any) -> Any:
        return x * scale, scale

    half = np.ones(3, jnp.bfloat16)
    exported = export_as_jax(jax.jit(f))(half, 2.0)
    assert [a.weak_type for a in (*exported.in_avals, *exported.out_avals)] == [
        *(False, True),
        *(False, True),
    ]
    product, same = exported.call(half, 2.0)
    assert (product.dtype, (same * half).dtype) == (jnp.bfloat16, jnp.bfloat16)
    assert not deserialize(exported.serialize()).in_avals[1].weak_type
    static = jax.jit(f, static_argnums=1)
    assert len(export_as_jax(static)(half, 2.0).in_avals) == 1


@pytest.mark.parametrize("transformation", [jax.jit, jax.grad], ids=["jit", "grad"])
def test_arguments_may_be_tracers(transformation: Any) -> None:
    found = []

    def outer(x: Any) -> Any:
        exported = export_as_jax(jax.jit(jnp.sin))(x)
        found.append(exported.in_avals)
        return exported.call(x)

    got = transformation(outer)(np.float32(2))
    assert found == [(jax.typeof(np.float32(2)),)]
    np.testing.assert_allclose(got, transformation(jnp.sin)(np.float32(2)), rtol=1e-6)


def test_other_names_and_structures_stay_with_the_portable_function() -> None:
    exported = export_as_jax(jax.jit(lambda x, y: x - y))(x34, x34)
    tree = jax.tree.structure((({"x": 0, "y": 0},), {}))
    checks = (DisabledSafetyCheck.platform(),)
    other = dataclasses.replace(
        exported, fun_name="other", in_tree=tree, disabled_safety_checks=checks
    )
    assert (other.fun_name, other.portable.name) == ("other", "other")
    assert other.portable.module.disabled_checks == (bridge.DisabledSafetyCheck.platform(),)
    np.testing.assert_allclose(other.call({"x": x34, "y": 2 * x34}), -x34)
    again = deserialize(other.serialize(vjp_order=1))
    assert (again.fun_name, again.in_tree) == ("other", tree)
    np.testing.assert_allclose(bridge.to_tf(other)({"x": x34, "y": 2 * x34}), -x34)
    with pytest.raises(StructureError, match=r"in_tree must have 2 leaves.* Got: 1 in "):
        dataclasses.replace(exported, in_tree=jax.tree.structure(((0,), {})))
    misspelt: Any = {"function_name": "other"}
    with pytest.raises(TypeError, match=r"no field 'function_name'. Its fields are: fun_name, "):
        dataclasses.replace(exported, **misspelt)


def test_what_was_replaced_is_replaced_again() -> None:
    def scaled(data: Any, *, scale: Any) -> Any:
        return data * scale

    exported = Exported(bridge.export(scaled, platforms=["cpu"])(x34, scale=np.float32(2)))
    again = replace(replace(exported, fun_name="g"), fun_name="h")
    assert again.portable.name == "h"
    assert again.portable.argument_names == exported.portable.argument_names == ("data",)


def test_another_module_makes_another_portable_function() -> None:
    exported, other = (export_as_jax(jax.jit(f))(x34) for f in (jnp.sin, jnp.cos))
    replaced = dataclasses.replace(
        exported, mlir_module_serialized=other.mlir_module_serialized, fun_name="replaced"
    )
    np.testing.assert_allclose(replaced.call(x34), np.cos(x34), rtol=1e-6)
    np.testing.assert_allclose(bridge.to_tf(replaced)(x34), np.cos(x34), rtol=1e-6)
    assert replaced.portable.name == "replaced"


def test_everything_that_takes_a_portable_function_takes_it(tmp_path: Path) -> None:
    exported = export_as_jax(jax.jit(jnp.sin))(x34)
    portable = exported.portable
    given: Any = exported
    np.testing.assert_allclose(bridge.to_tf(given)(x34), np.sin(x34), rtol=1e-6)
    assert bridge.serialize(given) == bridge.serialize(portable)
    assert bridge.serialize_exported(given) == bridge.serialize_exported(portable)
    bridge.write_function(tmp_path / "sin.jaxfn", given)
    assert bridge.read_function(tmp_path / "sin.jaxfn").name == "sin"
    assert bridge.from_exported(given) is portable
    assert bridge.to_exported(given) is to_exported(portable)
    assert bridge.retarget(given).module == portable.module
    bridge.save(tmp_path / "model", given)
    assert tf.saved_model.contains_saved_model(str(tmp_path / "model"))
    with pytest.raises(FunctionError, match=r"exported already: to_tf\(portable\)"):
        bridge.export(given)


def test_the_first_call_may_be_within_a_trace() -> None:
    exported = _on_cpu(lambda x: {"y": x * 2}, "(b, 4)", polymorphic_constraints=["b >= 2"])(x34)
    traced = jax.jit(jax.grad(lambda x: jnp.sum(exported.call(x)["y"])))(x34)
    np.testing.assert_allclose(traced, np.full_like(x34, 2))
    np.testing.assert_allclose(exported.call(x34[:2])["y"], x34[:2] * 2)
    with pytest.raises(ValueError, match=r"b >= 2"):
        exported.call(x34[:1])


def test_what_was_made_without_64_bits_has_them() -> None:
    with jax.enable_x64(True):
        exported = _on_cpu(jnp.sin, "(b,)")(x34[0].astype(np.float64))
    assert exported.in_avals[0].str_short() == "float64[b]"
    with jax.enable_x64(True):
        result = exported.call(x34[0].astype(np.float64))
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, np.sin(x34[0].astype(np.float64)), rtol=1e-12)


def test_bytes_hold_as_many_orders_as_asked_for() -> None:
    exported = export_as_jax(jax.jit(jnp.sin))(x34)
    exported.vjp()
    data = exported.serialize()
    assert isinstance(data, bytearray)
    assert data == bridge.serialize(exported.portable, vjp_order=0)
    assert deserialize(data).has_vjp() is False
    twice = deserialize(exported.serialize(vjp_order=2))
    last = twice.vjp().vjp()
    assert last.has_vjp() is False
    for error in (ValueError, GradientError):
        with pytest.raises(error, match=r"sin has no gradient: its file was written with"):
            last.vjp()
    with pytest.raises(SerializationError, match="VJP"):
        twice.serialize(3)
    with pytest.raises(ValueError, match="order"):
        exported.serialize(-1)


def test_the_modules_text_and_the_module_itself() -> None:
    exported = _on_cpu(_layers, "(b, _)")(np.ones((2, 64), np.float32))
    text = exported.mlir_module()
    assert "stablehlo.tanh" in text
    assert "@main(%arg0: tensor<?x64xf32>" in text
    if "serialized" not in inspect.signature(jax_export.Exported.mlir_module).parameters:
        return  # JAX 0.8 has the text alone
    with jax.interpreters.mlir.make_ir_context():
        module = exported.mlir_module(serialized=False)
        operations = [operation.operation.name for operation in module.body]
    assert set(operations) == {"func.func"}


def test_a_module_that_mlir_must_not_see_has_no_text() -> None:
    portable = pickle.loads(pickle.dumps(_on_cpu(jnp.sin)(x34).portable))
    damaged = Exported(
        changed(portable, module=portable.module.data[: len(portable.module.data) // 2])
    )
    with pytest.raises(ModuleError, match="module of sin cannot be read"):
        damaged.mlir_module()
    with pytest.raises(ModuleError, match="module of sin cannot be read"):
        damaged.call(x34)
    (result,) = portable.out_avals
    wrong = Exported(replace(portable, out_avals=(replace(result, dtype="float64"),)))
    with pytest.raises(ModuleError, match="does not match its portable function"):
        wrong.mlir_module()


def test_jaxs_archives_and_what_it_deserialized() -> None:
    def f(x: Any) -> Any:
        return jnp.linalg.qr(x)[1]

    x = jax.ShapeDtypeStruct((4, 4), np.float32)
    of_jax = jax_export.export(jax.jit(f), platforms=["cpu"])(x)
    square = np.random.default_rng(2).normal(size=(4, 4)).astype(np.float32)
    for exported in (
        deserialize(of_jax.serialize(vjp_order=1)),
        Exported(bridge.from_exported(of_jax)),
    ):
        np.testing.assert_allclose(np.abs(exported.call(square)), np.abs(f(square)), rtol=1e-4)
        got = jax.grad(lambda x: jnp.sum(exported.call(x) ** 2))(square)  # noqa: B023
        np.testing.assert_allclose(
            got, jax.grad(lambda x: jnp.sum(f(x) ** 2))(square), rtol=1e-3, atol=1e-4
        )
