"""Reductions of windows, running ones, and the gradients of pools."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import Target, export
from jax2tf_bridge.to_tensorflow import to_tf
from tests.to_tensorflow.operations.listing import kinds, run_and_list
from tests.to_tensorflow.operations.running import op_names, portable_of, run, trace

INF = np.inf
Array = npt.NDArray[Any]
LOW, HIGH = "0xFF800000", "0x7F800000"


def window_of(
    array: Array,
    reduce: Callable[[list[Any]], Any],
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
) -> Array:
    """Reduces the elements of each window, in row-major order, without what is padding."""
    base, dilation = base or [1] * array.ndim, dilation or [1] * array.ndim
    padded = [
        (n - 1) * b + 1 + low + high
        for n, b, (low, high) in zip(array.shape, base, padding, strict=True)
    ]
    counts = [
        max((n - (w - 1) * d - 1) // s + 1, 0)
        for n, w, d, s in zip(padded, sizes, dilation, strides, strict=True)
    ]
    result = np.zeros(counts, array.dtype)
    for at in np.ndindex(*counts):
        elements = []
        for place in itertools.product(*map(range, sizes)):
            found = [
                i * s + k * d - low
                for i, s, k, d, (low, _) in zip(at, strides, place, dilation, padding, strict=True)
            ]
            inside = all(
                f >= 0 and f % b == 0 and f // b < n
                for f, b, n in zip(found, base, array.shape, strict=True)
            )
            if inside:
                elements.append(array[tuple(f // b for f, b in zip(found, base, strict=True))])
        result[at] = reduce(elements)
    return result


def reduce_text(
    kind: str,
    result: str,
    init: str,
    body: str,
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
) -> str:
    """Writes a module with one reduce_window; `body` is an operation, or lines that make %r."""
    element = kind.removesuffix(">").rsplit("x", 1)[-1]
    base, dilation = base or [1] * len(sizes), dilation or [1] * len(sizes)
    lines = f"%r = stablehlo.{body} %a, %b : tensor<{element}>" if " " not in body else body
    return f"""func.func @main(%x: {kind}) -> {result} {{
      %init = stablehlo.constant dense<{init}> : tensor<{element}>
      %0 = "stablehlo.reduce_window"(%x, %init) <{{
        window_dimensions = array<i64: {", ".join(map(str, sizes))}>,
        window_strides = array<i64: {", ".join(map(str, strides))}>,
        base_dilations = array<i64: {", ".join(map(str, base))}>,
        window_dilations = array<i64: {", ".join(map(str, dilation))}>,
        padding = dense<{[list(p) for p in padding]}> : tensor<{len(sizes)}x2xi64>}}> ({{
        ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
          {lines}
          stablehlo.return %r : tensor<{element}>
      }}) : ({kind}, tensor<{element}>) -> {result}
      return %0 : {result}
    }}"""


def reduce_and_expect(
    array: Array, init: str, body: str, reduce: Callable[[list[Any]], Any], *windows: Any
) -> list[str]:
    """Reduces windows with open and known sizes; returns the operations of the latter."""
    elements = {"float32": "f32", "float64": "f64", "int32": "i32", "uint8": "ui8", "bool": "i1"}
    element = elements[array.dtype.name]
    expected = window_of(array, reduce, *windows)

    def kind(sizes: Sequence[Any]) -> str:
        return f"tensor<{''.join(f'{size}x' for size in sizes)}{element}>"

    found: list[str] = []
    for is_open in (True, False):
        taken, given = (
            ["?"] * array.ndim if is_open else list(sizes)
            for sizes in (array.shape, expected.shape)
        )
        text = reduce_text(kind(taken), kind(given), init, body, *windows)
        (result,), found = run_and_list(text, array)
        assert result.dtype == array.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    return found


IMAGES = np.random.default_rng(0).normal(size=(2, 7, 6, 3)).astype(np.float32)
NONE = [(0, 0)] * 4


def test_pools_of_images() -> None:
    valid = ((1, 2, 2, 1), (1, 2, 2, 1), NONE)
    same = ((1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (0, 1), (0, 0)])
    other = ((1, 3, 2, 1), (1, 2, 1, 1), [(0, 0), (2, 0), (1, 1), (0, 0)])
    for windows in (valid, same):
        assert pool_and_expect(IMAGES, LOW, "maximum", max, *windows) == ["MaxPool"]
    assert pool_and_expect(IMAGES, LOW, "maximum", max, *other) == ["MaxPool", "PadV2"]
    assert pool_and_expect(IMAGES, HIGH, "minimum", min, *valid) == ["MaxPool", "Neg", "Neg"]
    assert reduce_and_expect(IMAGES, "0.0", "add", sum, *valid) == ["AvgPool", "Mul"]
    assert reduce_and_expect(IMAGES, "0.0", "add", sum, *same)[:2] == ["AvgPool", "Mul"]
    # One window over all is a reduction.
    everything = ((1, 7, 6, 1), (1, 1, 1, 1), NONE)
    assert reduce_and_expect(IMAGES, "0.0", "add", sum, *everything) == ["Sum"]


def test_pools_of_other_layouts() -> None:
    channels_first = ((1, 1, 2, 2), (1, 1, 2, 2), NONE)
    found = pool_and_expect(IMAGES, LOW, "maximum", max, *channels_first)
    assert found == ["MaxPool", "Transpose", "Transpose"]
    sequence = ((1, 2, 1), (1, 2, 1), [(0, 0)] * 3)
    found = pool_and_expect(IMAGES[0], LOW, "maximum", max, *sequence)
    assert found == ["MaxPool", "Reshape", "Reshape"]
    found = pool_and_expect(IMAGES[0, :, :, 0], LOW, "maximum", max, (2, 2), (1, 1), [(0, 1)] * 2)
    assert found == ["MaxPool", "Reshape", "Reshape"]
    apart = ((2, 1, 3, 1), (1, 1, 1, 1), NONE)
    assert "MaxPool" not in reduce_and_expect(IMAGES, LOW, "maximum", max, *apart)


def pool_and_expect(*args: Any) -> list[str]:
    """Reduces windows; returns the operations that run where all numbers are finite."""
    found = Counter(reduce_and_expect(*args))
    found.subtract(EXACT_POOL)
    if "Neg" in found:
        found.subtract(["Neg", "Neg"])
    return sorted(found.elements())


EXACT_POOL = Counter(
    {"StatelessIf": 1, "IsFinite": 1, "All": 1, "MaxPool": 2, "IsNan": 1, "Equal": 3, "SelectV2": 4}
)
"""Operations of a pool that only run where a number is infinite or NaN, and those of the check."""
INFINITE = IMAGES.copy()
INFINITE[0, 1, 2, 0] = INFINITE[1, 6, 5, 1] = np.nan
INFINITE[0, 2:, 2:] = INFINITE[0, 1, 3, 2] = -INF
INFINITE[1, 1, 1] = INFINITE[1, 6, 4, 1] = INF
INFINITE[1, 2:4, 2:4] = np.finfo(np.float32).min


@pytest.mark.parametrize(
    "windows",
    [
        ((1, 2, 2, 1), (1, 2, 2, 1), NONE),
        ((1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (0, 1), (0, 0)]),
        ((1, 3, 2, 1), (1, 2, 1, 1), [(0, 0), (2, 0), (1, 1), (0, 0)]),
        ((1, 2, 1, 1), (1, 1, 1, 1), NONE),
    ],
)
def test_pools_of_nan_and_infinity(windows: Any) -> None:
    """A window with NaN is NaN, one of -inf is -inf, and the lowest finite number stays."""
    pools: list[Any] = [(INFINITE, LOW, "maximum", np.max), (-INFINITE, HIGH, "minimum", np.min)]
    for array, init, body, reduce in pools:
        assert "MaxPool" in reduce_and_expect(array, init, body, reduce, *windows)


def test_a_pool_for_converters_is_one_operation() -> None:
    text = reduce_text("tensor<2x7x6x3xf32>", "tensor<2x3x3x3xf32>", LOW, "maximum",
                       (1, 2, 2, 1), (1, 2, 2, 1), NONE)  # fmt: skip
    target = portable_of(text).target
    for converter in (replace(target, for_converters=True), replace(target, names_lines=True)):
        portable = replace(portable_of(text), target=converter)
        names = op_names(trace(portable, [IMAGES]).graph)
        assert names.count("MaxPool") == 1
        assert "StatelessIf" not in names


@pytest.mark.parametrize("window", [2, 3])
def test_same_padding_of_open_sizes_is_recognised(window: int) -> None:
    sizes, strides = (1, window, window, 1), (1, 2, 2, 1)

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, np.float32(-INF), lax.max, sizes, strides, "SAME")

    portable = export(
        pool,
        target=Target.widest(xla=False),
        platforms=["cpu"],
        polymorphic_shapes=["(b, h, w, 3)"],
    )(IMAGES)
    function = tf.function(to_tf(portable, with_gradient=False), autograph=False)
    spec = tf.TensorSpec([None, None, None, 3], tf.float32)
    names = op_names(function.get_concrete_function(spec).graph)
    assert names.count("MaxPool") == 1 + EXACT_POOL["MaxPool"]
    # No arithmetic of sizes is left.
    assert not {"FloorDiv", "Mul", "PadV2"} & set(names)
    assert names.count("SelectV2") == EXACT_POOL["SelectV2"]
    for height in (5, 6, 7):
        x = IMAGES[:, :height]
        total = [max((-(-n // 2) - 1) * 2 + window - n, 0) for n in x.shape[1:3]]
        padding = [(0, 0), *((n // 2, n - n // 2) for n in total), (0, 0)]
        expected = window_of(x, max, sizes, strides, padding)
        np.testing.assert_array_equal(function(x), expected)


def test_nan_and_infinity_where_there_is_no_pool_for_it() -> None:
    x = np.array([[1, np.nan, 2, 3, -INF, -INF]], np.float64)
    text = reduce_text("tensor<1x6xf64>", "tensor<1x3xf64>", "0xFFF0000000000000", "maximum",
                       (1, 2), (1, 2), [(0, 0)] * 2)  # fmt: skip
    np.testing.assert_array_equal(run(text, x)[0], [[np.nan, 3, -INF]])
    assert kinds(text, x) == ["Max", "Reshape"]
    # A window may be of padding alone.
    y = np.array([1, 2], np.float32)
    text = reduce_text("tensor<2xf32>", "tensor<5xf32>", LOW, "maximum", (2,), (1,), [(2, 2)])
    np.testing.assert_array_equal(run(text, y)[0], [-INF, 1, 2, 2, -INF])


def test_integers_and_flags() -> None:
    x = np.random.default_rng(1).integers(-99, 99, (3, 11)).astype(np.int32)
    tiles = ((1, 3), (1, 3), [(0, 0), (1, 0)])
    assert reduce_and_expect(x, "0", "add", sum, *tiles) == ["Pad", "Reshape", "Sum"]
    overlapping = ((2, 3), (1, 2), [(1, 0), (2, 1)])
    reduce_and_expect(x, "-2147483648", "maximum", max, *overlapping)
    reduce_and_expect(x, "0", "add", sum, *overlapping)
    reduce_and_expect(x, "1", "multiply", lambda v: int(np.prod(v)), (1, 2), (1, 1), [(0, 0)] * 2)
    reduce_and_expect(x > 0, "false", "or", any, *overlapping)
    reduce_and_expect(x.astype(np.uint8), "255", "minimum", min, *overlapping)


def test_dilations_and_elements_left_out() -> None:
    x = np.random.default_rng(2).integers(0, 9, (6, 7)).astype(np.int32)
    dilated = ((2, 2), (1, 2), [(1, 2), (0, 3)], (2, 3), (3, 1))
    reduce_and_expect(x, "-2147483648", "maximum", lambda v: max(v, default=-(2**31)), *dilated)
    cut = ((2, 2), (1, 1), [(-1, 1), (1, -2)])
    reduce_and_expect(x, "0", "add", sum, *cut)
    reduce_and_expect(x.astype(np.float32), "0.0", "add", sum, *cut)


def test_the_initial_value_is_combined_once() -> None:
    x = np.random.default_rng(3).normal(size=(2, 5)).astype(np.float32)
    windows = ((1, 3), (1, 1), [(0, 0), (1, 1)])
    reduce_and_expect(x, "10.0", "add", lambda v: sum(v) + 10, *windows)
    reduce_and_expect(x, "0.25", "maximum", lambda v: max([*v, np.float32(0.25)]), *windows)


@pytest.mark.parametrize("length", [3, 9, 13])
def test_long_windows_are_made_of_halves(length: int) -> None:
    x = np.random.default_rng(4).integers(-9, 9, (2, 20)).astype(np.int32)
    found = reduce_and_expect(x, "0", "add", sum, (1, length), (1, 2), [(0, 0), (3, 1)])
    assert found.count("AddV2") < 7


# (1 + a) * (1 + b) - 1, of which 0 is the identity, which nobody knows.
JOINED = """
  %p = stablehlo.add %a, %b : tensor<f32>
  %q = stablehlo.multiply %a, %b : tensor<f32>
  %r = stablehlo.add %p, %q : tensor<f32>
