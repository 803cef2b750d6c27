"""Elementwise operations agree with NumPy's and Python's numbers, in every dtype."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.to_tensorflow import to_tf
from tests.sampling import sampled
from tests.to_tensorflow.operations.running import (
    graph_of,
    op_names,
    portable_of,
    run,
    run_each,
)

INTEGERS = ("i4", "i8", "i16", "i32", "i64", "ui4", "ui8", "ui16", "ui32", "ui64")
FLOATS: Mapping[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}
COMPLEX: Mapping[str, Any] = {"complex<f32>": np.complex64, "complex<f64>": np.complex128}

finfo: Any = ml_dtypes.finfo


def in_turn(*groups: Sequence[str]) -> list[Any]:
    """Makes parameters of groups of element types, each one graph: all but the first are slow."""
    slow = [pytest.mark.slow]
    return [
        pytest.param(group, marks=slow if i else [], id=group[0]) for i, group in enumerate(groups)
    ]


Line = tuple[str, str]
"""An operation, with %0, %1, ... for the arguments, and its result's type."""


def evaluate(arguments: Sequence[tuple[str, Any]], lines: Sequence[Line]) -> list[Any]:
    """Runs operations on arguments of the given types, all in one module.

    Integers of 4 bits go in and out in 8, as in what JAX exports.
    """
    given = ", ".join(f"%g{i}: {_crossing(kind)}" for i, (kind, _) in enumerate(arguments))
    body = [
        f"%{i} = {_converted_to(f'%g{i}', _crossing(k), k)}" for i, (k, _) in enumerate(arguments)
    ]
    body += [f"%r{i} = {text}" for i, (text, _) in enumerate(lines)]
    body += [
        f"%s{i} = {_converted_to(f'%r{i}', k, _crossing(k))}" for i, (_, k) in enumerate(lines)
    ]
    kinds = ", ".join(_crossing(kind) for _, kind in lines)
    names = ", ".join(f"%s{i}" for i in range(len(lines)))
    written = "\n".join(body)
    text = f"""module {{ func.func @main({given}) -> ({kinds}) {{
        {written}
        return {names} : {kinds} }} }}"""
    return run(text, *(value for _, value in arguments))


def _crossing(kind: str) -> str:
    return re.sub(r"x(u?i)4>$", r"x\g<1>8>", kind)


def _converted_to(value: str, kind: str, wanted: str) -> str:
    return f"stablehlo.convert {value} : ({kind}) -> {wanted}"


def simple(name: str, kind: str, *operands: int, result: str | None = None) -> Line:
    values = ", ".join(f"%{i}" for i in operands)
    kinds = ", ".join([kind] * len(operands))
    result = result or kind
    return f'"stablehlo.{name}"({values}) : ({kinds}) -> {result}', result


def compared(direction: str, kind: str, x: int, y: int, how: str = "NOTYPE") -> Line:
    flags = f"tensor<{re.match(r'tensor<((?:[0-9?]+x)*)', kind)[1]}i1>"  # type: ignore[index]
    return (
        f"stablehlo.compare {direction}, %{x}, %{y}, {how} : ({kind}, {kind}) -> {flags}",
        flags,
    )


# Integers.


def bits_of(element: str) -> int:
    return int(element.lstrip("ui"))


def in_element(element: str, number: int) -> int:
    """Wraps a number around, as the element type does."""
    bits = bits_of(element)
    number %= 2**bits
    is_negative = element.startswith("i") and number >= 2 ** (bits - 1)
    return number - 2**bits if is_negative else number


def numpy_of(element: str) -> Any:
    kind = "uint" if element.startswith("u") else "int"
    return np.dtype(f"{kind}{max(bits_of(element), 8)}")


def corner_integers(element: str) -> list[int]:
    bits = bits_of(element)
    numbers = [0, 1, 2, 3, 5, bits - 1, bits, -1, -2, -3, 2 ** (bits - 1), 2 ** (bits - 1) - 1]
    numbers += [2 ** (bits - 1) + 1, 0x5A5A5A5A5A5A5A5A, 0x0123456789ABCDEF >> 3]
    return sorted({in_element(element, number) for number in numbers})


def truncated(element: str, x: int, y: int) -> int:
    if y == 0:
        return -1
    return abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1)


def power(element: str, x: int, y: int) -> int:
    if y >= 0:
        return pow(x, y, 1 << bits_of(element))
    return (x if y % 2 else 1) if abs(x) == 1 else 0


def shift_arithmetic(element: str, x: int, y: int) -> int:
    bits = bits_of(element)
    signed = in_element(f"i{bits}", x)
    return signed >> min(y % (1 << bits), bits)


def shift_logical(element: str, x: int, y: int) -> int:
    bits = bits_of(element)
    return (x % (1 << bits)) >> (y % (1 << bits))


def shift_left(element: str, x: int, y: int) -> int:
    bits = bits_of(element)
    places = y % (1 << bits)
    return 0 if places >= bits else x << places


BINARY: Mapping[str, Callable[[str, int, int], int]] = {
    "add": lambda e, x, y: x + y,
    "subtract": lambda e, x, y: x - y,
    "multiply": lambda e, x, y: x * y,
    "divide": truncated,
    "remainder": lambda e, x, y: x if y == 0 else x - y * truncated(e, x, y),
    "maximum": lambda e, x, y: max(x, y),
    "minimum": lambda e, x, y: min(x, y),
    "power": power,
    "and": lambda e, x, y: x & y,
    "or": lambda e, x, y: x | y,
    "xor": lambda e, x, y: x ^ y,
    "shift_left": shift_left,
    "shift_right_arithmetic": shift_arithmetic,
    "shift_right_logical": shift_logical,
}
UNARY: Mapping[str, Callable[[str, int], int]] = {
    "not": lambda e, x: ~x,
    "negate": lambda e, x: -x,
    "abs": lambda e, x: abs(x),
    "sign": lambda e, x: (x > 0) - (x < 0),
    "popcnt": lambda e, x: (x % 2 ** bits_of(e)).bit_count(),
    "count_leading_zeros": lambda e, x: bits_of(e) - (x % 2 ** bits_of(e)).bit_length(),
}
DIRECTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "EQ": lambda x, y: x == y,
    "NE": lambda x, y: x != y,
    "LT": lambda x, y: x < y,
    "LE": lambda x, y: x <= y,
    "GT": lambda x, y: x > y,
    "GE": lambda x, y: x >= y,
}


