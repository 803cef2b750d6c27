"""Large arrays that a function captured become arguments of its module, wherever they hide."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax2tf_bridge as bridge
from jax2tf_bridge import PortableFunction, Target
from jax2tf_bridge.bytecode import read_main_types, read_summary
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax.stablehlo import MIN_LIFTED_BYTES
from jax2tf_bridge.portable import LiftedConstant, are_types_checked
from tests.sampling import sampled

SIZE = 32
random = np.random.default_rng(0)


def _matrix() -> Any:
    return random.normal(size=(SIZE, SIZE), scale=0.2).astype(np.float32)


A, B, C = _matrix(), _matrix(), _matrix()
X = random.normal(size=(3, SIZE)).astype(np.float32)


def top_level(x: Any) -> Any:
    return jnp.tanh(x @ A) + x @ B


def own_jit(x: Any) -> Any:
    inner = jax.jit(lambda y: jnp.sin(y @ A))
    outer = jax.jit(lambda y: inner(y) @ B + inner(y + 1))
    return outer(x) + inner(x)


def scan(x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        new = jnp.tanh(carry @ A + row)
        return new, jnp.sum(new @ B)

    return jax.lax.scan(body, x, C)


def while_loop(x: Any) -> Any:
    inner = jax.jit(lambda y: y @ B)

    def more(carry: Any) -> Any:
        return (carry[0] < 4) & (jnp.sum(jnp.dot(A, carry[1].T)) < 1e3)

    return jax.lax.while_loop(more, lambda c: (c[0] + 1, inner(jnp.tanh(c[1] @ A))), (0, x))


def cond(x: Any) -> Any:
    return jax.lax.cond(jnp.sum(x) > 0, lambda y: y @ A, lambda y: jnp.sin(y @ B) * 2, x)


def switch(x: Any) -> Any:
    branches = [lambda y, m=m: jnp.sin(y @ m) for m in (A, B, C)]
    return jax.lax.switch(jnp.argmax(x[0, :3]), branches, x)


def mapped(x: Any) -> Any:
    return jax.lax.map(lambda row: jnp.sin(row @ A), x)


def vmapped(x: Any) -> Any:
    return jax.vmap(lambda row: jax.jit(lambda r: jnp.sin(A @ r))(row))(x)


def remat(x: Any) -> Any:
    return jax.checkpoint(lambda y: jnp.sin(jnp.sin(y @ A) @ B))(x)


@jax.custom_vjp
def _with_rule(x: Any) -> Any:
    return x @ A


def _forward(x: Any) -> Any:
    return x @ A, jnp.sin(x @ B)


def _backward(residual: Any, cotangent: Any) -> Any:
    return (cotangent @ C + residual,)


_with_rule.defvjp(_forward, _backward)


def custom_vjp(x: Any) -> Any:
    return jnp.sin(_with_rule(x))


@jax.custom_jvp
def _with_tangent(x: Any) -> Any:
    return x @ A


@_with_tangent.defjvp
def _tangent(primals: Any, tangents: Any) -> Any:
    return _with_tangent(primals[0]), tangents[0] @ B


def custom_jvp(x: Any) -> Any:
    return jnp.sin(_with_tangent(x))


def gathered(x: Any) -> Any:
    return jnp.asarray(A)[jnp.argmax(x, axis=1)] * x


def reduced(x: Any) -> Any:
    return jnp.sort(x @ B, axis=1) + jnp.max(A + x[0], axis=0)


def several_results(x: Any) -> Any:
    return {"a": x @ A, "rest": (B @ x.T, jnp.sum(x))}


# The arrays that the module of each program takes, and those that its VJP takes.
PROGRAMS: list[tuple[Callable[..., Any], Sequence[Any], Sequence[Any]]] = [
    (top_level, [A, B], [A, B]),
    (own_jit, [A, B], [A, B]),
    (scan, [A, B, C], [A, B, C]),
    (cond, [A, B], [A, B]),
    (switch, [A, B, C], [A, B, C]),
    (mapped, [A], [A]),
    (vmapped, [A], [A]),
    (remat, [A, B], [A, B]),
    (custom_vjp, [A], [A, B, C]),
    (custom_jvp, [A], [A, B]),
    (gathered, [A], [A]),
    (reduced, [A, B], [A, B]),
    (several_results, [A, B], [A, B]),
]
WITH_IDS = pytest.mark.parametrize(
    ("f", "arrays", "of_vjp"), PROGRAMS, ids=[f.__name__ for f, _, _ in PROGRAMS]
)


def _holds(portable: PortableFunction, arrays: Sequence[Any]) -> None:
    """Checks that the module takes these arrays, and has none left."""
    assert {c.data for c in portable.lifted_constants} == {a.tobytes() for a in arrays}
    assert len(portable.lifted_constants) == len(arrays)
    assert all(
        constant.size < MIN_LIFTED_BYTES
        for constant in read_summary(portable.module.data).largest_constants
    )
    inputs, _ = read_main_types(portable.module.data)
    kept = len(portable.module.kept_arguments)
    several = len(portable.platforms) > 1
    assert len(inputs) == several + kept + len(arrays)
    for constant, kind in zip(portable.lifted_constants, inputs[several + kept :], strict=True):
        assert kind.startswith(f"tensor<{'x'.join(map(str, constant.aval.shape))}x")


def _same(got: Any, wanted: Any) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), got, wanted)


def _total(f: Callable[..., Any]) -> Callable[..., Any]:
    def total(*args: Any) -> Any:
        leaves = jax.tree.leaves(f(*args))
        return sum(jnp.sum(y * y) for y in leaves if jnp.issubdtype(y.dtype, jnp.floating))

    return total


def _runs(portable: PortableFunction, f: Callable[..., Any], *args: Any) -> None:
    """Values and first gradients are those of the function."""
    exported = bridge.to_exported(portable)
    got, expected = (jax.jit(_with_gradients(g))(*args) for g in (exported.call, f))
    _same(got, expected)


def _with_gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: (f(*args), jax.grad(_total(f))(*args))


@cache
def _portable(f: Callable[..., Any]) -> PortableFunction:
    """Exports the function for the CPU, once for several tests."""
    return bridge.export(f, platforms=["cpu"])(X)


@WITH_IDS
def test_captured_arrays_become_arguments(
    f: Callable[..., Any], arrays: Sequence[Any], of_vjp: Sequence[Any]
) -> None:
    portable = _portable(f)
    vjp = portable.vjp()
    _holds(portable, arrays)
    _holds(vjp, of_vjp)
    _holds(vjp.vjp(), of_vjp)
    _runs(portable, f, X)


@WITH_IDS
def test_each_array_is_there_once_for_all_orders(
    f: Callable[..., Any], arrays: Sequence[Any], of_vjp: Sequence[Any]
) -> None:
    portable = _portable(f)
    orders = [portable, portable.vjp(), portable.vjp().vjp()]
    every = [c for order in orders for c in order.lifted_constants]
    assert len({id(c.data) for c in every}) == len({c.digest for c in every}) == len(of_vjp)
    # Equal constants have one name, and others have another.
    assert len({c.name for c in every}) == len({(c.name, c.digest) for c in every}) == len(of_vjp)
    _holds(portable, arrays)


def test_a_loop_without_a_gradient() -> None:
    portable = _portable(while_loop)
    _holds(portable, [A, B])
    _same(bridge.to_exported(portable).call(X), while_loop(X))


def test_they_are_arguments_on_all_platforms() -> None:
    portable = bridge.export(top_level)(X)
    assert len(portable.platforms) > 1
    _holds(portable, [A, B])
    _holds(portable.vjp(), [A, B])
    _runs(portable, top_level, X)


@pytest.mark.parametrize("f", [own_jit, scan, remat])
def test_second_gradients(f: Callable[..., Any]) -> None:
    exported = bridge.to_exported(_portable(f))

    def slope(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: jnp.mean(jax.grad(_total(f))(x) ** 2)

    _same(*(jax.jit(jax.grad(slope(g)))(X) for g in (exported.call, f)))


COMBINATIONS = list(product([own_jit, scan, cond], [["cpu"], ["cpu", "tpu"], None]))


@pytest.mark.slow
@pytest.mark.parametrize("case", sampled(COMBINATIONS, every=4))
def test_symbolic_shapes_and_platforms(case: tuple[Callable[..., Any], Any]) -> None:
    f, platforms = case
    portable = bridge.export(f, polymorphic_shapes=f"(b, {SIZE})", platforms=platforms)(X)
    for rows in (1, 3, 5):
        _runs(portable, f, np.resize(X, (rows, SIZE)))
    _holds(portable.vjp(), [A, B, C] if f is scan else [A, B])


def test_arguments_that_are_dropped_do_not_shift_them() -> None:
    def f(unused: Any, x: Any, *, also_unused: Any) -> Any:
        return x @ A

    portable = bridge.export(f)(np.ones(2), X, also_unused=np.ones(3))
    assert portable.module.kept_arguments == (1,)
    _holds(portable, [A])
    _same(bridge.to_exported(portable).call(np.ones(2), X, also_unused=np.ones(3)), X @ A)


def test_their_order_is_always_the_same() -> None:
    def f(x: Any) -> Any:
        first = jax.jit(lambda y: y @ C)(x)
        return jax.jit(lambda y: y @ C @ A)(first @ B)

    portable, again = (bridge.export(f)(X) for _ in range(2))
    assert [c.name for c in portable.lifted_constants] == ["constant_0", "constant_1", "constant_2"]
    _holds(portable, [A, B, C])
    assert again.module.data == portable.module.data
    assert again.lifted_constants == portable.lifted_constants


def test_equal_arrays_are_one() -> None:
    copies = [A.copy() for _ in range(3)]

    def f(x: Any) -> Any:
        y = x @ copies[0]
        y = jax.jit(lambda z: z @ copies[1])(y)
        return jax.lax.map(lambda row: row @ copies[2], y)

    portable = bridge.export(f)(X)
    _holds(portable, [A])
    _runs(portable, f, X)


def test_arrays_of_equal_bytes_and_different_types_are_not_one() -> None:
    flat, integers = A.reshape(-1), A.view(np.int32)

    def f(x: Any) -> Any:
        return x @ A + flat[0] * x + jnp.sum(jnp.sin(flat)) + jnp.sum(jnp.asarray(integers) > 0)

    portable = bridge.export(f)(X)
    avals = {str(c.aval) for c in portable.lifted_constants}
    assert avals == {"float32[32,32]", "float32[1024]", "int32[32,32]"}
    assert len({c.digest for c in portable.lifted_constants}) == 1
    assert len({id(c.data) for c in portable.lifted_constants}) == 1
    _same(bridge.to_exported(portable).call(X), f(X))


def test_small_arrays_and_repeated_values_stay() -> None:
    small, zeros, ones = A[:31], np.zeros((SIZE, SIZE), np.float32), jnp.ones((SIZE, SIZE))

    def f(x: Any) -> Any:
        return x[:, :31] @ small + x @ zeros + x @ ones + jnp.full((3, SIZE), 2.0)

    portable = bridge.export(f)(X)
    assert portable.lifted_constants == ()
    _runs(portable, f, X)


def test_4096_bytes_are_enough() -> None:
    assert A.nbytes == MIN_LIFTED_BYTES
    portable = bridge.export(lambda x: x @ A[:, :-1])(X)
    assert portable.lifted_constants == ()


def test_arrays_that_are_arguments_stay_arguments() -> None:
    portable = bridge.export(lambda x, w: x @ w)(X, A)
    assert portable.lifted_constants == ()


def test_pickling_keeps_the_arrays_once() -> None:
    portable = _portable(own_jit).with_vjp(1)
    data = pickle.dumps(portable)
    assert data.count(A.tobytes()) == data.count(B.tobytes()) == 1
    stored = pickle.loads(data)
    assert not are_types_checked(stored)
    _runs(stored, own_jit, X)


def test_retargeting_keeps_them() -> None:
    portable = bridge.export(own_jit, target=Target.tensorflow("2.19"))(X).with_vjp(1)
    older = bridge.retarget(portable, Target.tensorflow("2.16"))
    assert older.module.stablehlo_version != portable.module.stablehlo_version
    _holds(older, [A, B])
    _holds(older.vjp(), [A, B])
    assert older.lifted_constants == portable.lifted_constants
    _runs(older, own_jit, X)


def test_4_bit_integers_beside_them() -> None:
    def f(x: Any) -> Any:
        return (x.astype(jnp.float32) @ A).astype(jnp.int4), x + x

    x = jnp.asarray(random.integers(-4, 3, (3, SIZE)), jnp.int4)
    portable = bridge.export(f)(x)
    _holds(portable, [A])
    for each in (portable, bridge.retarget(portable)):
        got = bridge.to_exported(each).call(x)
        for g, w in zip(got, f(x), strict=True):
            assert g.dtype == jnp.int4
            np.testing.assert_array_equal(g.astype(jnp.int8), w.astype(jnp.int8))


def test_linear_algebra_beside_them() -> None:
    def f(x: Any) -> Any:
        return jnp.linalg.solve(A @ A.T + jnp.eye(SIZE), x.T)

    portable = bridge.export(f, platforms=["cpu", "cuda"])(X)
    _holds(portable, [A @ A.T])
    _runs(portable, f, X)


def test_jax_reads_them_in_what_it_wrote() -> None:
    portable = _portable(own_jit)
    exported = bridge.to_exported(portable)
    expected = jax.jit(_with_gradients(own_jit))(X)
    for written in (
        exported.serialize(vjp_order=1),
        bytearray(bridge.serialize_exported(portable, vjp_order=1)),
    ):
        _same(jax.jit(_with_gradients(jax.export.deserialize(written).call))(X), expected)


def test_gradients_where_jax_takes_no_maker_of_a_vjp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax2tf_bridge.from_jax._jax_compat._GET_VJP", "no_such_field")
    portable = bridge.export(custom_vjp, platforms=["cpu"])(X).with_vjp(2)
    _runs(portable, custom_vjp, X)


def test_arrays_that_were_left_out_are_missed() -> None:
    portable = _portable(own_jit)
    without = tuple(replace(c, data=None) for c in portable.lifted_constants)
    message = (
        r"own_jit captured the array constant_0 \(float32\[32,32\]\), which is missing: "
        r"it was written without arrays\. Write the file with arrays=True"
    )
    with pytest.raises(ModuleError, match=message):
        bridge.to_exported(replace(portable, lifted_constants=without))


def test_functions_that_do_not_fit_their_module_are_found_before_anything_is_put_into_it() -> None:
    portable = bridge.export(own_jit)(X)
    wrong = LiftedConstant(bridge.portable.Aval((2,), "float32"), "0" * 64, data=bytes(8))
    unchecked = replace(portable, lifted_constants=(wrong,))
    with pytest.raises(ModuleError, match=r"the portable function has 2 arguments, the module 3"):
        bridge.to_exported(unchecked)