"""


def _joined(init: float) -> Callable[[list[Any]], Any]:
    return lambda values: float(np.prod([1 + v for v in values]) * (1 + init) - 1)


def test_any_reducer() -> None:
    x = np.random.default_rng(5).normal(size=(4, 6)).astype(np.float32)
    for padding in ([(0, 0)] * 2, [(1, 0), (2, 3)]):
        reduce_and_expect(x, "3.0", JOINED, _joined(3.0), (2, 3), (1, 2), padding)
    dilated = ((2, 2), (1, 1), [(1, 1), (0, 2)], (2, 1), (1, 2))
    reduce_and_expect(x, "0.5", JOINED, _joined(0.5), *dilated)


def test_several_operands_in_order() -> None:
    text = """func.func @main(%x: tensor<?x9xf32>, %y: tensor<?x9xf32>)
        -> (tensor<?x8xf32>, tensor<?x8xf32>) {
      %one = stablehlo.constant dense<1.0> : tensor<f32>
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0:2 = "stablehlo.reduce_window"(%x, %y, %one, %zero) <{
        window_dimensions = array<i64: 1, 4>,
        padding = dense<[[0, 0], [2, 0]]> : tensor<2x2xi64>}> ({
        ^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<f32>, %s: tensor<f32>):
          %m = stablehlo.multiply %p, %r : tensor<f32>
          %t = stablehlo.multiply %q, %r : tensor<f32>
          %u = stablehlo.add %t, %s : tensor<f32>
          stablehlo.return %m, %u : tensor<f32>, tensor<f32>
      }) : (tensor<?x9xf32>, tensor<?x9xf32>, tensor<f32>, tensor<f32>)
        -> (tensor<?x8xf32>, tensor<?x8xf32>)
      return %0#0, %0#1 : tensor<?x8xf32>, tensor<?x8xf32>
    }"""
    x, y = np.random.default_rng(6).integers(-2, 3, (2, 3, 9)).astype(np.float32)
    expected = np.zeros((2, 3, 8), np.float32)
    for row, at in np.ndindex(3, 8):
        factor, added = 1.0, 0.0
        for place in range(max(at - 2, 0), at + 2):
            factor, added = factor * x[row, place], added * x[row, place] + y[row, place]
        expected[:, row, at] = factor, added
    np.testing.assert_allclose(run(text, x, y, symbols="aa"), expected)


RUNNING = """module {{
  func.func @reducer(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {{
    {body}
    return %r : tensor<f32>
  }}
  func.func @main(%x: tensor<?x2xf32>) -> tensor<?x2xf32> {{
    %init = stablehlo.constant dense<{init}> : tensor<f32>
    %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x2xf32>) -> tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.subtract %n, %one : tensor<i32>
    %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
    %m1 = stablehlo.reshape %m : (tensor<i32>) -> tensor<1xi32>
    %c0 = stablehlo.constant dense<0> : tensor<1xi32>
    %c1 = stablehlo.constant dense<1> : tensor<1xi32>
    %window = stablehlo.concatenate %n1, %c1, dim = 0
      : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %ones = stablehlo.constant dense<1> : tensor<2xi32>
    %p = stablehlo.concatenate {padding}, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %q = stablehlo.reshape %p : (tensor<2xi32>) -> tensor<1x2xi32>
    %none = stablehlo.constant dense<0> : tensor<1x2xi32>
    %padding = stablehlo.concatenate %q, %none, dim = 0
      : (tensor<1x2xi32>, tensor<1x2xi32>) -> tensor<2x2xi32>
    %0 = stablehlo.custom_call @stablehlo.dynamic_reduce_window(
        %x, %init, {window}, %ones, %ones, %ones, %padding) {{called_computations = [@reducer]}}
      : (tensor<?x2xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>,
        tensor<2x2xi32>) -> tensor<?x2xf32>
    return %0 : tensor<?x2xf32>
  }}
}}"""
OPEN = tf.TensorSpec([None, 2], tf.float32)
FORWARDS, BACKWARDS = "%m1, %c0", "%c0, %m1"


def _running(body: str, init: str, padding: str, window: str = "%window") -> str:
    lines = body if " " in body else f"%r = stablehlo.{body} %a, %b : tensor<f32>"
    return RUNNING.format(body=lines, init=init, padding=padding, window=window)


@pytest.mark.costly
def test_running_reductions_of_open_sizes() -> None:
    cases: dict[tuple[str, str], Callable[[Array], Array]] = {
        ("add", "0.0"): lambda v: np.cumsum(v, 0),
        ("multiply", "1.0"): lambda v: np.cumprod(v, 0),
        ("maximum", LOW): lambda v: np.maximum.accumulate(v, 0),
        (JOINED, "0.0"): lambda v: np.cumprod(v + 1, 0) - 1,
        ("add", "5.0"): lambda v: np.cumsum(v, 0) + 5,
    }
    random = np.random.default_rng(7)
    arrays = [random.normal(size=(length, 2)).astype(np.float32) for length in (2, 3, 10)]
    for (body, init), function in cases.items():
        for padding, step in ((FORWARDS, 1), (BACKWARDS, -1)):
            made = to_tf(portable_of(_running(body, init, padding)), with_gradient=False)
            traced = tf.function(made, autograph=False, input_signature=[OPEN])
            for x in arrays:
                expected = function(x[::step])[::step]
                np.testing.assert_allclose(traced(x)[0], expected, rtol=1e-4, atol=1e-5)
    assert kinds(_running("add", "0.0", BACKWARDS), arrays[0]) == ["Cumsum"]


def test_a_window_whose_size_is_open() -> None:
    # One less than the axis: no running sum.
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    other = """%w = stablehlo.subtract %window, %ones : tensor<2xi32>
    %w2 = stablehlo.maximum %w, %ones : tensor<2xi32>
    %0 ="""
    functions: dict[tuple[str, str], Any] = {
        ("add", "0.0"): lambda v: np.sum(v, 0),
        ("maximum", LOW): lambda v: np.max(v, 0, initial=-INF),
        (JOINED, "0.0"): lambda v: np.prod(v + 1, 0) - 1,
    }
    for (body, init), function in functions.items():
        text = _running(body, init, "%m1, %c0", "%w2").replace("%0 =", other, 1)
        # One window more than elements; the first one is of padding alone.
        expected = [function(x[max(at - 4, 0) : at]) for at in range(6)]
        np.testing.assert_allclose(run(text, x)[0], expected)


def test_running_reductions_of_known_sizes() -> None:
    x = np.random.default_rng(8).integers(-3, 4, (2, 40)).astype(np.int32)
    forwards = ((1, 40), (1, 1), [(0, 0), (39, 0)])
    assert reduce_and_expect(x, "0", "add", sum, *forwards) == ["Cumsum"]
    backwards = ((1, 40), (1, 1), [(0, 0), (0, 39)])
    reduce_and_expect(x, "-2147483648", "maximum", max, *backwards)
    short = ((1, 6), (1, 1), [(0, 0), (5, 0)])
    reduce_and_expect(x[:, :6], "-2147483648", "maximum", max, *short)


def test_cumulative_functions_of_jax() -> None:
    names = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
    lines = [
        f'%r{number} = stablehlo.composite "jax2tf.{name}" %x {{composite_attributes ='
        f" {{axis = {axis} : i64, reverse = {reverse}}}, decomposition = @nothing}}"
        " : (tensor<?x4xf32>) -> tensor<?x4xf32>"
        for number, (name, (axis, reverse)) in enumerate(
            itertools.product(names, ((0, "false"), (1, "true")))
        )
    ]
    types = ", ".join(["tensor<?x4xf32>"] * len(lines))
    text = f"""module {{
      func.func private @nothing(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {{
        return %x : tensor<?x4xf32>
      }}
      func.func @main(%x: tensor<?x4xf32>) -> ({types}) {{
        {" ".join(lines)}
        return {", ".join(f"%r{i}" for i in range(len(lines)))} : {types}
      }}
    }}"""
    x = np.array([[1, -INF, 3, 0.5], [2, -INF, INF, -1], [-3, 1, INF, 7]], np.float32)
    functions: list[Any] = [np.cumsum, np.cumprod]
    functions += [f.accumulate for f in (np.maximum, np.minimum, np.logaddexp)]
    with np.errstate(invalid="ignore"):
        expected = [result for f in functions for result in (f(x, 0), f(x[:, ::-1], 1)[:, ::-1])]
    for result, values in zip(run(text, x), expected, strict=True):
        np.testing.assert_allclose(result, values, rtol=1e-5)


SCATTER = """func.func @main(%x: tensor<{shape}xf32>, %s: tensor<{source}xf32>)
        -> tensor<{shape}xf32> {{
      %init = stablehlo.constant dense<{init}> : tensor<f32>
      %0 = "stablehlo.select_and_scatter"(%x, %s, %init) <{{
        window_dimensions = array<i64: {sizes}>, window_strides = array<i64: {strides}>,
        padding = dense<{padding}> : tensor<{rank}x2xi64>}}> ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          {select}
          stablehlo.return %r : tensor<i1>
      }}, {{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          {scatter}
          stablehlo.return %r : tensor<f32>
      }}) : (tensor<{shape}xf32>, tensor<{source}xf32>, tensor<f32>) -> tensor<{shape}xf32>
      return %0 : tensor<{shape}xf32>
    }}"""


def scattered(
    x: Array, source: Array, sizes: Any, strides: Any, padding: Any, init: float, select: Any,
    scatter: Any,
) -> Array:  # fmt: skip
    """Does as the specification's text says, window by window."""
    result = np.full_like(x, init)
    for at in np.ndindex(*source.shape):
        best = None
        for place in itertools.product(*map(range, sizes)):
            found = tuple(
                i * s + k - low
                for i, s, k, (low, _) in zip(at, strides, place, padding, strict=True)
            )
            if not all(0 <= f < n for f, n in zip(found, x.shape, strict=True)):
                continue
            if best is None or not select(x[best], x[found]):
                best = found
        if best is not None:
            result[best] = scatter(result[best], source[at])
    return result


