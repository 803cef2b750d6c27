"""The bits of floats, by arithmetic: ONNX Runtime cannot reinterpret them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax2tf_bridge.emitters import NoOperationError
from jax2tf_bridge.to_onnx._arithmetic import choose, is_negative
from jax2tf_bridge.to_onnx._functions import as_dtype, cast, function
from jax2tf_bridge.to_onnx._graph import DTYPES, OnnxDType, OnnxGraph, Tensor
from jax2tf_bridge.to_onnx._movement import expand_dims, getitem


@function("bitcast")
def bitcast(graph: OnnxGraph, x: Tensor, dtype: OnnxDType) -> Tensor:
    """Reads the bits of elements as another dtype, as tf.bitcast does."""
    dtype = as_dtype(dtype)
    if x.dtype is dtype:
        return x
    if x.dtype.is_complex or dtype.is_complex:
        raise NoOperationError("ONNX has no complex numbers")
    if x.value is not None and x.dtype.size == dtype.size:
        return graph.constant(x.value.view(dtype.as_numpy_dtype))
    bits = _read_bits(graph, x) if x.dtype.is_floating else x
    bits = cast(graph, bits, _unsigned(bits.dtype.size))
    if bits.dtype.size > dtype.size:
        bits = _split(graph, bits, dtype.size)
    elif bits.dtype.size < dtype.size:
        bits = _join(graph, bits, dtype.size)
    return _make_float(graph, bits, dtype) if dtype.is_floating else cast(graph, bits, dtype)


def _unsigned(size: int) -> OnnxDType:
    return DTYPES[f"uint{8 * size}"]


def _split(graph: OnnxGraph, bits: Tensor, size: int) -> Tensor:
    """Splits integers into smaller ones along a new last axis, the lowest bits first."""
    places = np.arange(bits.dtype.size // size) * (8 * size)
    shifted = graph.make("bitwise.right_shift", expand_dims(graph, bits, -1), places)
    return cast(graph, shifted, _unsigned(size))


def _join(graph: OnnxGraph, bits: Tensor, size: int) -> Tensor:
    """Joins the integers along the last axis to larger ones."""
    narrow = bits.dtype.size
    parts = [
        cast(graph, getitem(graph, bits, (Ellipsis, i)), _unsigned(size))
        for i in range(size // narrow)
    ]
    shifted = (
        graph.make("bitwise.left_shift", part, 8 * narrow * i) if i else part
        for i, part in enumerate(parts)
    )
    return functools.reduce(functools.partial(graph.make, "bitwise.bitwise_or"), shifted)


@dataclass(frozen=True)
class _Format:
    """A format of floats, and the dtype in which it is computed.

    Attributes:
      dtype: the floats that are computed with; they represent all numbers of the format.
      bits: the signed integers with as many bits.
      n_fraction: the number of bits of the fraction.
      n_exponent: the number of bits of the exponent.
    """

    dtype: OnnxDType
    bits: OnnxDType
    n_fraction: int
    n_exponent: int

    @property
    def width(self) -> int:
        return 1 + self.n_exponent + self.n_fraction

    @property
    def bias(self) -> int:
        return (1 << (self.n_exponent - 1)) - 1

    @property
    def least(self) -> int:
        """Exponent of the least normal number."""
        return 1 - self.bias

    def powers(self) -> np.ndarray[Any, Any]:
        """Returns the powers of 2 by exponent bits; those of subnormal numbers first."""
        last = (1 << self.n_exponent) - 1
        exponents = [max(i - self.bias, self.least) for i in range(last)]
        values = [math.ldexp(1.0, exponent) for exponent in exponents]
        return np.array([*values, math.inf], self.dtype.as_numpy_dtype)


_FORMATS = {
    "float16": _Format(DTYPES["float32"], DTYPES["int32"], 10, 5),
    "float32": _Format(DTYPES["float32"], DTYPES["int32"], 23, 8),
    "float64": _Format(DTYPES["float64"], DTYPES["int64"], 52, 11),
}


def _read_bits(graph: OnnxGraph, x: Tensor) -> Tensor:
    """Returns the bits of floats as integers; NaN has the bits of NumPy's."""
    form = _FORMATS[x.dtype.name]
    wide = cast(graph, x, form.dtype)
    size = graph.make("abs", wide)
    is_normal = size >= math.ldexp(1, form.least)
    plain = choose(graph, is_normal & (size < math.inf), size, 1)
    # A logarithm may round to the next integer; a comparison with the power of 2 corrects that.
    guess = graph.make("floor", graph.make("math.log", plain) * (1 / math.log(2)))
    exponent = graph.make("clip_by_value", cast(graph, guess, form.bits), form.least, form.bias)
    powers = graph.constant(form.powers())
    power = graph.make("gather", powers, exponent + form.bias)
    is_low, is_high = plain < power, plain >= power * 2
    exponent = exponent + cast(graph, is_high, form.bits) - cast(graph, is_low, form.bits)
    power = graph.make("gather", powers, exponent + form.bias)
    place = 1 << form.n_fraction
    fraction = cast(graph, (plain / power - 1) * place, form.bits)
    bits = (exponent + form.bias) * place + fraction
    # Subnormal numbers are integers times the least one.
    small = choose(graph, is_normal, 0, size) * math.ldexp(1, -form.least) * place
    bits = choose(graph, is_normal, bits, cast(graph, small, form.bits))
    infinity = ((1 << form.n_exponent) - 1) << form.n_fraction
    bits = choose(graph, size == math.inf, infinity, bits)
    nan = infinity | 1 << (form.n_fraction - 1)
    bits = choose(graph, graph.make("math.is_nan", wide), nan, bits)
    sign = -(1 << (form.width - 1)) if form.width == 8 * form.bits.size else 1 << (form.width - 1)
    bits = choose(graph, is_negative(wide), bits + sign, bits)
    return cast(graph, bits, _unsigned(x.dtype.size))


def _make_float(graph: OnnxGraph, bits: Tensor, dtype: OnnxDType) -> Tensor:
    form = _FORMATS[dtype.name]
    wide = cast(graph, bits, form.bits)
    size = graph.make("bitwise.bitwise_and", wide, (1 << (form.width - 1)) - 1)
    place = 1 << form.n_fraction
    exponent = graph.make("truncatediv", size, place)
    fraction = graph.make("bitwise.bitwise_and", size, place - 1)
    is_nan = (exponent == (1 << form.n_exponent) - 1) & (fraction != 0)
    part = cast(graph, fraction, form.dtype) * math.ldexp(1, -form.n_fraction)
    part = part + cast(graph, exponent != 0, form.dtype)  # 0 for subnormal numbers
    value = part * graph.make("gather", graph.constant(form.powers()), exponent)
    value = choose(graph, is_nan, math.nan, value)
    highest_bit = graph.make("bitwise.right_shift", bits, 8 * bits.dtype.size - 1)
    value = choose(graph, highest_bit != 0, -value, value)
    return cast(graph, value, dtype)
