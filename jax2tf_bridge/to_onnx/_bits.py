"""The bits of floats, by arithmetic: ONNX Runtime cannot reinterpret them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax2tf_bridge.emitters import NoOperationError
from jax2tf_bridge.to_onnx._arithmetic import choose
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
    count = bits.dtype.size // size
    places = graph.constant(np.arange(count).astype(bits.dtype.as_numpy_dtype) * (8 * size))
    shifted = graph.make("bitwise.right_shift", expand_dims(graph, bits, -1), places)
    return cast(graph, shifted, _unsigned(size))


def _join(graph: OnnxGraph, bits: Tensor, size: int) -> Tensor:
    """Joins the integers along the last axis to larger ones."""
    wide = _unsigned(size)
    count = size // bits.dtype.size
    total: Any = None
    for i in range(count):
        part = cast(graph, getitem(graph, bits, (Ellipsis, i)), wide)
        places = graph.constant(np.array(8 * bits.dtype.size * i, wide.as_numpy_dtype))
        part = graph.make("bitwise.left_shift", part, places) if i else part
        total = part if total is None else graph.make("bitwise.bitwise_or", total, part)
    result: Tensor = total
    return result


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


class _Numbers:
    """Constants of two dtypes."""

    def __init__(self, graph: OnnxGraph, form: _Format) -> None:
        self._graph, self._form = graph, form

    def float(self, value: float) -> Tensor:
        return self._graph.constant(np.array(value, self._form.dtype.as_numpy_dtype))

    def int(self, value: int) -> Tensor:
        return self._graph.constant(np.array(value, self._form.bits.as_numpy_dtype))


def _read_bits(graph: OnnxGraph, x: Tensor) -> Tensor:
    """Returns the bits of floats as integers; NaN has the bits of NumPy's."""
    form = _FORMATS[x.dtype.name]
    number = _Numbers(graph, form)
    wide = cast(graph, x, form.dtype)
    size = graph.make("abs", wide)
    zero, one = number.float(0), number.float(1)
    is_normal = size >= number.float(math.ldexp(1, form.least))
    is_finite = size < number.float(np.inf)
    plain = choose(graph, graph.make("logical_and", is_normal, is_finite), size, one)
    # A logarithm may round to the next integer; a comparison with the power of 2 corrects that.
    guess = graph.make("floor", graph.make("math.log", plain) * number.float(1 / math.log(2)))
    exponent = cast(graph, guess, form.bits)
    exponent = graph.make("clip_by_value", exponent, number.int(form.least), number.int(form.bias))
    powers = graph.constant(form.powers())
    power = graph.make("gather", powers, exponent + number.int(form.bias))
    is_low, is_high = plain < power, plain >= power * number.float(2)
    exponent = exponent + cast(graph, is_high, form.bits) - cast(graph, is_low, form.bits)
    power = graph.make("gather", powers, exponent + number.int(form.bias))
    shift = number.float(1 << form.n_fraction)
    fraction = cast(graph, (plain / power - one) * shift, form.bits)
    place = number.int(1 << form.n_fraction)
    bits = (exponent + number.int(form.bias)) * place + fraction
    # Subnormal numbers are integers times the least one.
    half = number.float(math.ldexp(1, -form.least))
    small = cast(graph, choose(graph, is_normal, zero, size) * half * shift, form.bits)
    bits = choose(graph, is_normal, bits, small)
    infinity = ((1 << form.n_exponent) - 1) << form.n_fraction
    bits = choose(
        graph, graph.make("equal", size, number.float(np.inf)), number.int(infinity), bits
    )
    nan = infinity | 1 << (form.n_fraction - 1)
    bits = choose(graph, graph.make("math.is_nan", wide), number.int(nan), bits)
    is_negative = graph.make("logical_or", wide < zero, one / wide < zero)
    width = 1 + form.n_exponent + form.n_fraction
    sign = -(1 << (width - 1)) if width == 8 * form.bits.size else 1 << (width - 1)
    bits = choose(graph, is_negative, bits + number.int(sign), bits)
    return cast(graph, bits, _unsigned(x.dtype.size))


def _make_float(graph: OnnxGraph, bits: Tensor, dtype: OnnxDType) -> Tensor:
    """Returns the floats with these bits."""
    form = _FORMATS[dtype.name]
    number = _Numbers(graph, form)
    wide = cast(graph, bits, form.bits)
    width = 1 + form.n_exponent + form.n_fraction
    size = graph.make("bitwise.bitwise_and", wide, number.int((1 << (width - 1)) - 1))
    place = number.int(1 << form.n_fraction)
    exponent = graph.make("truncatediv", size, place)
    fraction = graph.make("bitwise.bitwise_and", size, number.int((1 << form.n_fraction) - 1))
    zero, one = number.float(0), number.float(1)
    is_subnormal = graph.make("equal", exponent, number.int(0))
    last = number.int((1 << form.n_exponent) - 1)
    has_fraction = graph.make("not_equal", fraction, number.int(0))
    is_nan = graph.make("logical_and", graph.make("equal", exponent, last), has_fraction)
    part = cast(graph, fraction, form.dtype) * number.float(math.ldexp(1, -form.n_fraction))
    part = part + choose(graph, is_subnormal, zero, one)
    value = part * graph.make("gather", graph.constant(form.powers()), exponent)
    value = choose(graph, is_nan, number.float(np.nan), value)
    is_negative = graph.make("not_equal", _sign(graph, bits), 0)
    value = choose(graph, is_negative, -value, value)
    return cast(graph, value, dtype)


def _sign(graph: OnnxGraph, bits: Tensor) -> Tensor:
    """Returns the highest bit of unsigned integers."""
    places = graph.constant(np.array(8 * bits.dtype.size - 1, bits.dtype.as_numpy_dtype))
    shifted: Tensor = graph.make("bitwise.right_shift", bits, places)
    return shifted