@pytest.mark.parametrize(
    "elements", in_turn(("i4", "i32", "ui8", "ui64"), ("i8", "i16", "i64", "ui4", "ui16", "ui32"))
)
def test_integers(elements: Sequence[str]) -> None:
    arguments: list[tuple[str, Any]] = []
    lines: list[Line] = []
    expected: list[Any] = []
    for element in elements:
        numbers = corner_integers(element)
        pairs = [(x, y) for x in numbers for y in numbers]
        dtype = numpy_of(element)
        kind = f"tensor<{len(pairs)}x{element}>"
        first = len(arguments)
        for i in range(2):
            arguments.append((kind, np.array([pair[i] for pair in pairs], dtype)))

        for name, function in BINARY.items():
            lines.append(simple(name, kind, first, first + 1))
            wanted = [in_element(element, function(element, *pair)) for pair in pairs]
            expected.append((name, element, pairs, np.array(wanted, dtype)))
        for name, single in UNARY.items():
            if element.startswith("u") and name in ("abs", "sign"):
                continue  # which StableHLO has for signed numbers alone
            lines.append(simple(name, kind, first))
            wanted = [in_element(element, single(element, x)) for x, _ in pairs]
            expected.append((name, element, pairs, np.array(wanted, dtype)))
        for direction, compare in DIRECTIONS.items():
            lines.append(compared(direction, kind, first, first + 1))
            found = np.array([compare(*pair) for pair in pairs])
            expected.append((direction, element, pairs, found))
    for result, (name, element, pairs, wanted) in zip(
        evaluate(arguments, lines), expected, strict=True
    ):
        assert result.dtype == wanted.dtype, (name, element)
        wrong = [(pairs[i], result[i], wanted[i]) for i in np.flatnonzero(result != wanted)]
        assert not wrong, (name, element, wrong[:5])


def test_integers_by_constants_need_no_guard() -> None:
    text = """module { func.func @main(%x: tensor<?xi32>) -> (tensor<?xi32>) {
        %shape = stablehlo.constant dense<0> : tensor<i32>
        %three = stablehlo.constant dense<3> : tensor<5xi32>
        %y = stablehlo.constant dense<[1, 2, 3, 4, 5]> : tensor<5xi32>
        %a = stablehlo.reshape %x : (tensor<?xi32>) -> tensor<5xi32>
        %0 = stablehlo.divide %a, %three : tensor<5xi32>
        %1 = stablehlo.remainder %0, %y : tensor<5xi32>
        %2 = stablehlo.shift_left %1, %three : tensor<5xi32>
        %3 = stablehlo.shift_right_arithmetic %2, %y : tensor<5xi32>
        %4 = stablehlo.reshape %3 : (tensor<5xi32>) -> tensor<?xi32>
        return %4 : tensor<?xi32> } }""".replace("?", "5")
    x = np.array([-100, 7, 100, 1000, -1000], np.int32)
    (found,) = run(text, x)
    quotients = np.trunc(x / 3).astype(np.int32)
    np.testing.assert_array_equal(
        found, (np.fmod(quotients, [1, 2, 3, 4, 5]) * 8) >> [1, 2, 3, 4, 5]
    )
    names = op_names(graph_of(_operations(text), [x]))
    assert "SelectV2" not in names


def _operations(text: str) -> Any:
    return to_tf(portable_of(text), with_gradient=False)


def test_flags() -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    kind = "tensor<4xi1>"
    logic = {
        "and": x & y,
        "or": x | y,
        "xor": x ^ y,
        "add": x | y,
        "multiply": x & y,
        "maximum": x | y,
        "minimum": x & y,
    }
    lines = [simple(name, kind, 0, 1) for name in logic]
    lines += [simple("not", kind, 0), simple("select", kind, 0, 1, 0)]
    lines += [compared(direction, kind, 0, 1) for direction in DIRECTIONS]
    expected = [*logic.values(), ~x, np.where(x, y, x)]
    expected += [function(x, y) for function in DIRECTIONS.values()]
    for line, result, wanted in zip(
        lines, evaluate([(kind, x), (kind, y)], lines), expected, strict=True
    ):
        np.testing.assert_array_equal(result, wanted, str(line))


# Floats.


def corner_floats(dtype: Any) -> Any:
    info = finfo(dtype)
    numbers = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.3, -0.3, 3, -7, 10.25, -20]
    numbers += [np.inf, -np.inf, np.nan, float(info.max), float(info.min), 0.49999997, 1e-3, 1000]
    return np.array(numbers, np.float64).astype(dtype)


def ulps(found: Any, wanted: Any, dtype: Any) -> Any:
    """Distances in units of the last place; 0 for what is the same, and infinite for no number."""
    info = finfo(dtype)
    found, rounded = np.asarray(found, np.float64), wanted.astype(dtype).astype(np.float64)
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    tiny = float(info.tiny)
    same |= (np.abs(found) < tiny) & (np.abs(wanted) < tiny)  # machines flush subnormals to zero
    with np.errstate(all="ignore"):
        distance = np.abs(found - wanted) / (float(info.eps) * np.maximum(np.abs(wanted), tiny))
    return np.where(same, 0, np.where(np.isnan(distance), np.inf, distance))


def half_away(x: Any) -> Any:
    whole = np.trunc(x)
    return np.copysign(np.where(np.abs(x - whole) >= 0.5, np.abs(whole) + 1, np.abs(whole)), x)


def sign(x: Any) -> Any:
    return np.where(x == 0, x, np.sign(x))


def logistic(x: Any) -> Any:
    return np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x)))


