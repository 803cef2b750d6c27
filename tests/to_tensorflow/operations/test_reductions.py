"""Reductions with the reducers that TensorFlow has, with any other one, and over no elements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import Target, export, to_tf
from tests.to_tensorflow.operations.listing import kinds, run_and_list
from tests.to_tensorflow.operations.running import run, run_each

NAN, INF = np.nan, np.inf
Array = npt.NDArray[Any]


def _each(names: str, element: str, size: Any) -> tuple[list[str], list[str]]:
    """Reduces axis 1 of argument 0 with each of the operations, from an identity."""
    signed = element.startswith("i")
    bits = int("".join(c for c in element if c.isdigit()) or 0)
    whole = element != "i1" and element.lstrip("ui").isdigit()
    least = -(2 ** (bits - 1)) if signed else 0
    greatest = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    wide = {"bf16": ("0xFF80", "0x7F80"), "f16": ("0xFC00", "0x7C00")}
    wide |= {"f32": ("0xFF800000", "0x7F800000")}
    wide |= {"f64": ("0xFFF0000000000000", "0x7FF0000000000000")}
    low, high = (str(least), str(greatest)) if whole else wide.get(element, ("0", "0"))
    zero, one = ("0", "1") if whole else ("0.0", "1.0")
    if element == "i1":
        zero, one, low, high = "false", "true", "false", "true"
    elif element.startswith("complex"):
        zero, one = "(0.0, 0.0)", "(1.0, 0.0)"
    inits = dict(add=zero, multiply=one, maximum=low, minimum=high, xor=zero)
    inits |= {"or": zero, "and": one if element == "i1" else str(greatest if not signed else -1)}
    lines, results = [], []
    for name in names.split():
        lines += [
            f"%{name}_init = stablehlo.constant dense<{inits[name]}> : tensor<{element}>",
            f"%{name} = stablehlo.reduce(%0 init: %{name}_init) applies stablehlo.{name} across"
            f" dimensions = [1] : (tensor<2x{size}x{element}>, tensor<{element}>)"
            f" -> tensor<2x{element}>",
        ]
        results.append(f"%{name}")
    return lines, results


def reduce_each(names: str, element: str, array: Array) -> list[Array]:
    """Reduces axis 1 of an array with each of the operations, from an identity."""
    # Integers of 4 bits are in 8 outside of the module.
    outside = {"i4": "i8", "ui4": "ui8"}.get(element, element)
    size = array.shape[1] or "0"
    taken = f"tensor<2x{size}x{outside}>"
    lines, results = _each(names, element, size)
    types = ", ".join([f"tensor<2x{outside}>"] * len(results))
    for i, result in enumerate(results):
        lines.append(
            f"%{i + 1} = stablehlo.convert {result} : (tensor<2x{element}>) -> tensor<2x{outside}>"
        )
    names = ", ".join(f"%{i + 1}" for i in range(len(results)))
    text = f"""func.func @main(%x: {taken}) -> ({types}) {{
      %0 = stablehlo.convert %x : ({taken}) -> tensor<2x{size}x{element}>
      {" ".join(lines)}
      return {names} : {types}
    }}"""
    return run(text, array)


@pytest.mark.parametrize("element", ["i8", "ui8", "i16", "ui16", "i32", "ui32", "i64", "ui64"])
def test_integers_wrap_around_and_have_bits(element: str) -> None:
    dtype = np.dtype(element.replace("ui", "uint") if element[0] == "u" else f"int{element[1:]}")
    limits = np.iinfo(dtype)
    array = np.array([[limits.max, 3, limits.max], [limits.min, 2, 5]], dtype)
    names = "add multiply maximum minimum and or xor"
    results = reduce_each(names, element, array)
    ufuncs = [np.add, np.multiply, np.maximum, np.minimum]
    ufuncs += [np.bitwise_and, np.bitwise_or, np.bitwise_xor]
    for name, ufunc, result in zip(names.split(), ufuncs, results, strict=True):
        with np.errstate(over="ignore"):
            expected = [ufunc(ufunc(a, b), c) for a, b, c in array]
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, np.array(expected, dtype), name)


@pytest.mark.parametrize("element", ["i4", "ui4"])
def test_integers_of_4_bits_wrap_around_as_theirs(element: str) -> None:
    array = np.array([[7, 6], [-8, -3]] if element == "i4" else [[15, 14], [3, 2]])
    dtype = np.int8 if element == "i4" else np.uint8
    added, multiplied, least = reduce_each("add multiply minimum", element, array.astype(dtype))

    def wrapped(values: Array) -> Array:
        return (values + 8) % 16 - 8 if element == "i4" else values % 16

    np.testing.assert_array_equal(added, wrapped(array.sum(1)))
    np.testing.assert_array_equal(multiplied, wrapped(array.prod(1)))
    np.testing.assert_array_equal(least, array.min(1))


def test_flags() -> None:
    array = np.array([[True, True, True], [False, True, False]])
    results = reduce_each("add multiply maximum minimum and or xor", "i1", array)
    assert [result.tolist() for result in results] == [
        [True, True],
        [True, False],
        [True, True],
        [True, False],
        [True, False],
        [True, True],
        [True, True],
    ]


@pytest.mark.parametrize("element", ["f16", "bf16", "f32", "f64"])
def test_nan_is_the_greatest_and_the_least(element: str) -> None:
    dtype = ml_dtypes.bfloat16 if element == "bf16" else np.dtype(f"float{element[1:]}")
    array = np.array([[1, NAN, 3, INF], [-INF, 2, -4, 0.5]], dtype)
    results = reduce_each("add multiply maximum minimum", element, array)
    expected = [[NAN, -INF], [NAN, INF], [NAN, 2], [NAN, -INF]]
    np.testing.assert_array_equal([r.astype(np.float64) for r in results], expected)


def test_complex_numbers() -> None:
    array = np.array([[1 + 2j, 3 - 1j], [0.5j, 2]], np.complex64)
    added, multiplied = reduce_each("add multiply", "complex<f32>", array)
    np.testing.assert_allclose(added, [4 + 1j, 2 + 0.5j])
    np.testing.assert_allclose(multiplied, [5 + 5j, 1j])


def test_nothing_is_reduced_to_the_initial_value() -> None:
    floats = reduce_each("add multiply maximum minimum", "f32", np.zeros((2, 0), np.float32))
    np.testing.assert_array_equal(floats, [[0, 0], [1, 1], [-INF, -INF], [INF, INF]])
    integers = reduce_each("add maximum xor and", "ui8", np.zeros((2, 0), np.uint8))
    np.testing.assert_array_equal(integers, [[0, 0], [0, 0], [0, 0], [255, 255]])


def test_initial_values_next_to_the_identity_count() -> None:
    names = {
        "ui64": ("minimum", "18446744073709551614"),
        "i64": ("maximum", "-9223372036854775807"),
    }
    for element, (name, init) in names.items():
        text = f"""func.func @main(%x: tensor<2x2x{element}>) -> tensor<2x{element}> {{
          %init = stablehlo.constant dense<{init}> : tensor<{element}>
          %0 = stablehlo.reduce(%x init: %init) applies stablehlo.{name} across dimensions = [1]
            : (tensor<2x2x{element}>, tensor<{element}>) -> tensor<2x{element}>
          return %0 : tensor<2x{element}>
        }}"""
        dtype = np.uint64 if element == "ui64" else np.int64
        identity = np.iinfo(dtype).max if name == "minimum" else np.iinfo(dtype).min
        assert run(text, np.full((2, 2), identity, dtype))[0].tolist() == [int(init)] * 2


def test_an_open_sum_is_one_operation_and_an_initial_value_is_added_once() -> None:
    text = """func.func @main(%x: tensor<?x?xf32>, %start: tensor<f32>)
        -> (tensor<f32>, tensor<?xf32>) {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %all = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<?x?xf32>, tensor<f32>) -> tensor<f32>
      %some = stablehlo.reduce(%x init: %start) applies stablehlo.add across dimensions = [0]
        : (tensor<?x?xf32>, tensor<f32>) -> tensor<?xf32>
      return %all, %some : tensor<f32>, tensor<?xf32>
    }"""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    everything, columns = run(text, x, np.float32(10))
    assert everything == 15
    np.testing.assert_array_equal(columns, [13, 15, 17])
    assert kinds(text, x, np.float32(10)) == ["AddV2", "Sum", "Sum"]


def test_wider_arithmetic_within_the_body() -> None:
    text = """func.func @main(%x: tensor<2x?xbf16>) -> tensor<2xbf16> {
      %zero = stablehlo.constant dense<0.0> : tensor<bf16>
      %0 = stablehlo.reduce(%x init: %zero) across dimensions = [1]
        : (tensor<2x?xbf16>, tensor<bf16>) -> tensor<2xbf16>
       reducer(%a: tensor<bf16>, %b: tensor<bf16>) {
        %c = stablehlo.convert %a : (tensor<bf16>) -> tensor<f32>
        %d = stablehlo.convert %b : (tensor<bf16>) -> tensor<f32>
        %e = stablehlo.add %d, %c : tensor<f32>
        %f = stablehlo.convert %e : (tensor<f32>) -> tensor<bf16>
        stablehlo.return %f : tensor<bf16>
      }
      return %0 : tensor<2xbf16>
    }"""
    x = np.full((2, 300), 1.0, ml_dtypes.bfloat16)
    assert run(text, x)[0].tolist() == [300, 300]
    assert kinds(text, x) == ["Cast", "Cast", "Sum"]


def test_what_is_repeated_is_not_made_to_be_summed() -> None:
    text = """func.func @main(%x: tensor<?xf32>, %k: tensor<?xi32>) -> (tensor<?xf32>, tensor<f32>,
        tensor<i32>, tensor<3xf32>) {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %none = stablehlo.constant dense<0> : tensor<i32>
      %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %c5 = stablehlo.constant dense<5> : tensor<1xi32>
      %c3 = stablehlo.constant dense<3> : tensor<1xi32>
      %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
      %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
      %shape = stablehlo.concatenate %n1, %c5, %c3, dim = 0
        : (tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<3xi32>
      %y = stablehlo.dynamic_broadcast_in_dim %x, %shape, dims = [0]
        : (tensor<?xf32>, tensor<3xi32>) -> tensor<?x5x3xf32>
      %0 = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [1, 2]
        : (tensor<?x5x3xf32>, tensor<f32>) -> tensor<?xf32>
      %1 = stablehlo.reduce(%y init: %low) applies stablehlo.maximum across dimensions = [0, 1, 2]
        : (tensor<?x5x3xf32>, tensor<f32>) -> tensor<f32>
      %one = stablehlo.constant dense<2> : tensor<i32>
      %many = stablehlo.dynamic_broadcast_in_dim %one, %shape, dims = []
        : (tensor<i32>, tensor<3xi32>) -> tensor<?x5x3xi32>
      %2 = stablehlo.reduce(%many init: %none) applies stablehlo.add across dimensions = [0, 1, 2]
        : (tensor<?x5x3xi32>, tensor<i32>) -> tensor<i32>
      %3 = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<?x5x3xf32>, tensor<f32>) -> tensor<3xf32>
      return %0, %1, %2, %3 : tensor<?xf32>, tensor<f32>, tensor<i32>, tensor<3xf32>
    }"""
    x = np.array([1, 2, 4, 8], np.float32)
    rows, greatest, number, columns = run(text, x, np.zeros(1, np.int32))
    np.testing.assert_array_equal(rows, x * 15)
    assert greatest == 8
    assert number == 4 * 5 * 3 * 2
    np.testing.assert_array_equal(columns, [75, 75, 75])
    # Only the last result is repeated in the end.
    assert kinds(text, x, np.zeros(1, np.int32)).count("BroadcastTo") == 1


_INDEX = """
      %{n} = "stablehlo.iota"() <{{iota_dimension = 1 : i64}}> : () -> tensor<3x4xi32>
      %{n}_low = stablehlo.constant dense<{init}> : tensor<{element}>
      %{n}_at = stablehlo.constant dense<{at}> : tensor<i32>
      %{n}_r:2 = stablehlo.reduce(%{arg} init: %{n}_low), (%{n} init: %{n}_at)
        across dimensions = [1]
        : (tensor<3x4x{element}>, tensor<3x4xi32>, tensor<{element}>, tensor<i32>)
        -> (tensor<3x{element}>, tensor<3xi32>)
       reducer(%a: tensor<{element}>, %b: tensor<{element}>) (%i: tensor<i32>, %j: tensor<i32>) {{
        %0 = stablehlo.compare {order}, %a, %b
          : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
        %1 = stablehlo.compare NE, %a, %a : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
        %2 = stablehlo.or %0, %1 : tensor<i1>
        %3 = stablehlo.compare EQ, %a, %b : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
        %4 = stablehlo.compare LT, %i, %j : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %5 = stablehlo.and %3, %4 : tensor<i1>
        %6 = stablehlo.or %2, %5 : tensor<i1>
        %7 = stablehlo.select %2, %a, %b : tensor<i1>, tensor<{element}>
        %8 = stablehlo.select %6, %i, %j : tensor<i1>, tensor<i32>
        stablehlo.return %7, %8 : tensor<{element}>, tensor<i32>
      }}
