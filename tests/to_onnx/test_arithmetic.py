"""Elementwise functions of every dtype in ONNX Runtime: integers wrap, floats keep their bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf_bridge import Signature, save_onnx
from tests.to_onnx.running import parts, run

Functions = Mapping[str, Callable[..., Any]]


def _compute(
    folder: Path, functions: Functions, *args: Any
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Computes functions of the same arguments in ONNX Runtime, in one model, and in JAX."""

    def every(*values: Any) -> list[Any]:
        return [function(*values) for function in functions.values()]

    with jax.enable_x64(True):
        signature = Signature(every, args=list(args))
        saved = save_onnx(folder / "m.onnx", signature, verify=False, overwrite=True)
        want = [*map(np.asarray, jax.jit(every)(*args))]
    (served,) = saved.signatures.values()
    got = run(saved.path, dict(zip(served.inputs, map(parts, args), strict=True)))
    by_name = [dict(zip(functions, arrays, strict=True)) for arrays in (got.values(), want)]
    return by_name[0], by_name[1]


def _assert_equal(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> None:
    for name, expected in want.items():
        assert got[name].dtype == expected.dtype, name
    wrong = [name for name in want if not np.array_equal(got[name], want[name], equal_nan=True)]
    assert not wrong, [(name, got[name], want[name]) for name in wrong]


_INTEGERS: Functions = MappingProxyType(
    {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "neg": lambda x, y: -x,
        "abs": lambda x, y: jnp.abs(x),
        "sign": lambda x, y: jnp.sign(x),
        "floor_divide": lambda x, y: jnp.floor_divide(x, y),
        "remainder": lambda x, y: jnp.remainder(x, y),
        "div": lambda x, y: lax.div(x, y),
        "rem": lambda x, y: lax.rem(x, y),
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "xor": lambda x, y: x ^ y,
        "not": lambda x, y: ~x,
        "max": jnp.maximum,
        "min": jnp.minimum,
        "less": lambda x, y: x < y,
        "greater_equal": lambda x, y: x >= y,
        "equal": lambda x, y: x == y,
        "left": lambda x, y: lax.shift_left(x, y % 9),
        "arithmetic": lambda x, y: lax.shift_right_arithmetic(x, abs(y % 9)),
        "logical": lambda x, y: lax.shift_right_logical(x, abs(y % 9)),
        "far_left": lambda x, y: lax.shift_left(x, jnp.full_like(x, 100)),
        "far_right": lambda x, y: lax.shift_right_arithmetic(x, jnp.full_like(x, 100)),
        "far_logical": lambda x, y: lax.shift_right_logical(x, jnp.full_like(x, 100)),
        "population_count": lambda x, y: lax.population_count(x),
        "clz": lambda x, y: lax.clz(x),
        "power": lambda x, y: x**3,
        "where": lambda x, y: jnp.where(x > y, x, y),
        "clip": lambda x, y: jnp.clip(x, 2, 5),
        "to_float": lambda x, y: x.astype(jnp.float32),
        "to_int8": lambda x, y: x.astype(jnp.int8),
        "to_uint16": lambda x, y: x.astype(jnp.uint16),
        "to_int64": lambda x, y: x.astype(jnp.int64),
        "to_bool": lambda x, y: x.astype(bool),
        "sum": lambda x, y: jnp.sum(x, dtype=x.dtype),
        "prod": lambda x, y: jnp.prod(y, dtype=x.dtype),
        "extremes": lambda x, y: jnp.stack([x.max(), x.min()]),
        "places": lambda x, y: jnp.stack([x.argmax(), x.argmin()]),
        "cumsum": lambda x, y: jnp.cumsum(x, dtype=x.dtype),
        "sorted": lambda x, y: jnp.sort(x),
    }
)


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)
def test_integers_wrap(dtype: str, tmp_path: Path) -> None:
    limits = np.iinfo(dtype)
    low, high = limits.min, limits.max
    few = np.array([low, low + 1, 7, 5, 3, 0, 1, high - 1, high], dtype)
    x, y = (each.reshape(-1) for each in np.meshgrid(few, few))
    y = np.where(y == 0, np.array(-3 if low else 3).astype(dtype), y)
    got, want = _compute(tmp_path, _INTEGERS, x, y)
    _assert_equal(got, want)


