"""Arithmetic on sizes and small integers is done when the graph is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import export

# Private: a graph does not show what is known of an array.
from jax2tf_bridge.emitters._array import Array
from jax2tf_bridge.emitters._folding import convert_known
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.targets import Target
from jax2tf_bridge.to_tensorflow import to_tf
from shape_poly import DimExpr
from tests.to_tensorflow.operations.running import op_names, portable_of, run, run_each, trace

_NO_XLA = Target("operations", ((1, 13, 7),), 10, xla=False)


def scope() -> Scope:
    return Scope("tested", None, {}, {})  # type: ignore[arg-type]


def test_comparisons_of_sizes_are_decided_where_they_hold_for_all() -> None:
    b = DimExpr.variable("b")
    assert scope().sizes.compare("GE", b, 1) is True
    assert scope().sizes.compare("LT", b, 1) is False
    assert scope().sizes.compare("NE", b + 1, b) is True
    assert scope().sizes.compare("EQ", 2 * b, b + b) is True
    assert scope().sizes.compare("GT", b, 3) is None
    assert scope().sizes.maximum(b, 0) == b
    assert scope().sizes.maximum(b - 1, b) == b
    assert scope().sizes.maximum(3, 4) == 4


@pytest.mark.parametrize("element", ["i8", "ui8", "i4", "ui4", "i32", "ui32", "i64"])
def test_numbers_wrap_around(element: str) -> None:
    """A module of constants alone has no arithmetic left, with the results of arithmetic."""
    signed, bits = element.startswith("i"), int(element.lstrip("ui"))
    least = -(2 ** (bits - 1)) if signed else 0
    most = least + 2**bits - 1
    kind = f"tensor<3x{element}>"
    wide = f"tensor<3x{'i8' if signed else 'ui8'}>" if bits == 4 else kind
    expressions: Mapping[str, Callable[[int, int], int]] = {
        "add": lambda x, y: x + y,
        "subtract": lambda x, y: x - y,
        "multiply": lambda x, y: x * y,
        "divide": lambda x, y: abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1),
        "maximum": max,
        "minimum": min,
        "and": lambda x, y: x & y,
        "xor": lambda x, y: x ^ y,
    }
    rows = [(most, 3), (least, 1), (5, -2 if signed else 2)]
    x, y = ([pair[i] for pair in rows] for i in range(2))
    body = [
        f"%{name} = stablehlo.{name} %x, %y : {kind}\n"
        f"%c_{name} = stablehlo.convert %{name} : ({kind}) -> {wide}"
        for name in expressions
    ]
    lines = "\n".join(body)
    names = ", ".join(f"%c_{name}" for name in expressions)
    kinds = ", ".join([wide] * len(expressions))
    text = f"""module {{ func.func @main() -> ({kinds}) {{
        %x = stablehlo.constant dense<{x}> : {kind}
        %y = stablehlo.constant dense<{y}> : {kind}
        {lines}
        return {names} : {kinds} }} }}"""
    for found, function in zip(run(text), expressions.values(), strict=True):
        exact = [(function(*pair) - least) % 2**bits + least for pair in rows]
        np.testing.assert_array_equal(found, exact)
    made = op_names(trace(portable_of(text), []).graph)
    assert {*made} <= {"Const", "Identity", "NoOp", "PreventGradient"}


def test_conversions_of_constants() -> None:
    flags = Array("i1", (2,), known=np.array([True, False]))
    integers = Array("i32", (2,), known=np.array([300, -1], np.int32))
    third = Array("f64", (4,), known=np.array(1 / 3))
    assert convert_known(scope(), flags, "f32").known.tolist() == [1, 0]  # type: ignore[union-attr]
    assert convert_known(scope(), integers, "ui8").known.tolist() == [44, 255]  # type: ignore[union-attr]
    assert convert_known(scope(), integers, "i4").known.tolist() == [-4, -1]  # type: ignore[union-attr]
    assert convert_known(scope(), integers, "i1").known.tolist() == [True, True]  # type: ignore[union-attr]
    assert convert_known(scope(), third, "f32").known == np.float32(1 / 3)  # type: ignore[union-attr]
    assert convert_known(scope(), third, "i32") is None
    large = Array("f32", (5000,), known=np.zeros(5000, np.float32))
    assert convert_known(scope(), large, "f64") is None


def _computes_with_sizes(function: Any, spec: str, x: Any) -> tuple[list[Any], list[str]]:
    """Runs a function with open sizes; returns its results and the arithmetic of its graph."""
    found = export(function, target=_NO_XLA, platforms=["cpu"], polymorphic_shapes=[spec])
    portable = found(x)
    traced = trace(portable, [x])
    results = traced(tf.constant(x))
    results = results if isinstance(results, (list, tuple)) else [results]
    return [np.asarray(result) for result in results], op_names(traced.graph)


def test_scalars_are_moved_after_they_are_negated() -> None:
    text = """
    module { func.func @main(%x: tensor<1xf32>) -> tensor<3xf32> {
      %c = stablehlo.constant dense<1.5> : tensor<f32>
      %n = stablehlo.negate %c : tensor<f32>
      %b = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %r = stablehlo.concatenate %b, %x, dim = 0 : (tensor<2xf32>, tensor<1xf32>) -> tensor<3xf32>
      return %r : tensor<3xf32>
    } }"""
    np.testing.assert_array_equal(run(text, np.ones(1, np.float32))[0], [-1.5, -1.5, 1])


@pytest.mark.parametrize("size", [5, 8, 9])
def test_floor_division_of_sizes_is_one_operation(size: int) -> None:
    """JAX writes nine operations for it, that round towards zero, where a size may be negative."""

    def function(x: jax.Array) -> Any:
        n = x.shape[0]
        return jnp.zeros((n - 3) // 2 + 4), jnp.zeros(-(-n // 4)), jnp.zeros((n - 7) % 5)

    x = np.zeros(size, np.float32)
    results, names = _computes_with_sizes(function, "b", x)
    assert [result.shape[0] for result in results] == [
        (size - 3) // 2 + 4,
        -(-size // 4),
        (size - 7) % 5,
    ]
    assert names.count("FloorDiv") == 2
    assert names.count("FloorMod") == 1
    assert not {"SelectV2", "Select", "TruncateDiv", "TruncateMod", "Sign", "NotEqual"} & {*names}


@pytest.mark.parametrize("target", [_NO_XLA, Target.converters()], ids=["no XLA", "converters"])
@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float32])
def test_remainders_of_floats_keep_their_fractions(dtype: Any, target: Target) -> None:
    """JAX writes `%` of floats as it writes that of integers."""
    x = np.array([-2.5, -1.5, -0.0, 0.5, 7, np.inf, np.nan], dtype)

    def function(x: jax.Array) -> Any:
        return x % 3, x % -1, x % 0, x % x[::-1]

    portable = export(function, target=target, platforms=["cpu"])(x)
    is_widened = target.for_converters and dtype == jnp.bfloat16
    operand = x.astype(np.float32) if is_widened else x
    for actual, expected in zip(to_tf(portable)(operand), jax.jit(function)(x), strict=True):
        np.testing.assert_array_equal(
            np.asarray(actual).astype(np.float32),
            np.asarray(expected).astype(np.float32),
        )


def test_greater_sizes_are_folded() -> None:
    text = """module { func.func @main(%x: tensor<?xf32>)
            -> (tensor<i32>, tensor<i32>, tensor<i32>) {
        %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %four = stablehlo.constant dense<4> : tensor<i32>
        %0 = stablehlo.maximum %n, %zero : tensor<i32>
        %1 = stablehlo.subtract %n, %four : tensor<i32>
        %2 = stablehlo.maximum %1, %zero : tensor<i32>
        %3 = stablehlo.clamp %zero, %n, %four : tensor<i32>
        return %0, %2, %3 : tensor<i32>, tensor<i32>, tensor<i32> } }"""
    x, longer = np.zeros(3, np.float32), np.zeros(7, np.float32)
    assert run_each(text, [[x], [longer]]) == [[3, 0, 3], [7, 3, 4]]
    names = op_names(trace(portable_of(text), [x]).graph)
    assert names.count("Maximum") == 2  # the least is minus the greatest of the negated


def test_integers_made_of_sizes_are_computed_where_they_are_needed() -> None:
    text = """module { func.func @main(%x: tensor<?xf32>)
            -> (tensor<i32>, tensor<i1>, tensor<f32>) {
        %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
        %three = stablehlo.constant dense<3> : tensor<i32>
        %five = stablehlo.constant dense<5> : tensor<i32>
        %0 = stablehlo.subtract %n, %five : tensor<i32>
        %1 = stablehlo.divide %0, %three : tensor<i32>
        %2 = stablehlo.sign %0 : tensor<i32>
        %3 = stablehlo.add %1, %2 : tensor<i32>
        %4 = stablehlo.compare LT, %3, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %5 = stablehlo.not %4 : tensor<i1>
        %6 = stablehlo.convert %3 : (tensor<i32>) -> tensor<f32>
        %unused = stablehlo.remainder %0, %three : tensor<i32>
        return %3, %5, %6 : tensor<i32>, tensor<i1>, tensor<f32> } }"""
    sizes = (1, 4, 5, 6, 20)
    calls = [[np.zeros(size, np.float32)] for size in sizes]
    for size, found in zip(sizes, run_each(text, calls), strict=True):
        wanted = int((size - 5) / 3) + (size > 5) - (size < 5)
        assert found == [wanted, wanted >= 3, wanted]
    assert "TruncateMod" not in op_names(trace(portable_of(text), calls[0]).graph)


@pytest.mark.parametrize(("rows", "is_stored"), [(40, True), (600, False)])
def test_large_results_of_small_operands_are_not_stored(rows: int, is_stored: bool) -> None:
    def mask(x: Any) -> Any:
        return jnp.where(jnp.arange(rows)[:, None] >= jnp.arange(500), x, 0)

    x = np.float32(3)
    portable = export(mask, target=_NO_XLA, platforms=["cpu"])(x)
    traced = trace(portable, [x])
    np.testing.assert_array_equal(traced(tf.constant(x)), np.tri(rows, 500) * x)
    assert ("GreaterEqual" not in op_names(traced.graph)) is is_stored
