"""Fourier transforms over the last one, two or three axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, graph_dtype, zeros
from jax2tf_bridge.emitters._emitter import emits
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope

_COMPLEX: Mapping[str, Sequence[Callable[..., ops.Tensor]]] = MappingProxyType(
    {
        "FFT": (ops.signal.fft, ops.signal.fft2d, ops.signal.fft3d),
        "IFFT": (ops.signal.ifft, ops.signal.ifft2d, ops.signal.ifft3d),
    }
)
# The functions of ops.signal would pad first, which is not needed.
_REAL: Mapping[str, Sequence[Callable[..., Any]]] = MappingProxyType(
    {
        "RFFT": (ops.raw_ops.RFFT, ops.raw_ops.RFFT2D, ops.raw_ops.RFFT3D),
        "IRFFT": (ops.raw_ops.IRFFT, ops.raw_ops.IRFFT2D, ops.raw_ops.IRFFT3D),
    }
)


@emits("fft")
def _fft(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (array,) = operands
    kind = operation.text("fft_type")
    lengths = list(operation.ints("fft_length"))
    if not 1 <= len(lengths) <= 3:
        scope.fail(operation, f"{scope.runtime} transforms 1 to 3 axes, and not {len(lengths)}")
    element = operation.results[0].tensor.element
    lasts = {"RFFT": lengths[-1] // 2 + 1, "IRFFT": lengths[-1]}
    sizes = (*array.sizes[:-1], lasts.get(kind, array.sizes[-1]))
    if 0 in sizes or 0 in array.sizes:
        return zeros(element, sizes)
    tensor = scope.tensor(array)
    place = len(lengths) - 1
    if kind in _COMPLEX:
        return scope.result(operation, _COMPLEX[kind][place](tensor), sizes)
    dtype = {"Tcomplex" if kind == "RFFT" else "Treal": graph_dtype(element)}
    transformed = _REAL[kind][place](input=tensor, fft_length=lengths, **dtype)
    return scope.result(operation, transformed, sizes)