_FLOATS: Functions = MappingProxyType(
    {
        **{
            name: getattr(jnp, name)
            for names in (
                "sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh",
                "exp exp2 expm1 log log1p log2 sqrt cbrt square reciprocal abs sign",
                "floor ceil rint trunc isnan isinf isfinite signbit sinc deg2rad nan_to_num",
            )
            for name in names.split()
        },
        **{
            name: getattr(jax.nn, name)
            for name in (
                "sigmoid",
                "softplus",
                "silu",
                "gelu",
                "elu",
                "relu",
                "relu6",
                "log_sigmoid",
            )
        },
        "rsqrt": lax.rsqrt,
        "erf": lax.erf,
        "erfc": lax.erfc,
        "erf_inv": lambda x: lax.erf_inv(jnp.clip(x, -0.9, 0.9)),
        "lgamma": lambda x: lax.lgamma(jnp.abs(x) + 1),
        "round_away": lambda x: lax.round(x),
        "cube": lambda x: x**3,
        "power": lambda x: jnp.abs(x) ** 0.3,
    }
)
_PAIRS: Functions = MappingProxyType(
    {
        "arctan2": jnp.arctan2,
        "remainder": jnp.remainder,
        "fmod": jnp.fmod,
        "floor_divide": jnp.floor_divide,
        "maximum": jnp.maximum,
        "minimum": jnp.minimum,
        "fmax": jnp.fmax,
        "hypot": jnp.hypot,
        "copysign": jnp.copysign,
        "less": jnp.less,
        "equal": jnp.equal,
        "greater_equal": jnp.greater_equal,
        "not_equal": jnp.not_equal,
        "divide": jnp.divide,
        "logaddexp": jnp.logaddexp,
        "heaviside": jnp.heaviside,
    }
)
_SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan]
_NUMBERS = [0.5, -0.5, 0.3, -0.9, 1.0, -1.0, 1.5, 2.5, -2.5, 3.7, -3.2, 0.0078125, 11.0, -9.5]
_TOLERANCES = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-11}


def _assert_near(
    got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], tolerance: float
) -> None:
    for name, expected in want.items():
        assert got[name].dtype == expected.dtype, name
    # The difference of two infinities is NaN, so equal ones are compared first.
    with np.errstate(invalid="ignore"):
        near = {
            name: np.asarray(np.isclose(got[name], array, tolerance, tolerance, equal_nan=True))
            for name, array in want.items()
        }
    wrong = [name for name, is_near in near.items() if not is_near.all()]
    assert not wrong, [(n, got[n][~near[n]], want[n][~near[n]]) for n in wrong]


@pytest.mark.parametrize("dtype", _TOLERANCES)
def test_floats(dtype: str, tmp_path: Path) -> None:
    x = np.array([*_SPECIAL, *_NUMBERS], dtype)
    got, want = _compute(tmp_path, _FLOATS, x)
    _assert_near(got, want, _TOLERANCES[dtype])
    for name in (
        "sin",
        "tan",
        "tanh",
        "arcsin",
        "arctan",
        "sinh",
        "sqrt",
        "floor",
        "rint",
        "trunc",
    ):
        signs = [np.signbit(array[name][:2]).tolist() for array in (got, want)]
        assert signs[0] == signs[1], name


@pytest.mark.parametrize("dtype", _TOLERANCES)
def test_pairs_of_floats(dtype: str, tmp_path: Path) -> None:
    few = [*_SPECIAL, 0.5, -0.75, 3.0, -2.0]
    x, y = (each.reshape(-1).astype(dtype) for each in np.meshgrid(few, few))
    got, want = _compute(tmp_path, _PAIRS, x, y)
    _assert_near(got, want, _TOLERANCES[dtype])


@pytest.mark.parametrize(
    ("dtype", "unsigned"), [("float16", "uint16"), ("float32", "uint32"), ("float64", "uint64")]
)
def test_bits_of_floats(dtype: str, unsigned: str, tmp_path: Path) -> None:
    kind = np.finfo(dtype)
    small = [kind.smallest_subnormal, -kind.smallest_subnormal, kind.tiny / 2, kind.tiny, kind.max]
    x = np.array([0.0, -0.0, np.inf, -np.inf, 1.0, -1.5, 3.25, -kind.max, *small], dtype)
    bits = x.view(unsigned)
    signed = unsigned.removeprefix("u")
    functions = {
        "bits": lambda x, bits: lax.bitcast_convert_type(x, unsigned),
        "signed_bits": lambda x, bits: lax.bitcast_convert_type(x, signed),
        "floats": lambda x, bits: lax.bitcast_convert_type(bits, dtype),
        "signbit": lambda x, bits: jnp.signbit(x),
        "exponents": lambda x, bits: lax.bitcast_convert_type(x, unsigned) >> 3,
    }
    got, want = _compute(tmp_path, functions, x, bits)
    want["bits"], want["floats"] = bits, x  # JAX's CPU may take subnormal numbers for 0
    want["signed_bits"], want["exponents"] = x.view(signed), bits >> 3
    _assert_equal(got, want)
    np.testing.assert_array_equal(got["floats"].view(unsigned), bits)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_next_float(dtype: str, tmp_path: Path) -> None:
    x = np.array([1.0, -1.0, 2.0, 0.75, np.inf, 3.5, np.nan, 1.0], dtype)
    y = np.array([2.0, -2.0, 1.0, 0.75, 1.0, -np.inf, 1.0, np.nan], dtype)
    got, want = _compute(tmp_path, {"next": jnp.nextafter}, x, y)
    _assert_equal(got, want)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers(dtype: str, tmp_path: Path) -> None:
    numbers = [0.5 + 1j, -1.5 + 0.25j, 2 - 3j, -0.5 - 0.5j, 1j, 3]
    x, y = (each.reshape(-1).astype(dtype) for each in np.meshgrid(numbers, numbers))
    functions: Functions = {
        "add": lambda x, y: x + y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
        "abs": lambda x, y: jnp.abs(x),
        "angle": lambda x, y: jnp.angle(x),
        "conj": lambda x, y: jnp.conj(x),
        "real": lambda x, y: jnp.real(x),
        "imag": lambda x, y: jnp.imag(x),
        "exp": lambda x, y: jnp.exp(x),
        "log": lambda x, y: jnp.log(x),
        "sqrt": lambda x, y: jnp.sqrt(x),
        "sin": lambda x, y: jnp.sin(x),
        "tanh": lambda x, y: jnp.tanh(x),
        "equal": lambda x, y: x == y,
        "where": lambda x, y: jnp.where(x == y, x, 2 * y),
        "sum": lambda x, y: jnp.sum(x),
        "prod": lambda x, y: jnp.prod(x[:3]),
    }
    got, want = _compute(tmp_path, functions, x, y)
    tolerance = 1e-5 if dtype == "complex64" else 1e-12
    _assert_near(got, {name: parts(array) for name, array in want.items()}, tolerance)


