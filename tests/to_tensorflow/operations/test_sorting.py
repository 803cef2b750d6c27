"""Sorting with one number, several and any comparator, and the greatest numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tests.to_tensorflow.operations.listing import kinds
from tests.to_tensorflow.operations.running import run

NAN, INF = np.nan, np.inf
Array = npt.NDArray[Any]


def sort_text(comparator: str, *kinds: str, axis: int = 1) -> str:
    """Writes a module that sorts arrays, by a comparator of %a, %b of the first, %c, %d, ..."""
    elements = ["complex<f32>" if "complex" in k else k[:-1].rsplit("x", 1)[-1] for k in kinds]
    names = iter("abcdef")
    arguments = ", ".join(f"%{next(names)}: tensor<{e}>" for e in elements for _ in range(2))
    types, count = ", ".join(kinds), len(kinds)
    taken = ", ".join(f"%x{i}: {kind}" for i, kind in enumerate(kinds))
    found = ", ".join(f"%0#{i}" for i in range(count)) if count > 1 else "%0"
    operands = ", ".join(f"%x{i}" for i in range(count))
    return f"""func.func @main({taken}) -> ({types}) {{
      %0{f":{count}" if count > 1 else ""} = "stablehlo.sort"({operands})
          <{{dimension = {axis} : i64, is_stable = true}}> ({{
        ^bb0({arguments}):
          {comparator}
      }}) : ({types}) -> ({types})
      return {found} : {types}
    }}"""


def compare(order: str, element: str, a: str = "a", b: str = "b", kind: str = "") -> str:
    return (
        f"stablehlo.compare {order}, %{a}, %{b}{kind and ', ' + kind}"
        f" : (tensor<{element}>, tensor<{element}>) -> tensor<i1>"
    )


def by(order: str, element: str, kind: str = "") -> str:
    return f"%0 = {compare(order, element, kind=kind)}\nstablehlo.return %0 : tensor<i1>"


@pytest.mark.parametrize(
    "element", ["i8", "ui8", "i16", "ui16", "i32", "ui32", "i64", "ui64", "i1"]
)
def test_integers(element: str) -> None:
    if element == "i1":
        array = np.array([[True, False, True, False], [False, False, True, True]])
    else:
        dtype = np.dtype(
            element.replace("ui", "uint") if element[0] == "u" else f"int{element[1:]}"
        )
        limits = np.iinfo(dtype)
        array = np.array(
            [[3, limits.max, limits.min, 3], [0, 1, limits.max - 1, limits.max]], dtype
        )
    (rising,) = run(sort_text(by("LT", element), f"tensor<?x?x{element}>"), array)
    (falling,) = run(sort_text(by("GT", element), f"tensor<2x4x{element}>"), array)
    assert rising.dtype == array.dtype
    np.testing.assert_array_equal(rising, np.sort(array, 1))
    np.testing.assert_array_equal(falling, np.sort(array, 1)[:, ::-1])


BITS = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}


@pytest.mark.parametrize("element", list(BITS))
def test_the_total_order_of_floating_point_numbers(element: str) -> None:
    dtype = ml_dtypes.bfloat16 if element == "bf16" else np.dtype(f"float{element[1:]}")
    ordered = np.array([-NAN, -INF, -2, -1e-3, -0.0, 0.0, 1e-3, 2, INF, NAN], dtype)
    ordered[0] = np.copysign(np.array(NAN, dtype), -1)
    ordered[-1] = np.copysign(np.array(NAN, dtype), 1)
    shuffled = ordered[[5, 9, 1, 0, 7, 4, 8, 2, 6, 3]]
    (rising,) = run(
        sort_text(by("LT", element, "TOTALORDER"), f"tensor<?x{element}>", axis=0), shuffled
    )
    (falling,) = run(
        sort_text(by("GT", element, "TOTALORDER"), f"tensor<?x{element}>", axis=0), shuffled
    )
    np.testing.assert_array_equal(rising.view(BITS[element]), ordered.view(BITS[element]))
    np.testing.assert_array_equal(falling.view(BITS[element]), ordered[::-1].view(BITS[element]))


JAX = """
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %nan = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %1 = stablehlo.compare EQ, %a, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %2 = stablehlo.select %1, %zero, %a : tensor<i1>, tensor<f32>
      %3 = stablehlo.compare NE, %a, %a : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %4 = stablehlo.select %3, %nan, %2 : tensor<i1>, tensor<f32>
      %5 = stablehlo.compare EQ, %b, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %6 = stablehlo.select %5, %zero, %b : tensor<i1>, tensor<f32>
      %7 = stablehlo.compare NE, %b, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %8 = stablehlo.select %7, %nan, %6 : tensor<i1>, tensor<f32>
      %9 = stablehlo.compare LT, %4, %8, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