"""


def test_the_index_of_the_first_extreme_number() -> None:
    low, high = "0xFF800000", "0x7F800000"
    cases = [("f32", "GT", low, "x"), ("f32", "LT", high, "x")]
    cases += [("i32", "GT", "-2147483648", "k"), ("i32", "LT", "2147483647", "k")]
    parts = [
        _INDEX.format(n=f"n{i}", element=element, order=order, init=init, arg=arg, at=0)
        for i, (element, order, init, arg) in enumerate(cases)
    ]
    kinds_of = [kind for element, *_ in cases for kind in (f"tensor<3x{element}>", "tensor<3xi32>")]
    names = ", ".join(f"%n{i}_r#{j}" for i in range(4) for j in range(2))
    text = "func.func @main(%x: tensor<3x4xf32>, %k: tensor<3x4xi32>) -> ({}) {{ {} }}".format(
        ", ".join(kinds_of), "".join(parts) + f"return {names} : {', '.join(kinds_of)}"
    )
    x = np.array([[1, 5, 5, 2], [INF, NAN, 3, NAN], [-INF, -INF, -INF, -INF]], np.float32)
    k = np.array([[3, 1, 3, 1], [-(2**31), 2**31 - 1, -(2**31), 0], [0, 0, 0, 0]], np.int32)
    greatest, at, least, at_least, k_greatest, k_at, k_least, k_at_least = run(text, x, k)
    np.testing.assert_array_equal(greatest, [5, NAN, -INF])
    np.testing.assert_array_equal(least, [1, NAN, -INF])
    np.testing.assert_array_equal([at, at_least], [[1, 1, 0], [0, 1, 0]])
    np.testing.assert_array_equal([k_greatest, k_least], [k.max(1), k.min(1)])
    np.testing.assert_array_equal([k_at, k_at_least], [k.argmax(1), k.argmin(1)])
    found = kinds(text, x, k)
    assert found.count("ArgMax") == 3
    assert found.count("ArgMin") == 1
    assert "StridedSlice" not in found


def test_an_initial_place_before_all_others_counts() -> None:
    index = _INDEX.format(n="n", element="f32", order="GT", init="0xFF800000", arg="x", at=-1)
    text = f"func.func @main(%x: tensor<3x4xf32>) -> tensor<3xi32> {{ {index} "
    text += "return %n_r#1 : tensor<3xi32> }"
    x = np.array([[1, 5, 5, 2], [-INF, -INF, 0, 0], [-INF, -INF, -INF, -INF]], np.float32)
    assert run(text, x)[0].tolist() == [1, 2, -1]


_MATRICES = """func.func @main(%a: tensor<{n}x2xf32>, %b: tensor<{n}x2xf32>)
        -> (tensor<2xf32>, tensor<2xf32>) {{
      %a0 = stablehlo.constant dense<1.0> : tensor<f32>
      %b0 = stablehlo.constant dense<0.0> : tensor<f32>
      %0:2 = stablehlo.reduce(%a init: %a0), (%b init: %b0) across dimensions = [0]
        : (tensor<{n}x2xf32>, tensor<{n}x2xf32>, tensor<f32>, tensor<f32>)
        -> (tensor<2xf32>, tensor<2xf32>)
       reducer(%p: tensor<f32>, %r: tensor<f32>) (%q: tensor<f32>, %s: tensor<f32>) {{
        %m = stablehlo.multiply %p, %r : tensor<f32>
        %t = stablehlo.multiply %q, %r : tensor<f32>
        %u = stablehlo.add %t, %s : tensor<f32>
        stablehlo.return %m, %u : tensor<f32>, tensor<f32>
      }}
      return %0#0, %0#1 : tensor<2xf32>, tensor<2xf32>
    }}"""


def test_a_reducer_whose_order_matters() -> None:
    # Linear functions, one after the other: associative, but not commutative.
    calls = [
        np.random.default_rng(0).integers(-2, 3, (2, length, 2)).astype(np.float32)
        for length in (0, 1, 2, 3, 7, 8, 13)
    ]
    # Open sizes are 1 at least.
    open_sizes = run_each(
        _MATRICES.format(n="?"), [tuple(call) for call in calls[1:]], symbols="aa"
    )
    for call, of_open in zip(calls, [None, *open_sizes], strict=True):
        length = call.shape[1]
        factor, added = np.ones(2), np.zeros(2)
        for p, q in zip(*call, strict=True):
            factor, added = factor * p, added * p + q
        # With known sizes each is a graph of its own.
        of_known = run(_MATRICES.format(n=length), *call) if length in (0, 1, 2, 7) else None
        for results in (of_open, of_known):
            if results is not None:
                np.testing.assert_allclose(results[0], factor, rtol=1e-6, err_msg=str(length))
                np.testing.assert_allclose(results[1], added, rtol=1e-6, err_msg=str(length))


def test_any_reducer_over_several_axes() -> None:
    # log(exp(a) + exp(b)), over axes of which one is open.
    text = """func.func @main(%x: tensor<3x?x4xf32>) -> tensor<?xf32> {
      %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %0 = stablehlo.reduce(%x init: %low) across dimensions = [0, 2]
        : (tensor<3x?x4xf32>, tensor<f32>) -> tensor<?xf32>
       reducer(%a: tensor<f32>, %b: tensor<f32>) {
        %c = stablehlo.exponential %a : tensor<f32>
        %d = stablehlo.exponential %b : tensor<f32>
        %e = stablehlo.add %c, %d : tensor<f32>
        %f = stablehlo.log %e : tensor<f32>
        stablehlo.return %f : tensor<f32>
      }
      return %0 : tensor<?xf32>
    }"""
    x = np.random.default_rng(1).normal(size=(3, 5, 4)).astype(np.float32)
    expected = np.log(np.exp(x.astype(np.float64)).sum((0, 2)))
    np.testing.assert_allclose(run(text, x)[0], expected, rtol=1e-5)


def test_a_result_that_is_broadcast_back_keeps_its_axes() -> None:
    text = """func.func @main(%x: tensor<?x?x3xf32>) -> (tensor<?x?x3xf32>, tensor<?x3xf32>) {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
        : (tensor<?x?x3xf32>, tensor<f32>) -> tensor<?x3xf32>
      %a = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x?x3xf32>) -> tensor<i32>
      %b = stablehlo.get_dimension_size %x, dim = 1 : (tensor<?x?x3xf32>) -> tensor<i32>
      %a1 = stablehlo.reshape %a : (tensor<i32>) -> tensor<1xi32>
      %b1 = stablehlo.reshape %b : (tensor<i32>) -> tensor<1xi32>
      %c3 = stablehlo.constant dense<3> : tensor<1xi32>
      %shape = stablehlo.concatenate %a1, %b1, %c3, dim = 0
        : (tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<3xi32>
      %back = stablehlo.dynamic_broadcast_in_dim %sum, %shape, dims = [0, 2]
        : (tensor<?x3xf32>, tensor<3xi32>) -> tensor<?x?x3xf32>
      %0 = stablehlo.subtract %x, %back : tensor<?x?x3xf32>
      %1 = stablehlo.negate %sum : tensor<?x3xf32>
      return %0, %1 : tensor<?x?x3xf32>, tensor<?x3xf32>
    }"""
    x = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    (rest, negative), found = run_and_list(text, x)
    np.testing.assert_array_equal(rest, x - x.sum(1, keepdims=True))
    np.testing.assert_array_equal(negative, -x.sum(1))
    assert found == ["Neg", "Reshape", "Sub", "Sum"]


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_8_bit_floats_are_reduced_and_repeated(dtype: Any) -> None:
    """TensorFlow has no kernels of these functions for them."""

    def function(x: Any) -> Any:
        extremes = jnp.max(x, 1), jnp.argmax(x, 1), lax.cummax(x, 1)
        sums = jnp.sum(x, 0, dtype=x.dtype), lax.cumsum(x, 1), lax.cumprod(x, 1)
        return *extremes, *sums, jnp.tile(x, (2, 1)), jnp.stack([x, x])

    x = np.array([[1, -2, 3], [0.5, 4, 0]]).astype(dtype)
    target = Target("operations", ((1, 13, 7),), 10, xla=False)
    portable = export(function, target=target, platforms=["cpu"])(x)
    traced = tf.function(to_tf(portable, with_gradient=False), autograph=False)
    for found, expected in zip(traced(tf.constant(x)), jax.jit(function)(x), strict=True):
        assert found.dtype.as_numpy_dtype == expected.dtype
        np.testing.assert_array_equal(found.numpy().astype(float), expected.astype(float))
