"""The names of jax.export.Exported on records: calls in JAX, and what is kept for them."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jax2tf_bridge as bridge
from jax2tf_bridge import Sharding, to_exported
from jax2tf_bridge._exported_surface import CallableTruth
from tests.fresh_process import run_python
from tests.jax_export.calls import largest_difference
from tests.programs import PROGRAMS, Program

x34 = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
w44 = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)

QUICK = {"control_flow", "sort_top_k_symbolic", "mlp_captured", "qr"}


def _on_cpu(f: Any, shapes: Any = None, **options: Any) -> Any:
    return bridge.export(f, polymorphic_shapes=shapes, platforms=["cpu"], **options)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(p, marks=() if p.name in QUICK else pytest.mark.complete, id=p.name)
        for p in PROGRAMS
    ],
)
def test_records_for_tensorflow_give_the_functions_values_in_jax(program: Program) -> None:
    assert largest_difference(program) <= program.tolerance


def _layers(x: Any) -> Any:
    return jnp.tanh(x @ w44) @ w44


def test_captured_arrays_are_right_at_every_order_and_are_sent_once() -> None:
    record = _on_cpu(_layers, "(b, _)")(np.ones((2, 64), np.float32))
    assert [c.aval.shape for c in record.lifted_constants] == [(64, 64)]
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 64)).astype(np.float32))

    def slope(f: Any) -> Any:
        return jax.jit(jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(f(x)))(x) ** 2)))

    np.testing.assert_allclose(record.call(x), _layers(x), rtol=1e-4, atol=1e-4)
    of_record = slope(record.call)
    np.testing.assert_allclose(of_record(x), slope(_layers)(x), rtol=1e-3, atol=1e-2)
    with jax.transfer_guard("disallow"):
        record.call(x)
        of_record(x)
        with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
            record.call(np.asarray(x))


def test_captured_arrays_stay_beside_the_module_that_the_record_is_called_in() -> None:
    inner = _on_cpu(_layers, "(b, _)")(np.ones((2, 64), np.float32))
    outer = _on_cpu(lambda x: inner.call(x) * 2, "(n, _)")(np.ones((2, 64), np.float32))
    assert outer.lifted_constants[0].digest == inner.lifted_constants[0].digest
    assert len(outer.module) < w44.nbytes
    x = np.random.default_rng(3).normal(size=(3, 64)).astype(np.float32)
    np.testing.assert_allclose(outer.call(x), 2 * _layers(x), rtol=1e-4, atol=1e-4)


def test_jax_has_one_object_for_a_record_and_one_for_its_vjp() -> None:
    record = _on_cpu(jnp.sin)(x34)
    with ThreadPoolExecutor(8) as threads:
        barrier = threading.Barrier(8)

        def made(_: int) -> Any:
            barrier.wait()
            return to_exported(record)

        exported = list(threads.map(made, range(8)))
    assert len(set(map(id, exported))) == 1
    assert to_exported(record).vjp() is to_exported(record).vjp() is to_exported(record.vjp())
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


def test_what_jax_has_is_neither_pickled_nor_copied() -> None:
    record = _on_cpu(jnp.sin)(x34).with_vjp(1)
    data = pickle.dumps(record)
    exported = to_exported(record)
    assert pickle.dumps(record) == data
    for other in (pickle.loads(data), copy.copy(record), replace(record, name="other")):
        assert to_exported(other) is not exported
        np.testing.assert_allclose(other.call(x34), np.sin(x34), rtol=1e-6)
    assert to_exported(replace(record, name="other")).fun_name == "other"


def test_the_first_call_may_be_within_a_trace() -> None:
    record = _on_cpu(lambda x: {"y": x * 2}, "(b, 4)", polymorphic_constraints=["b >= 2"])(x34)
    traced = jax.jit(jax.grad(lambda x: jnp.sum(record.call(x)["y"])))(x34)
    np.testing.assert_allclose(traced, np.full_like(x34, 2))
    np.testing.assert_allclose(record.call(x34[:2])["y"], x34[:2] * 2)
    with pytest.raises(ValueError, match=r"b >= 2"):
        record.call(x34[:1])


def test_what_was_made_without_64_bits_has_them() -> None:
    with jax.enable_x64(True):
        record = _on_cpu(jnp.sin, "(b,)")(x34[0].astype(np.float64))
    assert str(to_exported(record).in_avals[0]) == "float64[b]"
    with jax.enable_x64(True):
        result = record.call(x34[0].astype(np.float64))
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, np.sin(x34[0].astype(np.float64)), rtol=1e-12)


def test_has_vjp_is_a_property_and_a_method() -> None:
    record = _on_cpu(jnp.sin)(x34)
    without = record.with_vjp(0)
    assert record.has_vjp
    assert record.has_vjp() is True
    assert not without.has_vjp
    assert without.has_vjp() is False
    assert repr([record.has_vjp, without.has_vjp]) == "[True, False]"
    assert f"{without.has_vjp}" == "False"
    assert {record.has_vjp, True} == {True}
    assert record.has_vjp == CallableTruth(1) != without.has_vjp


def test_bytes_hold_as_many_orders_as_asked_for() -> None:
    record = bridge.export(jnp.sin)(x34)
    record.vjp()
    data = record.serialize()
    assert isinstance(data, bytearray)
    assert data == bridge.serialize(record, vjp_order=0)
    assert not bridge.deserialize(data).has_vjp
    twice = bridge.deserialize(record.serialize(vjp_order=2))
    assert twice.vjp().vjp().has_vjp() is False
    with pytest.raises(bridge.SerializationError, match="VJP"):
        twice.serialize(3)
    with pytest.raises(ValueError, match="order"):
        record.serialize(-1)


def test_the_modules_text_and_the_module_itself() -> None:
    record = _on_cpu(_layers, "(b, _)")(np.ones((2, 64), np.float32))
    text = record.mlir_module()
    assert "stablehlo.tanh" in text
    assert "tensor<?x64xf32>, %arg1: tensor<64x64xf32>" in text
    assert record.mlir_module_serialized == record.module
    with jax.interpreters.mlir.make_ir_context():
        module = record.mlir_module(serialized=False)
        operations = [operation.operation.name for operation in module.body]
    assert set(operations) == {"func.func"}


def test_a_module_that_mlir_must_not_see_has_no_text() -> None:
    record = pickle.loads(pickle.dumps(_on_cpu(jnp.sin)(x34)))
    damaged = replace(record, module=record.module[: len(record.module) // 2])
    with pytest.raises(bridge.ModuleError, match="module of sin cannot be read"):
        damaged.mlir_module()
    with pytest.raises(bridge.ModuleError, match="module of sin cannot be read"):
        damaged.call(x34)
    wrong = replace(record, out_avals=(replace(record.out_avals[0], dtype="float64"),))
    with pytest.raises(bridge.ModuleError, match="does not match its record"):
        wrong.mlir_module()


def test_shardings_in_xlas_form_need_a_mesh() -> None:
    record = _on_cpu(jnp.sin)(x34)
    assert record.in_shardings_jax() == record.out_shardings_jax() == (None,)
    in_xlas_form = replace(record, nr_devices=8, in_shardings=(Sharding(hlo=b"\x08\x03"),))
    with pytest.raises(bridge.ShardingError, match=r"sin.in_shardings_jax: .* of 8 devices"):
        in_xlas_form.in_shardings_jax()


def test_jaxs_archives_and_what_it_deserialized() -> None:
    def f(x: Any) -> Any:
        return jnp.linalg.qr(x)[1]

    x = jax.ShapeDtypeStruct((4, 4), np.float32)
    exported = jax_export.export(jax.jit(f), platforms=["cpu"])(x)
    square = np.random.default_rng(2).normal(size=(4, 4)).astype(np.float32)
    for record in (
        bridge.deserialize(exported.serialize(vjp_order=1)),
        bridge.from_exported(exported),
    ):
        np.testing.assert_allclose(np.abs(record.call(square)), np.abs(f(square)), rtol=1e-4)
        got = jax.grad(lambda x: jnp.sum(record.call(x) ** 2))(square)  # noqa: B023
        np.testing.assert_allclose(
            got, jax.grad(lambda x: jnp.sum(f(x) ** 2))(square), rtol=1e-3, atol=1e-4
        )


def test_what_needs_no_jax_works_without_it(tmp_path: Any) -> None:
    record = bridge.export(jnp.sin, polymorphic_shapes="(b, 4)")(x34)
    path = tmp_path / "sine.jaxfn"
    path.write_bytes(record.serialize(vjp_order=1))
    code = """
    import sys
    from jax2tf_bridge import MissingDependencyError, read_function
    record = read_function(sys.argv[1])
    print(record.fun_name, record.has_vjp(), record.disabled_safety_checks)
    print(len(record.serialize(1)), record.mlir_module_serialized == record.module)
    for name in ("call", "mlir_module", "in_shardings_jax", "in_shardings_hlo"):
        try:
            value = getattr(record, name)
            value()
        except MissingDependencyError as error:
            assert isinstance(error, ImportError)
            print(error)
    """
    first, second, *errors = run_python(code, str(path), without_jax=True).splitlines()
    assert first == "sin True ()"
    assert second == f"{path.stat().st_size} True"
    assert len(errors) == 4
    assert errors[0] == (
        "PortableFunction.call needs JAX, which is not installed here. "
        "Install it with: pip install 'jax2tf-bridge[jax]'"
    )