GE = "%r = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>"
LE = GE.replace("GE", "LE")
NEAR_1 = """%one = stablehlo.constant dense<1.0> : tensor<f32>
  %p = stablehlo.subtract %a, %one : tensor<f32>
  %q = stablehlo.abs %p : tensor<f32>
  %u = stablehlo.subtract %b, %one : tensor<f32>
  %t = stablehlo.abs %u : tensor<f32>
  %r = stablehlo.compare LE, %q, %t : (tensor<f32>, tensor<f32>) -> tensor<i1>"""
ADD = "%r = stablehlo.add %a, %b : tensor<f32>"
SUBTRACT_TWICE = """%p = stablehlo.add %b, %b : tensor<f32>
  %r = stablehlo.subtract %a, %p : tensor<f32>"""


@pytest.mark.parametrize(
    ("sizes", "strides", "padding", "shape", "init", "select", "scatter", "pool"),
    [
        ((1, 2, 2, 1), (1, 2, 2, 1), NONE, (2, 3, 3, 3), 0.0, "GE", "add", True),
        ((1, 3, 3, 1), (1, 2, 1, 1), NONE, (2, 3, 4, 3), 0.0, "GE", "add", True),
        ((1, 1, 2, 2), (1, 1, 1, 2), NONE, (2, 7, 5, 1), 0.0, "LE", "add", True),
        ((1, 2, 3, 1), (1, 2, 1, 1), [(0, 0), (1, 0), (1, 1), (0, 0)], (2, 4, 6, 3), 0.0, "GE",
         "add", False),
        ((1, 2, 3, 1), (1, 2, 1, 1), [(0, 0), (1, 0), (1, 1), (0, 0)], (2, 4, 6, 3), 1.5, "near",
         "add", False),
        ((1, 2, 2, 2), (1, 1, 3, 1), NONE, (2, 6, 2, 2), 0.5, "near", "subtract", False),
    ],
)  # fmt: skip
def test_values_are_scattered_to_what_is_selected(
    sizes: Any, strides: Any, padding: Any, shape: Any, init: float, select: str, scatter: str,
    pool: bool,
) -> None:  # fmt: skip
    random = np.random.default_rng(9)
    # Small integers, so that there are equal ones.
    x = random.integers(-2, 3, (2, 7, 6, 3)).astype(np.float32)
    source = random.integers(-9, 9, shape).astype(np.float32)
    selects = {
        "GE": (GE, lambda a, b: a >= b),
        "LE": (LE, lambda a, b: a <= b),
        "near": (NEAR_1, lambda a, b: abs(a - 1) <= abs(b - 1)),
    }
    scatters = {"add": (ADD, lambda a, b: a + b)}
    scatters["subtract"] = (SUBTRACT_TWICE, lambda a, b: a - 2 * b)
    expected = scattered(
        x, source, sizes, strides, padding, init, selects[select][1], scatters[scatter][1]
    )
    for first in ("2", "?"):
        text = SCATTER.format(
            shape="x".join(map(str, (first, *x.shape[1:]))),
            source="x".join(map(str, (first, *shape[1:]))),
            init=init,
            sizes=", ".join(map(str, sizes)),
            strides=", ".join(map(str, strides)),
            padding=[list(p) for p in padding],
            rank=len(sizes),
            select=selects[select][0],
            scatter=scatters[scatter][0],
        )
        (result,), found = run_and_list(text, x, source, symbols="aa")
        np.testing.assert_allclose(result, expected)
        assert ("MaxPoolGrad" in found) == pool


@pytest.mark.parametrize(("select", "sign"), [(GE, 1), (LE, -1)])
def test_gradients_of_pools_of_nan_and_infinity(select: str, sign: int) -> None:
    def selects(a: Any, b: Any) -> bool:
        return bool(sign * a >= sign * b)

    windows = ((1, 2, 2, 1), (1, 2, 2, 1), NONE)
    x, source = sign * INFINITE, np.random.default_rng(10).normal(size=(2, 3, 3, 3))
    source = source.astype(np.float32)
    text = SCATTER.format(
        shape="2x7x6x3",
        source="2x3x3x3",
        init=0.0,
        sizes="1, 2, 2, 1",
        strides="1, 2, 2, 1",
        padding=[list(p) for p in NONE],
        rank=4,
        select=select,
        scatter=ADD,
    )
    expected = scattered(x, source, *windows, 0.0, selects, lambda a, b: a + b)
    (result,), found = run_and_list(text, x, source)
    np.testing.assert_allclose(result, expected)
    assert "MaxPoolGrad" in found