# With how many units of the last place they may differ.
OF_FLOATS: Mapping[str, tuple[Callable[[Any], Any], float]] = {
    "abs": (np.abs, 0),
    "cbrt": (np.cbrt, 1.01),
    "ceil": (np.ceil, 0),
    "cosine": (np.cos, 2),
    "exponential": (np.exp, 2),
    "exponential_minus_one": (np.expm1, 4),
    "floor": (np.floor, 0),
    "log": (np.log, 2),
    "log_plus_one": (np.log1p, 4),
    "logistic": (logistic, 6),
    "negate": (np.negative, 0),
    "round_nearest_afz": (half_away, 0),
    "round_nearest_even": (np.rint, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2),
    "sign": (sign, 0),
    "sine": (np.sin, 2),
    "sqrt": (np.sqrt, 1),
    "tan": (np.tan, 3),
    "tanh": (np.tanh, 5),
}
OF_TWO_FLOATS: Mapping[str, tuple[Callable[[Any, Any], Any], float]] = {
    "add": (np.add, 0.5),
    "atan2": (np.arctan2, 3),
    "divide": (np.divide, 0.5),
    "maximum": (np.maximum, 0),
    "minimum": (np.minimum, 0),
    "multiply": (np.multiply, 0.5),
    "power": (np.power, 16),
    "remainder": (np.fmod, 0),
    "subtract": (np.subtract, 0.5),
}
_EXACT_ZEROS = {"abs", "ceil", "floor", "negate", "round_nearest_afz", "round_nearest_even", "sign"}


@pytest.mark.parametrize("elements", in_turn(("bf16", "f32"), ("f16", "f64")))
@np.errstate(all="ignore")
def test_floats(elements: Sequence[str]) -> None:
    arguments: list[tuple[str, Any]] = []
    lines: list[Line] = []
    expected: list[Any] = []
    for element in elements:
        dtype = FLOATS[element]
        numbers = corner_floats(dtype)
        x, y = (column.ravel() for column in np.meshgrid(numbers, numbers, indexing="ij"))
        kind = f"tensor<{len(x)}x{element}>"
        flags = f"tensor<{len(x)}xi1>"
        first = len(arguments)
        arguments += [(kind, x), (kind, y)]
        exact_x, exact_y = x.astype(np.float64), y.astype(np.float64)
        for name, (function, most) in OF_FLOATS.items():
            lines.append(simple(name, kind, first))
            expected.append((name, dtype, x, y, function(exact_x), most))
        for name, (binary, most) in OF_TWO_FLOATS.items():
            lines.append(simple(name, kind, first, first + 1))
            expected.append((name, dtype, x, y, binary(exact_x, exact_y), most))
        lines.append(simple("is_finite", kind, first, result=flags))
        expected.append(("is_finite", bool, x, y, np.isfinite(exact_x), 0))
        lines.append(simple("clamp", kind, first, first + 1, first))
        clamped = np.minimum(np.maximum(exact_y, exact_x), exact_x)
        expected.append(("clamp", dtype, x, y, clamped, 0))
        for direction, compare in DIRECTIONS.items():
            lines.append(compared(direction, kind, first, first + 1, "FLOAT"))
            expected.append((direction, bool, x, y, compare(exact_x, exact_y), 0))
    found = evaluate(arguments, lines)
    for result, (name, dtype, x, y, wanted, most) in zip(found, expected, strict=True):
        assert result.dtype == dtype, name
        if dtype is bool:
            np.testing.assert_array_equal(result, wanted, name)
            continue
        distance = ulps(result, wanted, dtype)
        wrong = [(x[i], y[i], result[i], wanted[i]) for i in np.flatnonzero(distance > most)]
        assert not wrong, (name, dtype, wrong[:5])
        if name in _EXACT_ZEROS:
            zeros = np.asarray(wanted == 0)
            np.testing.assert_array_equal(
                np.signbit(result.astype(np.float64))[zeros], np.signbit(wanted)[zeros], name
            )


@pytest.mark.parametrize(
    "element", sampled(list(FLOATS), every=4, keep=["f32"], others=pytest.mark.slow)
)
def test_total_order(element: str) -> None:
    dtype = FLOATS[element]
    info = finfo(dtype)
    rising = [-np.nan, -np.inf, float(info.min), -1, -float(info.tiny), -0.0]
    rising += [0.0, float(info.tiny), 1, float(info.max), np.inf, np.nan]
    numbers = np.array(rising).astype(dtype)
    places = np.arange(len(rising))
    x, y = (column.ravel() for column in np.meshgrid(numbers, numbers, indexing="ij"))
    i, j = (column.ravel() for column in np.meshgrid(places, places, indexing="ij"))
    kind = f"tensor<{len(x)}x{element}>"
    lines = [compared(direction, kind, 0, 1, "TOTALORDER") for direction in DIRECTIONS]
    found = evaluate([(kind, x), (kind, y)], lines)
    for (direction, function), result in zip(DIRECTIONS.items(), found, strict=True):
        np.testing.assert_array_equal(result, function(i, j), direction)


@np.errstate(all="ignore")
def test_reduce_precision() -> None:
    """Each number becomes the nearest that is left, ties to even; subnormals become zeros."""
    kept = {"f32": [(8, 7), (5, 10), (8, 23), (5, 2), (11, 52)], "f16": [(5, 2)], "f64": [(8, 23)]}
    rng = np.random.default_rng(0)
    for element, widths in kept.items():
        dtype = FLOATS[element]
        x = np.concatenate([corner_floats(dtype), rng.normal(size=50).astype(dtype)])
        x = np.concatenate([x, (x[-50:] * 3e-5).astype(dtype), np.array([65520, 65519], dtype)])
        kind = f"tensor<{len(x)}x{element}>"
        lines = [
            (f"stablehlo.reduce_precision %0, format = e{e}m{m} : {kind}", kind) for e, m in widths
        ]
        for (e, m), result in zip(widths, evaluate([(kind, x)], lines), strict=True):
            wanted = np.array([_reduced(float(v), e, m, element) for v in x])
            np.testing.assert_array_equal(result.astype(np.float64), wanted, f"{element} {e} {m}")
            np.testing.assert_array_equal(np.signbit(result), np.signbit(wanted))