"""


def test_zeros_are_equal_and_nans_are_last_as_jax_has_them() -> None:
    text = sort_text(
        JAX + "stablehlo.return %9 : tensor<i1>", "tensor<?xf32>", "tensor<?xi32>", axis=0
    )
    x = np.array([NAN, 1, -0.0, 0.0, np.copysign(NAN, -1), INF, -INF, -0.0], np.float32)
    sorted_x, index = run(text, x, np.arange(8, dtype=np.int32), symbols="aa")
    assert index.tolist() == [6, 2, 3, 7, 1, 5, 0, 4]
    np.testing.assert_array_equal(sorted_x.view(np.int32), x[index].view(np.int32))


def test_several_numbers_decide_one_after_the_other() -> None:
    comparator = f"""{JAX}
      %10 = {compare("GT", "i32", "c", "d")}
      %11 = {compare("EQ", "i32", "c", "d")}
      %12 = stablehlo.and %11, %9 : tensor<i1>
      %13 = stablehlo.or %10, %12 : tensor<i1>
      stablehlo.return %13 : tensor<i1>
    """
    kinds_of = ("tensor<?x?xf32>", "tensor<?x?xi32>", "tensor<?x?xi16>")
    random = np.random.default_rng(0)
    x = random.choice(np.array([NAN, 1, -1, 0], np.float32), (9, 2))
    k = random.integers(0, 3, (9, 2)).astype(np.int32)
    rest = np.arange(18, dtype=np.int16).reshape(9, 2)
    found = run(sort_text(comparator, *kinds_of, axis=0), x, k, rest, symbols="ababab")
    for column in range(2):
        order = np.lexsort((x[:, column], -k[:, column]))
        given: tuple[Any, ...] = (x, k, rest)
        for array, result in zip(given, found, strict=True):
            np.testing.assert_array_equal(result[:, column], array[order, column])


# |a - 3| before |b - 3| is a number of each; the sum of both is none.
ABOUT_3 = """
      %three = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.subtract %a, %three : tensor<i32>
      %2 = stablehlo.abs %1 : tensor<i32>
      %3 = stablehlo.subtract %b, %three : tensor<i32>
      %4 = stablehlo.abs %3 : tensor<i32>
      %5 = stablehlo.compare LT, %2, %4 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %5 : tensor<i1>
"""
# The same by (a - b) * (a + b - 6) < 0, in which a and b are not apart.
TOGETHER = """
      %six = stablehlo.constant dense<6> : tensor<i32>
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %1 = stablehlo.subtract %a, %b : tensor<i32>
      %2 = stablehlo.add %a, %b : tensor<i32>
      %3 = stablehlo.subtract %2, %six : tensor<i32>
      %4 = stablehlo.multiply %1, %3 : tensor<i32>
      %5 = stablehlo.compare LT, %4, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %5 : tensor<i1>
