"""Corners that came out wrong once: each is a JAX function beside its value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import AUTO, Target, export, to_tf
from jax2tf_bridge.emitters import make_operations, read

# Private: the error of a target for LiteRT.
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.errors import ModuleError
from tests.to_tensorflow.operations.running import portable_of

_X = np.arange(15, dtype=np.float32).reshape(3, 5)
_CUBE = np.arange(210, dtype=np.float32).reshape(5, 6, 7)
_FIRST = np.array([[1, 2]], np.int32)


def _repeated_sum(x: Any) -> Any:
    return jnp.sum(lax.broadcast_in_dim(x, (x.shape[0], 4, 5), (0, 2)), axis=2)


_CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "a sum that keeps a repeated axis": (lambda x: _repeated_sum(x)[:, 1:], (_X,), "(b, 5)"),
    "the same transposed": (lambda x: _repeated_sum(x).T, (_X,), None),
    "elements from one place": (
        lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers((1,), (0, 1), (0, 1)), (1, 1, 3)),
        (_CUBE, _FIRST),
        None,
    ),
    "indices that are joined with nothing": (
        lambda x, i: lax.gather(
            x,
            lax.concatenate([i, jnp.zeros((1, 0), jnp.int32)], 1),
            lax.GatherDimensionNumbers((1,), (0, 1), (0, 1)),
            (1, 1, 3),
        ),
        (_CUBE, _FIRST),
        None,
    ),
    "a constant in one place": (lambda x: x.at[2].apply(lambda v: jnp.float32(1)), (_X,), None),
    "a constant in some places": (
        lambda x, i: x.at[i].apply(lambda v: jnp.float32(1), unique_indices=True),
        (_X, np.array([0, 2], np.int32)),
        None,
    ),
    "an update of nothing": (
        lambda x, i: jnp.zeros((0, 5)).at[i].add(x[0]),
        (_X, np.array([1], np.int32)),
        None,
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_values_are_those_of_jax(name: str) -> None:
    f, args, shapes = _CASES[name]
    portable = export(f, target=Target.widest(xla=False), polymorphic_shapes=shapes)(*args)
    np.testing.assert_array_equal(to_tf(portable)(*args), f(*map(jnp.asarray, args)))


_EDGES = np.array([-np.inf, -1, -0.5, 0, 0.5, 1, 3, np.nan], np.float32)
_ALL_EDGES = np.array([*_EDGES, np.inf, 30], np.float32)


@pytest.mark.parametrize("function", [lax.igamma, lax.igammac])
def test_incomplete_gamma_functions_at_their_edges(function: Callable[..., Any]) -> None:
    args = tuple(np.meshgrid(_EDGES, _ALL_EDGES))
    portable = export(function, target=Target.widest(xla=False))(*args)
    np.testing.assert_allclose(to_tf(portable)(*args), jax.jit(function)(*args), rtol=1e-5)


def test_numbers_of_64_bits_that_are_made_of_sizes() -> None:
    def f(x: Any) -> Any:
        least, two = (jnp.full((), number, jnp.int64) for number in (-(2**63), 2))
        return x * (1 + x.shape[0] ** 4) + lax.div(least, two)

    with jax.enable_x64(True):
        x = np.ones(1000, np.int64)
        portable = export(f, target=Target.widest(xla=False), polymorphic_shapes="(n,)")(x)
        np.testing.assert_array_equal(to_tf(portable)(x), f(x))


def _numbers_of_64_bits(x: Any, y: Any) -> dict[str, Any]:
    s, t = (jnp.asarray(array.shape[0], jnp.int64) for array in (x, y))
    return {
        "add": s + 2**40,
        "add beyond 64 bits": s + (2**63 - 1),
        "multiply": s * 100000,
        "divide": s * (s - 1) // 2,
        "divide a negative number": -(s * s) // 7,
        "divide by a product": lax.div(s * s + t, 2 * s),
        "divide what wraps around": s**4 // 3,
        "three factors": s * t * s // 1000,
        "remainder": (s * s) % 1000,
        "minimum": jnp.minimum(s, 2**63 - 1),
        "maximum": jnp.maximum(s, 2**40),
        "clamp": lax.clamp(jnp.int64(5), s * s, jnp.int64(2**40)),
        "compare": s * s > 2**33,
        "compare what wraps around": s**5 > 0,
        "sign of what wraps around": jnp.sign(s**5),
        "to int32 and back": jnp.int64(jnp.int32(s * s // 3) + jnp.int32(s * s)),
        "joined": jnp.stack([s * s, t]),
        "in a branch": lax.cond(s * s > 2**33, lambda: s * t, lambda: s),
        "in a loop": lax.fori_loop(0, 3, lambda i, carry: carry * s // 2 + t, s),
        "a size": jnp.sum(jnp.ones(x.shape[0] * y.shape[0] // 140000)) * x[5],
        "a size of a result": jnp.ones((x.shape[0] * y.shape[0] + 1) % 7),
        "a slice": lax.dynamic_slice(x, (s * t,), (4,)),
    }


def _numbers_of_32_bits(x: Any, y: Any) -> dict[str, Any]:
    s = jnp.asarray(x.shape[0], jnp.int32)
    return {
        "divide what wraps around": lax.div(s * 1103515245, jnp.int32(7)),
        "remainder of what wraps around": abs(s * 1103515245 * 1103515245 + 12345) % 16,
        "compare what wraps around": s * 1103515245 > 0,
        "index": x[s * 1103515245],
    }


@pytest.mark.parametrize("bits", [32, 64])
def test_integers_made_of_sizes_wrap_around_where_their_type_does(bits: int) -> None:
    f = _numbers_of_64_bits if bits == 64 else _numbers_of_32_bits
    x, y = np.arange(70000, dtype=np.float32), np.zeros(70001, np.int8)
    with jax.enable_x64(bits == 64):
        portable = export(
            f,
            target=Target.widest(xla=False),
            polymorphic_shapes=["b", "n"],
            polymorphic_constraints=AUTO,
        )(x, y)
        expected = jax.tree.map(np.asarray, jax.jit(f)(x, y))
    function = to_tf(portable)
    static = tf.function(lambda: function(tf.constant(x), tf.constant(y)), autograph=False)
    for results in (function(x, y), static()):
        for name, array in expected.items():
            np.testing.assert_array_equal(results[name], array, name)
            assert results[name].dtype == array.dtype, name


def test_indices_of_64_bits_that_are_clipped_to_an_open_size() -> None:
    def f(x: Any, i: Any) -> Any:
        return x.at[i].set(1.0, mode="clip")

    x, i = np.zeros((5, 2), np.float32), np.array([0, 3, 9, -7])
    with jax.enable_x64(True):
        target = Target.widest(xla=False)
        portable = export(f, target=target, polymorphic_shapes=["(b, 2)", None])(x, i)
        np.testing.assert_array_equal(to_tf(portable)(x, i), f(jnp.asarray(x), i))


_NEAR_ZERO = (0.0, 1e-30, 3e-8, 1e-6, 0.001, 0.0099, 0.01, 0.1, 0.2499, 0.25, 0.3)
_NEAR_ONE = (0.5, 0.9, 0.99, 0.9999, 0.9999999, 1 - 2**-24, 1.0, 1.5, np.nan)
_PARTS = (0.0, -0.0, 1e-6, 0.5, -1.0, 3.0, -50.0, 89.0, 100.0, 1e10, -1e25, np.inf, -np.inf)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_inverse_of_erf_and_its_gradient_are_those_of_jax(dtype: Any) -> None:
    positive = np.array([*_NEAR_ZERO, *_NEAR_ONE], dtype)
    x = np.concatenate([positive, -positive])
    with jax.enable_x64(dtype == np.float64):
        function = to_tf(export(lax.erf_inv, target=Target.widest(xla=False))(x))
        values = jax.jit(lax.erf_inv)(x)
        slopes = jax.jit(jax.vmap(jax.grad(lax.erf_inv)))(x)
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        results = function(variable)
    # Next to 1 the slope multiplies the rounding of x.
    tolerance = 1e-5 if dtype == np.float32 else 1e-11
    np.testing.assert_allclose(results, values, tolerance, 0)
    # exp(y**2) multiplies the rounding of y.
    np.testing.assert_allclose(tape.gradient(results, variable), slopes, 1e3 * tolerance, 0)


@pytest.mark.parametrize("name", ["expm1", "rsqrt", "log1p", "sqrt"])
def test_complex_numbers_at_extremes(name: str) -> None:
    f = getattr(lax, name)
    z = np.array([complex(x, y) for x in _PARTS for y in _PARTS], np.complex64)
    results = np.asarray(to_tf(export(f, target=Target.widest(xla=False))(z))(z))
    exact = np.asarray(jax.jit(f)(z))
    np.testing.assert_allclose(results.real, exact.real, 1e-5, 1e-6)
    np.testing.assert_allclose(results.imag, exact.imag, 1e-5, 1e-6)


def test_digamma_and_the_slope_of_lgamma_at_zero_are_those_of_jax() -> None:
    """They are -inf in JAX 0.12, and NaN in JAX 0.10."""
    x = np.array([0.0, -0.0, -1.0, 0.5, np.inf], np.float32)
    for f in (lax.digamma, jax.vmap(jax.grad(lax.lgamma))):
        results = to_tf(export(f, target=Target.widest(xla=False))(x))(x)
        np.testing.assert_allclose(results, jax.jit(f)(x), 1e-5)


def test_what_contradicts_itself_is_named() -> None:
    """No writer makes such a module, but the reader does not compare operands with operations."""
    text = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""
    portable = portable_of(text)
    program = read(portable)
    (add, end) = program.main.body.operations
    broken = replace(add, operands=add.operands[:1])
    main = replace(program.main, body=replace(program.main.body, operations=(broken, end)))
    program = replace(program, functions={"main": main})
    with tf.Graph().as_default(), pytest.raises(ModuleError, match=r"stablehlo\.add: its operands"):
        make_operations(portable, program, [tf.zeros([2])], {})
    # LiteRT has no XLA, so a target with it would not help.
    for names_lines, advice in (
        (False, "Export it for a target with XLA, or write"),
        (True, "Write"),
    ):
        scope = Scope("tested", program, {}, {}, names_lines=names_lines)
        with pytest.raises(ModuleError, match=rf"\. {advice} this part of the function"):
            scope.fail(broken, "why")
