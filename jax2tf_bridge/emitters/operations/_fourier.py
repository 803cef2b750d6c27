"""Fourier transforms of complex numbers, and of their real and imaginary parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays, Shape, graph_dtype, zeros
from jax2tf_bridge.emitters._movement import multiply_sizes, reshape, slice_array, transpose
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.rewriting import FFT_OF_PARTS


@emits("fft")
def _fft(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (array,) = operands
    kind = operation.text("fft_type")
    lengths = list(operation.ints("fft_length"))
    if not 1 <= len(lengths) <= 3:
        scope.fail(operation, f"{scope.runtime} transforms 1 to 3 axes, and not {len(lengths)}")
    element = operation.result_type.element
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


_MAX_TABLE = 64
"""Maximum length of a transform by one table of cosines and sines."""


@emits(FFT_OF_PARTS)
def _fft_of_parts(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    """Transforms real and imaginary parts, by products of matrices."""
    kind, lengths = operation.text("fft_type"), operation.ints("fft_length")
    real, *rest = operands
    imag = rest[0] if rest else None
    last = real.rank - 1
    is_inverse = kind in ("IFFT", "IRFFT")
    axes = list(range(real.rank - len(lengths), real.rank))
    sizes = [*real.sizes[:-1], lengths[-1]]
    if 0 in real.sizes or 0 in lengths:
        sizes[-1] = lengths[-1] // 2 + 1 if kind == "RFFT" else lengths[-1]
        return [zeros(real.element, tuple(sizes)) for _ in operation.results]
    parts = _Parts(scope, real, imag)
    for axis, length in zip(axes[:-1], lengths[:-1], strict=True):
        if kind != "RFFT":
            parts = parts.swap(axis).transform(length, is_inverse=is_inverse).swap(axis)
    if kind == "IRFFT":
        parts = parts.mirror(lengths[-1])
    parts = parts.transform(lengths[-1], is_inverse=is_inverse)
    if kind == "RFFT":
        limits = (*parts.real.sizes[:-1], lengths[-1] // 2 + 1)
        parts = parts.apply(
            lambda x: slice_array(scope, x, (0,) * (last + 1), limits, (1,) * (last + 1))
        )
        for axis, length in zip(axes[:-1], lengths[:-1], strict=True):
            parts = parts.swap(axis).transform(length, is_inverse=False).swap(axis)
    if imag is None and parts.imag is not None and len(lengths) == 1:
        # The first and the middle frequency of real numbers are real, which phases show.
        places = np.arange(lengths[-1])
        is_complex = 2 * places % lengths[-1] != 0
        is_complex = is_complex[: lengths[-1] // 2 + 1] if kind == "RFFT" else is_complex
        tensor = scope.tensor(parts.imag)
        zero = ops.zeros([], tensor.dtype)
        tensor = ops.where(ops.constant(is_complex), tensor, zero)
        parts = replace(parts, imag=scope.new_array(tensor, real.element, parts.imag.sizes))
    return [part for part in (parts.real, parts.imag) if part is not None][: len(operation.results)]


@dataclass(frozen=True)
class _Parts:
    """Real and imaginary parts; None if the second are 0."""

    scope: Scope
    real: Array
    imag: Array | None

    def apply(self, function: Callable[[Array], Array]) -> _Parts:
        imag = None if self.imag is None else function(self.imag)
        return replace(self, real=function(self.real), imag=imag)

    def swap(self, axis: int) -> _Parts:
        """Exchanges an axis with the last one."""
        order = list(range(self.real.rank))
        order[axis], order[-1] = order[-1], order[axis]
        return self.apply(lambda x: transpose(self.scope, x, order))

    def reshape(self, sizes: Shape) -> _Parts:
        return self.apply(lambda x: reshape(self.scope, x, sizes))

    def multiply(self, cosines: np.ndarray, sines: np.ndarray, *, by_element: bool) -> _Parts:
        """Multiplies by complex numbers, or by a matrix along the last axis."""
        function = ops.multiply if by_element else ops.matmul
        dtype = self.real.row.numpy()
        c, s = (table.astype(dtype) for table in (cosines, sines))

        def product(array: Array, table: np.ndarray) -> ops.Tensor:
            return function(self.scope.tensor(array), ops.constant(table))

        real, imag = product(self.real, c), product(self.real, s)
        if self.imag is not None:
            real = ops.subtract(real, product(self.imag, s))
            imag = ops.add(imag, product(self.imag, c))
        sizes = (*self.real.sizes[:-1], c.shape[-1])
        element = self.real.element
        return _Parts(self.scope, *(self.scope.new_array(x, element, sizes) for x in (real, imag)))

    def transform(self, length: int, *, is_inverse: bool) -> _Parts:
        """Transforms the last axis."""
        sizes = self.real.sizes
        rows = multiply_sizes(sizes[:-1])
        first = _find_factor(length)
        if first == 1 or length <= _MAX_TABLE:
            flat = self.reshape((rows, length))
            result = flat.multiply(
                *_make_table(length, length, length, is_inverse), by_element=False
            )
        else:
            # Cooley and Tukey's two steps: element i * second + j, and frequency k + first * l.
            second = length // first
            result = self.reshape((rows, first, second)).swap(1).reshape((rows * second, first))
            table = _make_table(first, first, first, is_inverse)
            result = result.multiply(*table, by_element=False).reshape((rows, second, first))
            turns = _make_table(second, first, length, is_inverse)
            result = result.multiply(*turns, by_element=True).swap(1)
            result = result.reshape((rows * first, second))
            table = _make_table(second, second, second, is_inverse)
            result = result.multiply(*table, by_element=False)
            result = result.reshape((rows, first, second)).swap(1)
        if is_inverse:
            share = np.asarray(1 / length, self.real.row.numpy())
            result = result.apply(
                lambda x: self.scope.new_array(
                    ops.multiply(self.scope.tensor(x), share), x.element, x.sizes
                )
            )
        return result.reshape((*sizes[:-1], length))

    def mirror(self, length: int) -> _Parts:
        """Appends the conjugates of the frequencies that a transform of real numbers leaves out."""
        assert self.imag is not None
        half = length // 2 + 1
        inner = np.arange(length - half, 0, -1, dtype=np.int32)
        real, imag = (self.scope.tensor(x) for x in (self.real, self.imag))
        # The imaginary parts of the first, and of the middle one, count as 0.
        mask = np.ones(half, self.real.row.numpy())
        mask[0] = 0
        if length % 2 == 0:
            mask[-1] = 0
        imag = ops.multiply(imag, mask)
        parts = (
            ops.concat([real, ops.gather(real, inner, axis=self.real.rank - 1)], -1),
            ops.concat([imag, ops.negative(ops.gather(imag, inner, axis=self.real.rank - 1))], -1),
        )
        sizes = (*self.real.sizes[:-1], length)
        element = self.real.element
        return _Parts(self.scope, *(self.scope.new_array(x, element, sizes) for x in parts))


def _find_factor(length: int) -> int:
    """Returns the greatest divisor of at most the square root."""
    return next(n for n in range(math.isqrt(length), 0, -1) if length % n == 0)


def _make_table(
    rows: int, columns: int, period: int, is_inverse: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines and sines of the products of row and column, in turns of a period."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % period
    angles = turns * (2 * np.pi / period)
    # Half turns have a sine of 0, so that frequencies of real numbers are real there.
    sines = np.where(2 * turns % period == 0, 0.0, np.sin(angles if is_inverse else -angles))
    return np.cos(angles), sines
