"""Fourier transforms over the last one, two or three axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.to_tensorflow.operations._array import Array, tf_dtype
from jax2tf_bridge.to_tensorflow.operations._emitter import emits
from jax2tf_bridge.to_tensorflow.operations._scope import Scope

_COMPLEX: Mapping[str, Sequence[Callable[..., tf.Tensor]]] = MappingProxyType(
    {
        "FFT": (tf.signal.fft, tf.signal.fft2d, tf.signal.fft3d),
        "IFFT": (tf.signal.ifft, tf.signal.ifft2d, tf.signal.ifft3d),
    }
)
# The functions of tf.signal would pad first, which is not needed.
_REAL: Mapping[str, Sequence[Callable[..., Any]]] = MappingProxyType(
    {
        "RFFT": (tf.raw_ops.RFFT, tf.raw_ops.RFFT2D, tf.raw_ops.RFFT3D),
        "IRFFT": (tf.raw_ops.IRFFT, tf.raw_ops.IRFFT2D, tf.raw_ops.IRFFT3D),
    }
)


@emits("fft")
def _fft(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (array,) = operands
    kind = operation.text("fft_type")
    lengths = list(operation.ints("fft_length"))
    if not 1 <= len(lengths) <= 3:
        scope.fail(operation, f"TensorFlow transforms 1 to 3 axes, and not {len(lengths)}")
    element = operation.results[0].tensor.element
    lasts = {"RFFT": lengths[-1] // 2 + 1, "IRFFT": lengths[-1]}
    sizes = (*array.sizes[:-1], lasts.get(kind, array.sizes[-1]))
    if 0 in sizes or 0 in array.sizes:
        return Array(element, sizes, known=np.zeros((), tf_dtype(element).as_numpy_dtype))
    tensor = scope.tensor(array)
    place = len(lengths) - 1
    if kind in _COMPLEX:
        return scope.result(operation, _COMPLEX[kind][place](tensor), sizes)
    dtype = {"Tcomplex" if kind == "RFFT" else "Treal": tf_dtype(element)}
    transformed = _REAL[kind][place](input=tensor, fft_length=lengths, **dtype)
    return scope.result(operation, transformed, sizes)
