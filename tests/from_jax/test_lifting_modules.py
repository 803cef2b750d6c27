"""Lifts constants out of StableHLO modules and puts them back: every dtype, odd modules."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax2tf_bridge as bridge
from jax2tf_bridge.bytecode import read_summary
from jax2tf_bridge.from_jax import ir, jax_compat
from jax2tf_bridge.from_jax.stablehlo import (
    PLACEHOLDER_TARGET,
    ConstantPool,
    StableHloModule,
    TakenArrays,
)
from jax2tf_bridge.portable import Aval

random = np.random.default_rng(0)
WEIGHTS = random.normal(size=(1024,)).astype(np.float32)
OTHERS = random.normal(size=(1024,)).astype(np.float32)

DTYPES = [
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
]


def _of(dtype: str) -> Any:
    """Makes an odd number of distinct elements."""
    values = random.integers(0, 2 if dtype == "bool" else 100, (4099, 3))
    if dtype.startswith("complex"):
        return (values - 1j * values[::-1]).astype(dtype)
    return values.astype(jnp.dtype(dtype))


def test_every_dtype_is_lifted_bit_by_bit() -> None:
    arrays = {dtype: _of(dtype) for dtype in DTYPES}

    def f(x: Any) -> Any:
        return {dtype: jnp.asarray(array) for dtype, array in arrays.items()}, x + 1

    with jax.enable_x64(True):
        portable = bridge.export(f, platforms=["cpu"])(np.ones(3, np.float32))
        lifted = {constant.aval: constant.data for constant in portable.lifted_constants}
        assert lifted == {Aval((4099, 3), d): a.tobytes() for d, a in arrays.items()}
        assert read_summary(portable.module.data).constant_bytes < 100
        got, _ = bridge.to_exported(portable).call(np.ones(3, np.float32))
        for dtype, array in arrays.items():
            assert got[dtype].dtype == array.dtype
            assert np.asarray(got[dtype]).tobytes() == array.tobytes(), dtype


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "float8_e5m2", "bool"])
def test_special_values_keep_their_bits(dtype: str) -> None:
    kind = jnp.dtype(dtype)
    values = [0, 1] if dtype == "bool" else [np.nan, -np.inf, np.inf, -0.0, 0.0, 1.0]
    array = np.resize(np.array(values).astype(kind), 5000)
    portable = bridge.export(lambda x: (jnp.asarray(array), x))(np.ones(3, np.float32))
    assert portable.lifted_constants[0].data == array.tobytes()
    got, _ = bridge.to_exported(portable).call(np.ones(3, np.float32))
    assert np.asarray(got).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float8_e4m3fnuz", "float8_e4m3b11fnuz"])
def test_dtypes_that_some_tensorflow_lacks_or_misreads_stay(dtype: str) -> None:
    array = random.integers(0, 7, 20_000).astype(getattr(ml_dtypes, dtype))

    def f(x: Any) -> Any:
        return jnp.asarray(array).astype(jnp.float32)[:3] + x

    portable = bridge.export(f)(np.ones(3, np.float32))
    assert portable.lifted_constants == ()
    assert read_summary(portable.module.data).constant_bytes >= 10_000
    np.testing.assert_array_equal(
        bridge.to_exported(portable).call(np.ones(3, np.float32)), 1 + array[:3].astype(np.float32)
    )


def _module(text: str) -> StableHloModule:
    """A module whose text may hold WEIGHTS and OTHERS, as constants."""
    for name, array in (("WEIGHTS", WEIGHTS), ("OTHERS", OTHERS)):
        constant = f'stablehlo.constant dense<"0x{array.tobytes().hex()}"> : tensor<1024xf32>'
        text = text.replace(name, constant)
    with jax_compat.make_ir_context():
        module = ir.Module.parse(text)
        return StableHloModule.read(jax_compat.serialize_module(module, "1.1.0"))


def _lifted(text: str) -> tuple[StableHloModule, list[bytes | memoryview | None]]:
    module = _module(text)
    return module, [c.data for c in module.lift_constants(ConstantPool().intern)]


def _left(module: StableHloModule) -> int:
    """Counts the bytes of constants that are left in a module; fails unless it is well-formed."""
    return read_summary(module.serialize((1, 1, 0))).constant_bytes


T = "tensor<1024xf32>"


def test_tokens_and_the_platform_index_stay_before_them() -> None:
    module, data = _lifted(
        f"""
        func.func public @main(%i: tensor<i32> {{jax.global_constant = "_platform_index"}},
            %t: !stablehlo.token, %x: {T}) -> (!stablehlo.token, {T}) {{
          %w = WEIGHTS
          %y = stablehlo.add %x, %w : {T}
          return %t, %y : !stablehlo.token, {T}
        }}"""
    )
    assert data == [WEIGHTS.tobytes()]
    assert module.main_types() == (
        ("tensor<i32>", "!stablehlo.token", T, T),
        ("!stablehlo.token", T),
    )
    assert _left(module) == 0
    module.embed_constants([WEIGHTS.tobytes()])
    assert module.main_types()[0] == ("tensor<i32>", "!stablehlo.token", T)
    assert _left(module) == WEIGHTS.nbytes


def test_they_are_handed_through_calls_and_loops() -> None:
    module, data = _lifted(
        f"""
        func.func public @main(%x: {T}) -> {T} {{
          %n = stablehlo.constant dense<true> : tensor<i1>
          %o = OTHERS
          %y = stablehlo.while(%c = %x) : {T}
            cond {{
              stablehlo.return %n : tensor<i1>
            }} do {{
              %z = func.call @outer(%c) : ({T}) -> {T}
              stablehlo.return %z : {T}
            }}
          %z = stablehlo.add %y, %o : {T}
          return %z : {T}
        }}
        func.func private @outer(%x: {T}) -> {T} {{
          %y = call @"<inner>"(%x) : ({T}) -> {T}
          %z = call @"<inner>"(%y) : ({T}) -> {T}
          return %z : {T}
        }}
        func.func private @"<inner>"(%x: {T} {{jax.some = 1 : i32}}) -> {T} {{
          %w = WEIGHTS
          %v = WEIGHTS
          %y = stablehlo.add %w, %v : {T}
          %z = stablehlo.add %x, %y : {T}
          return %z : {T}
        }}"""
    )
    assert data == [OTHERS.tobytes(), WEIGHTS.tobytes()]
    assert module.main_types()[0] == (T, T, T)
    assert _left(module) == 1


def test_functions_that_are_used_otherwise_keep_theirs() -> None:
    module, data = _lifted(
        f"""
        func.func public @main(%x: {T}) -> {T} {{
          %y = call @shared(%x) : ({T}) -> {T}
          %z = stablehlo.custom_call @kernel(%y) {{called_computations = [@used]}} : ({T}) -> {T}
          %o = OTHERS
          %u = stablehlo.add %z, %o : {T}
          return %u : {T}
        }}
        func.func private @used(%x: {T}) -> {T} {{
          %y = call @shared(%x) : ({T}) -> {T}
          return %y : {T}
        }}
        func.func private @shared(%x: {T}) -> {T} {{
          %w = WEIGHTS
          %y = stablehlo.add %x, %w : {T}
          return %y : {T}
        }}"""
    )
    assert data == [OTHERS.tobytes()]
    assert _left(module) == WEIGHTS.nbytes


def test_functions_that_are_called_by_what_is_not_called_keep_theirs() -> None:
    module, data = _lifted(
        f"""
        func.func public @main(%x: {T}) -> {T} {{
          %y = call @shared(%x) : ({T}) -> {T}
          return %y : {T}
        }}
        func.func private @left_over(%x: {T}) -> {T} {{
          %y = call @shared(%x) : ({T}) -> {T}
          return %y : {T}
        }}
        func.func private @shared(%x: {T}) -> {T} {{
          %w = WEIGHTS
          %y = stablehlo.add %x, %w : {T}
          return %y : {T}
        }}"""
    )
    assert data == []
    assert _left(module) == WEIGHTS.nbytes


def test_regions_that_take_nothing_from_outside_keep_theirs() -> None:
    """StableHLO allows no value from outside in the body of a reduction."""
    module, data = _lifted(
        f"""
        func.func public @main(%x: {T}) -> tensor<f32> {{
          %zero = stablehlo.constant dense<0.0> : tensor<f32>
          %o = OTHERS
          %u = stablehlo.add %x, %o : {T}
          %y = "stablehlo.reduce"(%u, %zero) ({{
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %w = WEIGHTS
            %s = stablehlo.slice %w [0:1] : ({T}) -> tensor<1xf32>
            %r = stablehlo.reshape %s : (tensor<1xf32>) -> tensor<f32>
            %c = func.call @scale(%r) : (tensor<f32>) -> tensor<f32>
            %d = stablehlo.add %a, %c : tensor<f32>
            %e = stablehlo.add %d, %b : tensor<f32>
            stablehlo.return %e : tensor<f32>
          }}) {{dimensions = array<i64: 0>}} : ({T}, tensor<f32>) -> tensor<f32>
          return %y : tensor<f32>
        }}
        func.func private @scale(%x: tensor<f32>) -> tensor<f32> {{
          %w = WEIGHTS
          %s = stablehlo.slice %w [1:2] : ({T}) -> tensor<1xf32>
          %r = stablehlo.reshape %s : (tensor<1xf32>) -> tensor<f32>
          %y = stablehlo.multiply %x, %r : tensor<f32>
          return %y : tensor<f32>
        }}"""
    )
    assert data == [OTHERS.tobytes()]
    assert _left(module) == WEIGHTS.nbytes + 4


def test_a_pool_gives_equal_arrays_one_object() -> None:
    pool = ConstantPool()
    text = f"""
        func.func public @main() -> {T} {{
          %w = WEIGHTS
          return %w : {T}
        }}"""
    first, second = (_module(text).lift_constants(pool.intern) for _ in range(2))
    assert first[0] is second[0]
    other = pool.intern((32, 32), "float32", memoryview(WEIGHTS.tobytes()))
    assert (first[0].name, other.name) == ("constant_0", "constant_1")
    assert re.fullmatch("[0-9a-f]{64}", other.digest)
    assert other.digest == first[0].digest


def _taken(array: np.ndarray) -> TakenArrays:
    """Arrays of a lowering that took one, with the number 0."""
    taken = TakenArrays()
    with jax_compat.make_ir_context(), ir.Location.unknown():
        body = ir.Module.create().body
        with ir.InsertionPoint(body):
            assert taken.take(array) is not None
    return taken


TAKEN = (
    f'stablehlo.custom_call @{PLACEHOLDER_TARGET}() {{backend_config = "0"}} '
    ": () -> tensor<1024xf32>"
)


def test_taken_arrays_are_shared_without_copies() -> None:
    text = f"""
        func.func public @main(%x: {T}) -> {T} {{
          %w = {TAKEN}
          %y = stablehlo.add %x, %w : {T}
          return %y : {T}
        }}"""
    pool, taken = ConstantPool(shares_memory=True), _taken(WEIGHTS)
    first, second = (
        _module(text).lift_constants(pool.intern, taken=taken, share=pool.share) for _ in range(2)
    )
    assert first == second
    assert first[0] is second[0]
    assert isinstance(first[0].data, memoryview)
    assert np.shares_memory(np.frombuffer(first[0].data, np.uint8), WEIGHTS)
    (copied,) = _module(text).lift_constants(ConstantPool().intern, taken=taken)
    assert (type(copied.data), copied.data) == (bytes, WEIGHTS.tobytes())
    assert copied == first[0]


def test_taken_arrays_are_put_back_where_no_value_may_come_from_outside() -> None:
    module = _module(
        f"""
        func.func private @unused() -> {T} {{
          %w = {TAKEN}
          return %w : {T}
        }}
        func.func public @main(%x: {T}) -> {T} {{
          return %x : {T}
        }}"""
    )
    assert module.lift_constants(ConstantPool().intern, taken=_taken(WEIGHTS)) == []
    assert _left(module) == WEIGHTS.nbytes


@pytest.mark.parametrize(
    "array",
    [WEIGHTS[:8], np.full(2048, 7.0, np.float32), np.broadcast_to(WEIGHTS, (2, 1024))],
    ids=["small", "repeated", "broadcast"],
)
def test_arrays_that_jax_writes_itself_are_not_taken(array: np.ndarray) -> None:
    assert TakenArrays().take(array) is None


def test_captured_arrays_are_in_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX would copy, write and read the module several times with them."""
    sizes: list[int] = []
    plain = StableHloModule.__init__

    def measured(self: StableHloModule, module: Any, **options: Any) -> None:
        sizes.append(len(jax_compat.write_bytecode(module)))
        plain(self, module, **options)

    monkeypatch.setattr(StableHloModule, "__init__", measured)
    weights = np.resize(WEIGHTS, (64, 1024))

    def f(x: Any) -> Any:
        return jax.jit(lambda y: y @ weights)(x) + jnp.asarray(weights).sum()

    portable = bridge.export(f)(np.ones((3, 64), np.float32))
    portable.vjp()
    assert sizes
    assert max(sizes) < weights.nbytes / 10
    assert {c.aval.shape for c in portable.lifted_constants} == {(64, 1024)}