def _reduced(x: float, e: int, m: int, element: str) -> float:
    info = finfo(FLOATS[element])
    if not math.isfinite(x) or x == 0:
        return x
    exponent = math.frexp(x)[1] - 1
    if m < info.nmant:
        unit = 2.0 ** (max(exponent, info.minexp) - m)
        x = math.copysign(float(np.rint(x / unit)) * unit, x)
    bias = 2 ** (e - 1) - 1
    if e < info.iexp and abs(x) < 2.0 ** (1 - bias):
        return math.copysign(0, x)
    if e < info.iexp and abs(x) >= 2.0 ** (bias + 1):
        return math.copysign(math.inf, x)
    return x if abs(x) <= float(info.max) else math.copysign(math.inf, x)


# Complex numbers.


@pytest.mark.parametrize("elements", in_turn(("complex<f32>",), ("complex<f64>",)))
@np.errstate(all="ignore")
def test_complex_numbers(elements: Sequence[str]) -> None:
    rng = np.random.default_rng(1)
    draws = {element: rng.normal(size=(2, 2, 40)) for element in COMPLEX}
    arguments: list[tuple[str, Any]] = []
    lines: list[Line] = []
    expected: list[Any] = []
    unary: Mapping[str, Callable[[Any], Any]] = {
        "negate": np.negative,
        "exponential": np.exp,
        "exponential_minus_one": np.expm1,
        "log": np.log,
        "log_plus_one": np.log1p,
        "logistic": lambda x: 1 / (1 + np.exp(-x)),
        "sqrt": np.sqrt,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "sine": np.sin,
        "cosine": np.cos,
        "tan": np.tan,
        "tanh": np.tanh,
        "sign": lambda x: np.where(x == 0, x, x / np.abs(x)),
    }
    binary: Mapping[str, Callable[[Any, Any], Any]] = {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "divide": np.divide,
        "power": np.power,
        "atan2": lambda y, x: -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y)),
        "maximum": lambda x, y: np.array([max(a, b, key=_parts) for a, b in zip(x, y)]),  # noqa: B905
        "minimum": lambda x, y: np.array([min(a, b, key=_parts) for a, b in zip(x, y)]),  # noqa: B905
    }
    for element in elements:
        dtype = COMPLEX[element]
        real, imaginary = draws[element]
        x, y = real + 1j * imaginary
        x[:3], x[3:6], x[6:9] = [0, 1, -1], [1e-4j, 1e-3, -2], y[6:9].real + 1j
        y[9:12] = [1e3, 0.5j, 2]
        x, y = x.astype(dtype), y.astype(dtype)
        kind, parts = f"tensor<40x{element}>", f"tensor<40x{element[8:-1]}>"
        first = len(arguments)
        arguments += [(kind, x), (kind, y), (parts, np.real(x)), (parts, np.imag(y))]
        for name, function in unary.items():
            lines.append(simple(name, kind, first))
            expected.append((name, dtype, function(x.astype(np.clongdouble))))
        for name, pair in binary.items():
            lines.append(simple(name, kind, first, first + 1))
            expected.append((name, dtype, pair(x.astype(np.clongdouble), y.astype(np.clongdouble))))
        for name in ("real", "imag", "abs"):
            lines.append(simple(name, kind, first, result=parts))
            expected.append((name, np.real(x).dtype, getattr(np, name)(x)))
        for direction in ("EQ", "NE"):
            lines.append(compared(direction, kind, first, first))
            expected.append((direction, np.dtype(bool), DIRECTIONS[direction](x, x)))
        lines.append(simple("complex", parts, first + 2, first + 3, result=kind))
        expected.append(("complex", dtype, np.real(x) + 1j * np.imag(y)))
        lines += [simple("real", parts, first + 2), simple("imag", parts, first + 2)]
        expected += [
            ("real", np.real(x).dtype, np.real(x)),
            ("imag", np.real(x).dtype, 0 * np.real(x)),
        ]
    for result, (name, dtype, wanted) in zip(evaluate(arguments, lines), expected, strict=True):
        assert result.dtype == dtype, name
        if np.dtype(dtype).kind == "b":
            np.testing.assert_array_equal(result, wanted, name)
            continue
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(result), finite, name)
        error = np.abs(result - wanted)[finite] / np.maximum(np.abs(wanted[finite]), 1e-3)
        eps = np.finfo(dtype).eps
        most = np.sqrt(eps) if name == "atan2" else 64 * eps  # its formula loses digits
        assert error.max() < most, (name, dtype, error.max())


def _parts(z: complex) -> tuple[float, float]:
    return z.real, z.imag


def test_complex_corners() -> None:
    kind = "tensor<6xcomplex<f64>>"
    x = np.array([1 + 1j, -1, 3 - 2j, 1 + 0j, np.inf, -np.inf + 1j])
    y = np.array([0, 0, complex(0, -np.inf), np.inf, 2, 1])
    lines = [simple("divide", kind, 0, 1), simple("exponential_minus_one", kind, 0)]
    lines += [simple("power", kind, 1, 1), simple("log_plus_one", kind, 1)]
    quotients, powers_of_e, powers, logarithms = evaluate([(kind, x), (kind, y)], lines)
    assert np.isinf(quotients[:2]).all()
    np.testing.assert_array_equal(quotients[2:4], 0)
    assert np.isinf(quotients[4])
    assert powers_of_e[4] == np.inf
    assert powers_of_e[5] == -1
    np.testing.assert_array_equal(powers[:2], 1)
    np.testing.assert_array_equal(logarithms[:2], 0)
    assert logarithms[2] == complex(np.inf, -np.pi / 2)
    assert logarithms[3] == np.inf


# Conversions.


