"""Fourier transforms over the last one, two or three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, graph_dtype, zeros
from jax2tf_bridge.emitters._emitter import emits
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope


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
    options: dict[str, Any] = {}
    if kind in lasts:
        dtype = "Tcomplex" if kind == "RFFT" else "Treal"
        options = {"fft_length": lengths, dtype: graph_dtype(element)}
    # The functions of ops.signal would pad first, which is not needed.
    function = getattr(ops.raw_ops, kind + ("", "2D", "3D")[len(lengths) - 1])
    return scope.result(operation, function(input=tensor, **options), sizes)