"""


@pytest.mark.parametrize("comparator", [ABOUT_3, TOGETHER], ids=["a number", "any comparator"])
@pytest.mark.parametrize("size", [None, 0, 1, 2, 5, 16, 23])
def test_any_comparator_sorts_stably(comparator: str, size: int | None) -> None:
    length, known = (11, "?") if size is None else (size, str(size))
    array = np.random.default_rng(1).integers(-9, 9, (3, length)).astype(np.int32)
    places = np.tile(np.arange(length, dtype=np.int32), (3, 1))
    text = sort_text(comparator, f"tensor<3x{known}xi32>", f"tensor<3x{known}xi32>")
    found, index = run(text, array, places, symbols="aa")
    order = np.argsort(np.abs(array - 3), 1, kind="stable")
    np.testing.assert_array_equal(index, order)
    np.testing.assert_array_equal(found, np.take_along_axis(array, order, 1))


def test_places_are_the_index_itself() -> None:
    text = """func.func @main(%x: tensor<?x5xi32>) -> tensor<?x5xi32> {
      %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x5xi32>) -> tensor<i32>
      %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
      %five = stablehlo.constant dense<5> : tensor<1xi32>
      %shape = stablehlo.concatenate %n1, %five, dim = 0
        : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
      %i = stablehlo.dynamic_iota %shape, dim = 1 : (tensor<2xi32>) -> tensor<?x5xi32>
      %0:2 = "stablehlo.sort"(%x, %i) <{dimension = 1 : i64, is_stable = true}> ({
        ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
          %1 = stablehlo.compare GT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %1 : tensor<i1>
      }) : (tensor<?x5xi32>, tensor<?x5xi32>) -> (tensor<?x5xi32>, tensor<?x5xi32>)
      return %0#1 : tensor<?x5xi32>
    }"""
    x = np.array([[1, 3, 3, 0, 1], [5, 4, 3, 2, 5]], np.int32)
    assert run(text, x)[0].tolist() == [[1, 2, 0, 4, 3], [0, 4, 1, 2, 3]]
    assert kinds(text, x) == ["GatherV2", "TopKV2"]


@pytest.mark.parametrize(("element", "size"), [("i8", 200), ("bf16", 600)])
def test_places_of_a_narrow_dtype_stay_rounded_when_they_are_widened(
    element: str, size: int
) -> None:
    text = f"""func.func @main(%x: tensor<{size}xi32>)
        -> (tensor<{size}xi32>, tensor<{size}xi32>) {{
      %narrow = "stablehlo.iota"() <{{iota_dimension = 0 : i64}}> : () -> tensor<{size}x{element}>
      %i = stablehlo.convert %narrow : (tensor<{size}x{element}>) -> tensor<{size}xi32>
      %0:2 = "stablehlo.sort"(%x, %i) <{{dimension = 0 : i64, is_stable = true}}> ({{
        ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
          %1 = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %1 : tensor<i1>
      }}) : (tensor<{size}xi32>, tensor<{size}xi32>) -> (tensor<{size}xi32>, tensor<{size}xi32>)
      return %0#1, %i : tensor<{size}xi32>, tensor<{size}xi32>
    }}"""
    x = np.random.default_rng(0).permutation(size).astype(np.int32)
    places, narrow = run(text, x)
    assert max(narrow) != size - 1
    np.testing.assert_array_equal(places, narrow[np.argsort(x)])


TOP_K = (
    """module {
  func.func @main(%x: tensor<?x{n}x{element}>) -> (tensor<?x{k}x{element}>, tensor<?x{k}xi32>) {{
    {call} : (tensor<?x{n}x{element}>) -> (tensor<?x{k}x{element}>, tensor<?x{k}xi32>)
    return %0#0, %0#1 : tensor<?x{k}x{element}>, tensor<?x{k}xi32>
  }}
  func.func private @top_k.impl(%x: tensor<?x{n}x{element}>)
      -> (tensor<?x{k}x{element}>, tensor<?x{k}xi32>) {{
    %0:2 = stablehlo.custom_call @nothing(%x)
      : (tensor<?x{n}x{element}>) -> (tensor<?x{k}x{element}>, tensor<?x{k}xi32>)
    return %0#0, %0#1 : tensor<?x{k}x{element}>, tensor<?x{k}xi32>
  }}
}""".replace("module {\n", "module {{\n").removesuffix("}")
    + "}}"
)
COMPOSITE = (
    '%0:2 = stablehlo.composite "chlo.top_k" %x'
    " {{composite_attributes = {{k = {k} : i64}}, decomposition = @top_k.impl}}"
)
CUSTOM_CALL = (
    "%0:2 = stablehlo.custom_call @mhlo.topk(%x)"
    " {{mhlo.attributes = {{k = {k} : i64, largest = true}}}}"
)


@pytest.mark.parametrize("call", [COMPOSITE, CUSTOM_CALL], ids=["composite", "custom call"])
def test_the_greatest_numbers(call: str) -> None:
    def text(k: int, n: int, element: str) -> str:
        return TOP_K.format(call=call.format(k=k), k=k, n=n, element=element)

    x = np.array([[NAN, 1, -0.0, 0.0, np.copysign(NAN, -1), INF, -INF, 1]], np.float32)
    values, index = run(text(8, 8, "f32"), x)
    assert index.tolist() == [[0, 5, 1, 7, 3, 2, 6, 4]]
    np.testing.assert_array_equal(values.view(np.int32), x[0, index].view(np.int32))
    k = np.array([[7, 0, 255, 7, 200], [1, 1, 0, 1, 1]], np.uint8)
    values, index = run(text(3, 5, "ui8"), k)
    assert values.tolist() == [[255, 200, 7], [1, 1, 1]]
    assert index.tolist() == [[2, 4, 0], [0, 1, 3]]
    assert kinds(text(3, 5, "ui8"), k) == ["TopKV2"]


def test_as_many_of_the_greatest_as_a_size_says() -> None:
    text = """func.func @main(%x: tensor<2x?xi32>, %y: tensor<?xi32>)
        -> (tensor<2x?xi32>, tensor<2x?xi32>) {
      %k = stablehlo.get_dimension_size %y, dim = 0 : (tensor<?xi32>) -> tensor<i32>
      %0:2 = stablehlo.custom_call @stablehlo.dynamic_top_k(%x, %k)
        : (tensor<2x?xi32>, tensor<i32>) -> (tensor<2x?xi32>, tensor<2x?xi32>)
      return %0#0, %0#1 : tensor<2x?xi32>, tensor<2x?xi32>
    }"""
    x = np.array([[1, 3, 2, 3], [9, 8, 7, 6]], np.int32)
    values, index = run(text, x, np.zeros(3, np.int32))
    assert values.tolist() == [[3, 3, 2], [9, 8, 7]]
    assert index.tolist() == [[1, 3, 2], [0, 1, 2]]


APPROXIMATE = """module {{
  func.func @before(%a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>)
      -> tensor<i1> {{
    %0 = stablehlo.compare {order}, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    return %0 : tensor<i1>
  }}
  func.func @main(%x: tensor<4x?xf32>) -> (tensor<2x?xf32>, tensor<2x?xi32>) {{
    %n = stablehlo.get_dimension_size %x, dim = 1 : (tensor<4x?xf32>) -> tensor<i32>
    %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
    %c4 = stablehlo.constant dense<4> : tensor<1xi32>
    %c2 = stablehlo.constant dense<2> : tensor<1xi32>
    %shape = stablehlo.concatenate %c4, %n1, dim = 0
      : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %less = stablehlo.concatenate %c2, %n1, dim = 0
      : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %i = stablehlo.dynamic_iota %shape, dim = 0 : (tensor<2xi32>) -> tensor<4x?xi32>
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %at = stablehlo.constant dense<-1> : tensor<i32>
    %0:2 = stablehlo.custom_call @ApproxTopK(%x, %i, %low, %at, %less, %less) {{
      called_computations = [@before], indices_of_shape_operands = dense<[4, 5]> : tensor<2xi64>,
      mhlo.backend_config = {{aggregate_to_topk = true, is_fallback = true,
        recall_target = 0.95 : f32, reduction_dim = 0 : i64,
        reduction_input_size_override = -1 : i64, top_k = 2 : i64}}}}
      : (tensor<4x?xf32>, tensor<4x?xi32>, tensor<f32>, tensor<i32>, tensor<2xi32>, tensor<2xi32>)
      -> (tensor<2x?xf32>, tensor<2x?xi32>)
    return %0#0, %0#1 : tensor<2x?xf32>, tensor<2x?xi32>
  }}
}}"""


@pytest.mark.parametrize(("order", "sign"), [("GT", -1), ("LT", 1)])
def test_what_may_be_approximate_is_exact(order: str, sign: int) -> None:
    x = np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32)
    values, index = run(APPROXIMATE.format(order=order), x)
    np.testing.assert_array_equal(index, np.argsort(sign * x, 0)[:2])
    np.testing.assert_array_equal(values, np.take_along_axis(x, index, 0))


def test_complex_numbers_by_their_parts() -> None:
    comparator = """
      %ra = stablehlo.real %a : (tensor<complex<f32>>) -> tensor<f32>
      %rb = stablehlo.real %b : (tensor<complex<f32>>) -> tensor<f32>
      %ia = stablehlo.imag %a : (tensor<complex<f32>>) -> tensor<f32>
      %ib = stablehlo.imag %b : (tensor<complex<f32>>) -> tensor<f32>
      %1 = stablehlo.compare LT, %ia, %ib : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %2 = stablehlo.compare LT, %ra, %rb : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %3 = stablehlo.compare EQ, %ra, %rb : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %4 = stablehlo.and %3, %1 : tensor<i1>
      %5 = stablehlo.or %2, %4 : tensor<i1>
      stablehlo.return %5 : tensor<i1>
    """
    x = np.array([[1 + 2j, 1 - 2j, 0, -1j, 1, 0.5]], np.complex64)
    (found,) = run(sort_text(comparator, "tensor<?x6xcomplex<f32>>"), x)
    np.testing.assert_array_equal(found, np.sort(x, 1))