@pytest.mark.parametrize(
    "sources",
    in_turn(
        ("ui8", "i4", "i64", "bf16", "f32", "complex<f32>", "i1"),
        ("ui4", "ui16", "ui32", "ui64", "i8", "i16", "i32", "f16", "f64", "complex<f64>"),
    ),
)
def test_conversions(sources: Sequence[str]) -> None:
    """Every pair of dtypes: integers wrap around, floats saturate, NaN becomes 0."""
    elements: dict[str, Any] = {e: numpy_of(e) for e in INTEGERS}
    elements |= {**FLOATS, **COMPLEX, "i1": np.bool_}
    arguments, lines, expected = [], [], []
    for i, source in enumerate(sources):
        dtype = elements[source]
        if source in INTEGERS:
            exact: list[Any] = corner_integers(source)
        elif source == "i1":
            exact = [False, True]
        else:
            numbers = [0.0, -0.0, 0.4, -0.6, 1.5, -2.5, 127.9, 128, -129, 255.5, 300, -1, 7.9, 9]
            numbers += [65535.9, 7e4, -7e4, 2.0**31, 3e9, 2.0**32, -(2.0**31), -3e9, 1e10, -1e10]
            numbers += [2.0**63, 2.0**64, -(2.0**63), 1e30, np.inf, -np.inf, np.nan]
            with np.errstate(all="ignore"):
                exact = list(np.array(numbers).astype(dtype))
            if source in COMPLEX:
                exact = [dtype(complex(float(x), 1)) for x in numbers]
        values = np.array(exact, dtype)
        kind = f"tensor<{len(exact)}x{source}>"
        arguments.append((kind, values))
        for target, wanted_dtype in elements.items():
            lines.append(simple("convert", kind, i, result=f"tensor<{len(exact)}x{target}>"))
            expected.append((source, target, values, wanted_dtype))
    for result, (source, target, values, dtype) in zip(
        evaluate(arguments, lines), expected, strict=True
    ):
        assert result.dtype == dtype, (source, target)
        with np.errstate(all="ignore"):
            wanted = [_converted(source, target, value, dtype) for value in values]
            in_numpy = np.float32 if target == "bf16" else dtype
            np.testing.assert_array_equal(
                result.astype(in_numpy),
                np.array(wanted, dtype).astype(in_numpy),
                f"{source} to {target}",
            )


def _converted(source: str, target: str, value: Any, dtype: Any) -> Any:
    if target == "i1":
        return bool(value != 0)
    if source in COMPLEX and target not in COMPLEX:
        value = value.real
    if target not in INTEGERS:
        return dtype(value)
    if source in INTEGERS or source == "i1":
        return in_element(target, int(value))
    bits = bits_of(target)
    least = -(2 ** (bits - 1)) if target.startswith("i") else 0
    number = float(value)
    if math.isnan(number):
        return 0
    if math.isinf(number):
        return least if number < 0 else least + 2**bits - 1
    return min(max(int(number), least), least + 2**bits - 1)


def test_floats_of_eight_bits_go_by_float32() -> None:
    for element, dtype in {
        "f8E4M3FN": ml_dtypes.float8_e4m3fn,
        "f8E5M2": ml_dtypes.float8_e5m2,
    }.items():
        x = np.array([0.5, -1.5, 2, 7, 16, -0.25]).astype(dtype)
        y = np.array([1.5, 3, -2, 1, 12, 0.75]).astype(dtype)
        kind, wide, whole = f"tensor<6x{element}>", "tensor<6xf32>", "tensor<6xi8>"
        lines = [
            simple("add", kind, 0, 1),
            simple("exponential", kind, 0),
            compared("LT", kind, 0, 1),
            simple("convert", kind, 0, result=wide),
            simple("convert", wide, 2, result=kind),
            simple("convert", kind, 0, result=whole),
        ]
        exact = x.astype(np.float32), y.astype(np.float32)
        expected = [
            (exact[0] + exact[1]).astype(dtype),
            np.exp(exact[0]).astype(dtype),
            exact[0] < exact[1],
            exact[0],
            exact[1].astype(dtype),
            exact[0].astype(np.int8),
        ]
        for line, result, wanted in zip(
            lines, evaluate([(kind, x), (kind, y), (wide, exact[1])], lines), expected, strict=True
        ):
            assert result.dtype == wanted.dtype
            np.testing.assert_array_equal(
                result.astype(np.float32), wanted.astype(np.float32), str(line)
            )