def test_booleans(tmp_path: Path) -> None:
    x, y = np.array([True, True, False, False]), np.array([True, False, True, False])
    functions: Functions = {
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "xor": lambda x, y: x ^ y,
        "not": lambda x, y: ~x,
        "less": lambda x, y: x < y,
        "equal": lambda x, y: x == y,
        "where": lambda x, y: jnp.where(x, y, ~y),
        "any": lambda x, y: jnp.any(x),
        "all": lambda x, y: jnp.all(x, keepdims=True),
        "sum": lambda x, y: jnp.sum(x),
        "number": lambda x, y: x + jnp.int8(1),
        "max": lambda x, y: jnp.maximum(x, y),
        "cumulated": lambda x, y: lax.cummax(x.astype(jnp.uint8)),
        "sorted": lambda x, y: jnp.sort(x),
    }
    _assert_equal(*_compute(tmp_path, functions, x, y))


def test_products_along_open_axes(tmp_path: Path) -> None:
    """Products of integers wrap around; complex products have open axes as well."""

    def products(x: Any, z: Any) -> dict[str, Any]:
        return {
            "rows": jnp.prod(x, 0),
            "all": jnp.prod(x),
            "kept": jnp.prod(x, 1, keepdims=True),
            "complex": jnp.prod(z, 0),
        }

    def make(rows: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(rows)
        z = (rng.normal(size=(rows, 2)) + 1j * rng.normal(size=(rows, 2))).astype(np.complex64)
        return rng.integers(-(2**31), 2**31, (rows, 3), dtype=np.int32) | 1, z

    signature = Signature(products, args=make(4), polymorphic_shapes=["(b, 3)", "(b, 2)"])
    saved = save_onnx(tmp_path / "m.onnx", signature)
    for rows in (1, 2, 5, 8):
        x, z = make(rows)
        got, want = run(saved.path, {"x": x, "z": parts(z)}), jax.jit(products)(x, z)
        for name in ("rows", "all", "kept"):
            np.testing.assert_array_equal(got[name], want[name])
        np.testing.assert_allclose(got["complex"], parts(np.asarray(want["complex"])), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_scatters(dtype: str, tmp_path: Path) -> None:
    """Several updates of a row, some out of bounds; NaN is in maxima as in JAX."""
    rng = np.random.default_rng(0)
    x, y = ((50 * rng.normal(size=(n, 3))).astype(dtype) for n in (5, 9))
    if dtype == "float32":
        x[2, 2], y[3, 1], y[4, 0] = np.nan, np.nan, np.inf
    rows = np.array([0, 1, 1, 7, 2, 2, 0, -9, 1], np.int32)
    functions: dict[str, Callable[..., Any]] = {
        "max": lambda x, i, y: x.at[i].max(y),
        "min": lambda x, i, y: x.at[i].min(y, mode="clip"),
        "multiply": lambda x, i, y: x.at[i].multiply(y),
        "segment_max": lambda x, i, y: jax.ops.segment_max(y, abs(i) % 4, 5),
        "segment_prod": lambda x, i, y: jax.ops.segment_prod(y, abs(i) % 4, 5),
    }
    got, want = _compute(tmp_path, functions, x, rows, y)
    for name in functions:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6, err_msg=name)
