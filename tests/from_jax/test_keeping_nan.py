"""Maxima and minima keep NaN under TensorFlow's XLA, as under JAX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf_bridge import Target, convert, export
from jax2tf_bridge.bytecode import read_program
from jax2tf_bridge.from_jax import jax_compat
from jax2tf_bridge.from_jax.stablehlo import StableHloModule
from jax2tf_bridge.to_tensorflow import to_tf

NAN, INF = np.nan, np.inf
X = np.array(
    [[1, NAN, 2, 3], [-INF, -INF, -INF, -INF], [INF, 1, INF, NAN], [NAN] * 4, [-1, -INF, 0, 5]],
    np.float32,
)
"""Rows with NaN at the start, in the middle, at the end and throughout, and rows without."""
Y = np.roll(X, 1, 0)
IDS = np.array([0, 0, 1, 2, 2])


def _pool(x: Any, init: float, reducer: Any) -> Any:
    return lax.reduce_window(x, np.float32(init), reducer, (2, 2), (1, 2), "SAME")


def _everything(x: Any, y: Any) -> dict[str, Any]:
    return {
        "maximum": jnp.maximum(x, y),
        "minimum": jnp.minimum(x, y),
        "relu": jax.nn.relu(x),
        "constant first": lax.max(jnp.zeros_like(x), x),
        "relu6": jax.nn.relu6(x),
        "clamp": lax.clamp(-1.0, x, 2.0),
        "clamp to NaN": lax.clamp(x, jnp.zeros_like(x), y),
        "clip": jnp.clip(x, y, 2.0),
        "hypot": jnp.hypot(x, y),
        "max": x.max(1),
        "min": x.min(0),
        "max of all": x.max(),
        "max of bfloat16": x.astype(jnp.bfloat16).max(1).astype(jnp.float32),
        # This dtype has no infinity to start from.
        "max of float8": (x == x).astype(jnp.float8_e4m3fn).max(1).astype(jnp.float32),
        "min of float8": (x == x).astype(jnp.float8_e4m3fn).min(1).astype(jnp.float32),
        "max from -1": lax.reduce(x, np.float32(-1), lax.max, (1,)),
        "max and min": lax.reduce(
            (x, y),
            (np.float32(-INF), np.float32(INF)),
            lambda a, b: (lax.max(a[0], b[0]), lax.min(a[1], b[1])),
            (1,),
        ),
        "norm": jnp.linalg.norm(x, ord=jnp.inf, axis=1),
        "cummax": lax.cummax(x, axis=1),
        "cummin": lax.cummin(x, axis=0, reverse=True),
        "max pool": _pool(x, -INF, lax.max),
        "min pool": _pool(x, INF, lax.min),
        "max pool from 1": _pool(x, 1, lax.max),
        "segment_max": jax.ops.segment_max(x, IDS, 4),
        "scattered min": jnp.zeros((3, 4)).at[IDS].min(x),
        "loop": lax.fori_loop(0, 4, lambda i, c: jnp.maximum(c, x[:, i]), jnp.full(5, -INF)),
        "gradient": jax.grad(lambda x: x.max(1).sum())(x),
        "gradient of segments": jax.grad(lambda x: jax.ops.segment_max(x, IDS, 4).sum())(x),
    }


def test_tensorflow_keeps_nan_as_jax_does() -> None:
    expected = jax.jit(_everything)(X, Y)
    found = tf.function(convert(_everything), autograph=False)(X, Y)
    assert sum(bool(np.isnan(value).any()) for value in expected.values()) > 20
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_softmax_of_rows_with_nan_and_infinity() -> None:
    functions: list[Callable[..., Any]] = [
        jax.nn.softmax,
        jax.nn.log_softmax,
        lambda x: jax.nn.logsumexp(x, axis=1),
    ]

    def all_of(x: Any) -> list[Any]:
        return [f(x) for f in functions]

    found = tf.function(convert(all_of), autograph=False)(X)
    for value, expected in zip(found, jax.jit(all_of)(X), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_open_sizes() -> None:
    def f(x: Any) -> Any:
        return [x.max(0), lax.cummax(x, axis=0), _pool(x, -INF, lax.max), jnp.maximum(x, x[::-1])]

    converted = convert(f, polymorphic_shapes="(b, 4)")
    for rows in (X, X[:3]):
        for value, expected in zip(converted(rows), jax.jit(f)(rows), strict=True):
            np.testing.assert_array_equal(value, expected)


def _names(portable: Any) -> list[str]:
    """Lists the operations of a module, including those of regions."""
    program = read_program(portable.module.data)
    waiting = [op for function in program.functions.values() for op in function.body.operations]
    names = []
    while waiting:
        operation = waiting.pop()
        names.append(operation.name)
        waiting += [inner for block in operation.regions for inner in block.operations]
    return names


def test_relu_and_integers_stay_one_operation() -> None:
    """XLA recognizes a relu by this form, and fuses it with the product before it."""

    def f(x: Any, i: Any) -> Any:
        return jax.nn.relu(x), lax.max(jnp.zeros_like(x), x), jnp.maximum(i, i[::-1]), i.max()

    names = _names(export(f, platforms=["cpu"])(X, np.arange(3)))
    assert names.count("maximum") == 4
    assert "select" not in names


def test_reductions_keep_their_form_on_other_platforms() -> None:
    """GPU and TPU have no fast maxima, but kernels for a reduction by maximum."""

    def f(x: Any) -> Any:
        return x.max(1), _pool(x, -INF, lax.max)

    assert _names(export(f, platforms=["cuda"])(X)).count("maximum") == 2
    assert "select" not in _names(export(f, platforms=["tpu"])(X))
    assert "maximum" not in _names(export(f, platforms=["cpu"])(X))
    assert "case" in _names(export(f)(X))


def test_a_constant_that_is_nan_is_no_number() -> None:
    text = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %c = stablehlo.constant dense<0x7FC00000> : tensor<2xf32>
      %d = stablehlo.constant dense<[0.0, 1.0]> : tensor<2xf32>
      %0 = stablehlo.maximum %x, %c : tensor<2xf32>
      %1 = stablehlo.maximum %0, %d : tensor<2xf32>
      return %1 : tensor<2xf32>
    }"""
    from jax2tf_bridge.from_jax import ir

    with jax_compat.make_ir_context():
        module = StableHloModule(ir.Module.parse(text))
        module.keep_nan()
        assert "stablehlo.maximum" not in str(module._module)


def test_without_xla_the_select_is_a_maximum_again() -> None:
    def f(x: Any) -> Any:
        return {
            "max": x.max(1),
            "min": x.min(0),
            "pool": lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"),
            "maximum": jnp.maximum(x, x[::-1]),
            "softmax": jax.nn.softmax(x),
        }

    for platforms in (None, ["cpu"]):
        own = to_tf(
            export(f, platforms=platforms)(X), target=Target.widest(xla=False), with_gradient=False
        )
        concrete = tf.function(own, autograph=False).get_concrete_function(
            tf.TensorSpec(X.shape, tf.float32)
        )
        kinds = {op.type for op in concrete.graph.get_operations()}
        assert {"Max", "Min", "Maximum", "StatelessIf", "Softmax"} <= kinds
        assert not {"SelectV2", "LogicalOr", "NotEqual", "GreaterEqual"} & kinds
        expected = jax.jit(f)(X)
        for name, value in concrete(X).items():
            if name != "softmax":  # TensorFlow's has zeros beside the NaN of a row
                np.testing.assert_allclose(value, expected[name], err_msg=name)