def test_bits_of_8_bit_floats() -> None:
    octets = np.arange(256, dtype=np.uint8)
    kinds = {"f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2}
    to_floats = [
        simple("bitcast_convert", "tensor<256xui8>", 0, result=f"tensor<256x{kind}>")
        for kind in kinds
    ]
    given: list[Any] = [("tensor<256xui8>", octets)]
    for line, dtype, found in zip(
        to_floats, kinds.values(), evaluate(given, to_floats), strict=True
    ):
        expected = octets.view(dtype)
        np.testing.assert_array_equal(
            found.astype(np.float32), expected.astype(np.float32), str(line)
        )
    for kind, dtype in kinds.items():
        floats = octets.view(dtype)
        back = simple("bitcast_convert", f"tensor<256x{kind}>", 0, result="tensor<256xui8>")
        pair = simple("bitcast_convert", f"tensor<128x2x{kind}>", 1, result="tensor<128xui16>")
        finite = np.where(np.isnan(floats), np.array(0, dtype), floats)
        given = [
            (f"tensor<256x{kind}>", floats),
            (f"tensor<128x2x{kind}>", finite.reshape(128, 2)),
        ]
        found, paired = evaluate(given, [back, pair])
        is_nan = np.isnan(floats)
        np.testing.assert_array_equal(found[~is_nan], octets[~is_nan])
        assert np.isnan(found[is_nan].view(dtype).astype(np.float32)).all()
        np.testing.assert_array_equal(paired, finite.view(np.uint16))


def test_bitcasts() -> None:
    numbers = np.arange(24, dtype=np.int32).reshape(2, 3, 4) * 0x01234567
    lines: list[Line] = []
    expected: list[Any] = []
    dtypes: Mapping[str, Any] = {
        **{"f32": np.float32, "ui32": np.uint32, "i8": np.int8, "ui16": np.uint16},
        **{"bf16": ml_dtypes.bfloat16, "i64": np.int64, "f64": np.float64},
    }
    for element in ("f32", "ui32"):
        lines.append(
            simple("bitcast_convert", "tensor<2x3x4xi32>", 0, result=f"tensor<2x3x4x{element}>")
        )
        expected.append(numbers.view(dtypes[element]))
    for element in ("i8", "bf16", "ui16"):
        n = 4 // np.dtype(dtypes[element]).itemsize
        lines.append(
            simple("bitcast_convert", "tensor<2x3x4xi32>", 0, result=f"tensor<2x3x4x{n}x{element}>")
        )
        expected.append(numbers.view(dtypes[element]).reshape(2, 3, 4, n))
    octets = (np.arange(16, dtype=np.uint8) * 17 + 3).reshape(2, 8)
    for element in ("i64", "f64"):
        lines.append(simple("bitcast_convert", "tensor<2x8xui8>", 1, result=f"tensor<2x{element}>"))
        expected.append(octets.view(dtypes[element]).reshape(2))
    nibbles = np.stack([octets & 15, octets >> 4], -1).reshape(32)
    lines += [
        simple("bitcast_convert", "tensor<2x8xui8>", 1, result="tensor<2x8x2xui4>"),
        simple("bitcast_convert", "tensor<2x8xui8>", 1, result="tensor<2x8x2xi4>"),
        simple("bitcast_convert", "tensor<2x8xui4>", 2, result="tensor<2xi32>"),
        simple("bitcast_convert", "tensor<8x2xui4>", 3, result="tensor<8xi8>"),
        simple("bitcast_convert", "tensor<2x8xui4>", 2, result="tensor<2x8xi4>"),
        simple("bitcast_convert", "tensor<2xi32>", 4, result="tensor<2x8xui4>"),
    ]
    signed = np.where(nibbles < 8, nibbles, nibbles.astype(np.int8) - 16).astype(np.int8)
    words = octets[0].view(np.int32)
    expected += [
        nibbles.reshape(2, 8, 2),
        signed.reshape(2, 8, 2),
        words,
        octets[0].view(np.int8),
        signed[:16].reshape(2, 8),
        nibbles[:16].reshape(2, 8),
    ]
    found = evaluate(
        [
            ("tensor<2x3x4xi32>", numbers),
            ("tensor<2x8xui8>", octets),
            ("tensor<2x8xui4>", nibbles[:16].reshape(2, 8)),
            ("tensor<8x2xui4>", nibbles[:16].reshape(8, 2)),
            ("tensor<2xi32>", words),
        ],
        lines,
    )
    for line, result, wanted in zip(lines, found, expected, strict=True):
        assert result.dtype == wanted.dtype
        np.testing.assert_array_equal(
            result.view(np.uint8), np.ascontiguousarray(wanted).view(np.uint8), str(line)
        )


# Forms.


def graph_names(text: str, *args: Any) -> list[str]:
    names = op_names(graph_of(_operations(text), args))
    plumbing = {
        "Placeholder",
        "Identity",
        "NoOp",
        "PreventGradient",
        "PartitionedCall",
        "StatefulPartitionedCall",
    }
    return [name for name in names if name not in plumbing | {"Const"}]


def test_plain_forms() -> None:
    """Activations, biases and what changes nothing, as a person would have written it."""
    text = """module { func.func @main(%x: tensor<?x3xf32>, %b: tensor<3xf32>)
            -> (tensor<?x3xf32>, tensor<?x3xf32>, tensor<?x3xf32>, tensor<?x3xf32>) {
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %one = stablehlo.constant dense<1.0> : tensor<f32>
        %six = stablehlo.constant dense<6.0> : tensor<f32>
        %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
        %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>
        %m = stablehlo.constant dense<3> : tensor<1xi32>
        %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
        %s = stablehlo.concatenate %n1, %m, dim = 0
            : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
        %zeros = stablehlo.dynamic_broadcast_in_dim %zero, %s, dims = []
            : (tensor<f32>, tensor<2xi32>) -> tensor<?x3xf32>
        %ones = stablehlo.dynamic_broadcast_in_dim %one, %s, dims = []
            : (tensor<f32>, tensor<2xi32>) -> tensor<?x3xf32>
        %sixes = stablehlo.dynamic_broadcast_in_dim %six, %s, dims = []
            : (tensor<f32>, tensor<2xi32>) -> tensor<?x3xf32>
        %lows = stablehlo.dynamic_broadcast_in_dim %low, %s, dims = []
            : (tensor<f32>, tensor<2xi32>) -> tensor<?x3xf32>
        %0 = stablehlo.maximum %x, %zeros : tensor<?x3xf32>
        %1 = stablehlo.minimum %0, %sixes : tensor<?x3xf32>
        %2 = stablehlo.maximum %lows, %x : tensor<?x3xf32>
        %3 = stablehlo.multiply %2, %ones : tensor<?x3xf32>
        %4 = stablehlo.divide %3, %ones : tensor<?x3xf32>
        %5 = stablehlo.subtract %4, %zeros : tensor<?x3xf32>
        %6 = stablehlo.multiply %5, %5 : tensor<?x3xf32>
        %7 = stablehlo.clamp %zero, %x, %six
            : (tensor<f32>, tensor<?x3xf32>, tensor<f32>) -> tensor<?x3xf32>
        return %0, %1, %6, %7
            : tensor<?x3xf32>, tensor<?x3xf32>, tensor<?x3xf32>, tensor<?x3xf32> } }"""
    x = np.array([[-1, 0, 7], [np.nan, 3, np.inf]], np.float32)
    b = np.zeros(3, np.float32)
    relu, relu6, square, clamped = run(text, x, b)
    np.testing.assert_array_equal(relu, np.maximum(x, 0))
    np.testing.assert_array_equal(relu6, np.minimum(np.maximum(x, 0), 6))
    np.testing.assert_array_equal(square, x * x)
    np.testing.assert_array_equal(clamped, np.minimum(np.maximum(x, 0), 6))
    names = [name for name in graph_names(text, x, b) if name.startswith(("R", "S", "M", "A"))]
    assert sorted(set(names) - {"Shape", "StridedSlice"}) == ["Relu", "Relu6", "Square"]


def test_a_known_predicate_chooses() -> None:
    text = """module { func.func @main(%x: tensor<4xbf16>, %y: tensor<4xbf16>) -> tensor<4xbf16> {
        %yes = stablehlo.constant dense<true> : tensor<i1>
        %no = stablehlo.constant dense<false> : tensor<4xi1>
        %0 = stablehlo.select %yes, %x, %y : tensor<i1>, tensor<4xbf16>
        %1 = stablehlo.select %no, %y, %0 : tensor<4xi1>, tensor<4xbf16>
        return %1 : tensor<4xbf16> } }"""
    x = np.arange(4).astype(ml_dtypes.bfloat16)
    (found,) = run(text, x, -x)
    np.testing.assert_array_equal(found, x)
    assert graph_names(text, x, -x) == []


def test_scalars_and_open_sizes() -> None:
    """A predicate and the bounds of clamp may be scalars; results have the operands' sizes."""
    text = """module { func.func @main(%p: tensor<i1>, %x: tensor<?x2xi16>, %y: tensor<?x2xi16>,
            %low: tensor<i16>) -> (tensor<?x2xi16>, tensor<?x2xi16>, tensor<?x2xi1>) {
        %0 = stablehlo.select %p, %x, %y : tensor<i1>, tensor<?x2xi16>
        %high = stablehlo.constant dense<3> : tensor<i16>
        %1 = stablehlo.clamp %low, %x, %high
            : (tensor<i16>, tensor<?x2xi16>, tensor<i16>) -> tensor<?x2xi16>
        %2 = stablehlo.compare LT, %0, %1, SIGNED
            : (tensor<?x2xi16>, tensor<?x2xi16>) -> tensor<?x2xi1>
        return %0, %1, %2 : tensor<?x2xi16>, tensor<?x2xi16>, tensor<?x2xi1> } }"""
    x = np.array([[-5, 2], [3, 9], [1, 0]], np.int16)
    calls = [(flag, x, x + 1, np.int16(-1)) for flag in (True, False)]
    answers = run_each(text, calls, symbols="aa")
    for flag, (chosen, clamped, less) in zip((True, False), answers, strict=True):
        np.testing.assert_array_equal(chosen, x if flag else x + 1)
        np.testing.assert_array_equal(clamped, np.clip(x, -1, 3))
        np.testing.assert_array_equal(less, chosen < clamped)


def test_map() -> None:
    text = """module { func.func @main(%x: tensor<?xf32>, %y: tensor<?xf32>)
            -> (tensor<?xf32>, tensor<?xf32>) {
        %0 = "stablehlo.map"(%x, %y) ({
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %two = stablehlo.constant dense<2.0> : tensor<f32>
            %c = stablehlo.multiply %a, %two : tensor<f32>
            %d = stablehlo.add %b, %c : tensor<f32>
            stablehlo.return %d : tensor<f32>
        }) {dimensions = array<i64: 0>} : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
        %1 = "stablehlo.map"(%x) ({
          ^bb0(%a: tensor<f32>):
            %two = stablehlo.constant dense<2.0> : tensor<f32>
            stablehlo.return %two : tensor<f32>
        }) {dimensions = array<i64: 0>} : (tensor<?xf32>) -> tensor<?xf32>
        return %0, %1 : tensor<?xf32>, tensor<?xf32> } }"""
    x = np.arange(3, dtype=np.float32)
    sums, twos = run(text, x, x + 1, symbols="aa")
    np.testing.assert_array_equal(sums, x + 1 + 2 * x)
    np.testing.assert_array_equal(twos, [2, 2, 2])


# Special functions.


@pytest.mark.parametrize("elements", in_turn(("bf16", "f64"), ("f16", "f32")))
def test_special_functions(elements: Sequence[str]) -> None:
    x = np.array([0.1, 0.5, 0.9, 0.25])
    expected: Mapping[str, Any] = {
        "erf": [math.erf(v) for v in x],
        "erfc": [math.erfc(v) for v in x],
        "lgamma": [math.lgamma(v) for v in x],
        "sinh": np.sinh(x),
        "cosh": np.cosh(x),
        "asin": np.arcsin(x),
        "acos": np.arccos(x),
        "asinh": np.arcsinh(x),
        "acosh": np.full(4, np.nan),
        "atanh": np.arctanh(x),
    }
    for element in elements:
        dtype = FLOATS[element]
        kind = f"tensor<4x{element}>"
        given = x.astype(dtype)
        tolerance = 16 * float(finfo(dtype).eps)
        found = composites(kind, {name: (f"chlo.{name}", 0) for name in expected}, given)
        for name, result in zip(expected, found, strict=True):
            assert result.dtype == dtype
            np.testing.assert_allclose(
                result.astype(float), expected[name], tolerance, 4 * tolerance, err_msg=name
            )


def composites(kind: str, calls: Mapping[str, tuple[Any, ...]], *args: Any) -> list[Any]:
    """Runs composites of the names and arguments, which have decompositions that fail."""
    given = ", ".join(f"%{i}: {kind}" for i in range(len(args)))
    body, functions = [], []
    for i, (name, *places) in enumerate(calls.values()):
        values = ", ".join(f"%{place}" for place in places)
        kinds = ", ".join([kind] * len(places))
        body.append(
            f'%r{i} = stablehlo.composite "{name}" {values} {{decomposition = @d{i}}}'
            f" : ({kinds}) -> {kind}"
        )
        taken = ", ".join(f"%{place}: {kind}" for place in range(len(places)))
        functions.append(
            f"func.func private @d{i}({taken}) -> {kind} {{"
            f" %n = stablehlo.custom_call @unknown(%0) : ({kind}) -> {kind} return %n : {kind} }}"
        )
    names = ", ".join(f"%r{i}" for i in range(len(calls)))
    kinds = ", ".join([kind] * len(calls))
    written, called = "\n".join(body), "\n".join(functions)
    text = f"""module {{ func.func @main({given}) -> ({kinds}) {{
        {written}
        return {names} : {kinds} }}
        {called} }}"""
    return run(text, *args)


def test_special_functions_as_older_jax_calls_them() -> None:
    x = np.array([0.1, -0.5, 0.9], np.float32)
    kind = "tensor<3xf32>"
    expected: Mapping[str, Any] = {"erf": [math.erf(v) for v in x], "atanh": np.arctanh(x)}
    lines = [
        (f"stablehlo.custom_call @mhlo.{name}(%0) : ({kind}) -> {kind}", kind) for name in expected
    ]
    for result, wanted in zip(evaluate([(kind, x)], lines), expected.values(), strict=True):
        np.testing.assert_allclose(result, wanted, 1e-6)


def test_special_functions_by_identities() -> None:
    """psi(x + 1) = psi(x) + 1 / x, zeta(2, 1) = pi^2 / 6, erf(erf_inv(x)) = x, and such."""
    kind = "tensor<3xf64>"
    x = np.array([0.3, 0.5, 0.9])
    calls = {
        "digamma": ("chlo.digamma", 0),
        "digamma of the next": ("chlo.digamma", 1),
        "erf_inv": ("chlo.erf_inv", 0),
        "zeta": ("chlo.zeta", 2, 3),
        "polygamma": ("chlo.polygamma", 3, 3),
        "next_after": ("chlo.next_after", 0, 1),
        "bessel_i1e": ("chlo.bessel_i1e", 1),
        "bessel_i0e": ("jax2tf.bessel_i0e", 1),
        "igamma": ("jax2tf.igamma", 3, 1),
        "igammac": ("jax2tf.igammac", 3, 1),
        "betainc": ("jax2tf.betainc", 2, 3, 0),
    }
    twos, ones = np.full(3, 2.0), np.ones(3)
    found = dict(zip(calls, composites(kind, calls, x, x + 1, twos, ones), strict=True))
    np.testing.assert_allclose(found["digamma of the next"], found["digamma"] + 1 / x, 1e-13)
    np.testing.assert_allclose([math.erf(v) for v in found["erf_inv"]], x, 1e-13)
    np.testing.assert_allclose(found["zeta"], np.pi**2 / 6, 1e-13)
    np.testing.assert_allclose(found["polygamma"], np.pi**2 / 6, 1e-13)
    np.testing.assert_array_equal(found["next_after"], np.nextafter(x, x + 1))
    np.testing.assert_allclose(found["igammac"], np.exp(-(x + 1)), 1e-13)
    np.testing.assert_allclose(found["igamma"] + found["igammac"], 1, 1e-13)
    np.testing.assert_allclose(found["betainc"], x * x, 1e-13)
    t = np.linspace(0, np.pi, 2001)
    for order in (0, 1):
        integrand = np.exp((x + 1)[:, None] * (np.cos(t) - 1)) * np.cos(order * t)
        integral = (integrand[:, 1:] + integrand[:, :-1]).sum(1) / 4000
        np.testing.assert_allclose(found[f"bessel_i{order}e"], integral, 1e-12)


def test_composites_have_their_decomposition_where_tensorflow_has_no_kernel() -> None:
    text = """module { func.func @main(%n: tensor<i32>, %x: tensor<3xf32>,
            %z: tensor<3xcomplex<f32>>) -> (tensor<3xf32>, tensor<3xcomplex<f32>>) {
        %0 = stablehlo.composite "chlo.erf" %n, %x {composite_attributes = {sizes = 1 : i64},
            decomposition = @wrong} : (tensor<i32>, tensor<3xf32>) -> tensor<3xf32>
        %1 = stablehlo.composite "chlo.sinh" %z {decomposition = @twice}
            : (tensor<3xcomplex<f32>>) -> tensor<3xcomplex<f32>>
        return %0, %1 : tensor<3xf32>, tensor<3xcomplex<f32>> }
      func.func private @wrong(%n: tensor<i32>, %x: tensor<3xf32>) -> tensor<3xf32> {
        return %x : tensor<3xf32> }
      func.func private @twice(%z: tensor<3xcomplex<f32>>) -> tensor<3xcomplex<f32>> {
        %0 = stablehlo.add %z, %z : tensor<3xcomplex<f32>>
        return %0 : tensor<3xcomplex<f32>> } }"""
    x = np.array([0.5, -1, 2], np.float32)
    z = x + 1j * x[::-1]
    found, twice = run(text, np.int32(3), x, z)
    np.testing.assert_allclose(found, [math.erf(v) for v in x], 1e-6)
    np.testing.assert_array_equal(twice, z + z)


def test_what_cannot_be_said_names_the_operation() -> None:
    text = """module { func.func @main(%x: tensor<3xcomplex<f32>>) -> tensor<3xcomplex<f32>> {
        %0 = stablehlo.custom_call @mhlo.erf(%x)
            : (tensor<3xcomplex<f32>>) -> tensor<3xcomplex<f32>>
        return %0 : tensor<3xcomplex<f32>> } }"""
    with pytest.raises(ModuleError, match=r"chlo\.erf of complex<f32>"):
        run(text, np.zeros(3, np.complex64))


def test_a_bias_is_added_to_products() -> None:
    def text(bias: str, broadcast: str) -> str:
        return f"""module {{ func.func @main(%x: tensor<8x4xf32>, %w: tensor<4x3xf32>, %b: {bias})
            -> tensor<8x3xf32> {{
            %product = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
                : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32>
            {broadcast}
            %sum = stablehlo.add %bias, %product : tensor<8x3xf32>
            return %sum : tensor<8x3xf32> }} }}"""

    vector = text(
        "tensor<3xf32>",
        """%row = stablehlo.reshape %b : (tensor<3xf32>) -> tensor<1x3xf32>
        %bias = stablehlo.broadcast_in_dim %row, dims = [0, 1]
            : (tensor<1x3xf32>) -> tensor<8x3xf32>""",
    )
    column = text(
        "tensor<8xf32>",
        """%bias = stablehlo.broadcast_in_dim %b, dims = [0]
            : (tensor<8xf32>) -> tensor<8x3xf32>""",
    )
    x, w = np.ones((8, 4), np.float32), np.ones((4, 3), np.float32)
    for code, b, name in (
        (vector, np.arange(3, dtype=np.float32), "BiasAdd"),
        (column, np.arange(8, dtype=np.float32)[:, None], "AddV2"),
    ):
        args = x, w, b.reshape(-1)
        assert name in graph_names(code, *args)
        np.testing.assert_array_equal(run(code, *args)[0], x @ w + b)
