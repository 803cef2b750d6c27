"""Arrays that the cases are tried on, made by NumPy: the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Sampler = Callable[[np.random.Generator, np.dtype[Any]], Any]


@dataclass(frozen=True)
class Argument:
    """An array to be made.

    Attributes:
      make: from random numbers and a dtype; its result is cast to that dtype.
      dtype: None for the one of the case.
      is_key: whether it is the words of a typed PRNG key.
    """

    make: Sampler
    dtype: str | None = None
    is_key: bool = False

    def sample(self, numbers: np.random.Generator, dtype: np.dtype[Any]) -> Array:
        """One array."""
        return np.asarray(self.make(numbers, dtype)).astype(dtype)


def normal(*shape: int, dtype: str | None = None) -> Argument:
    """Normally distributed, with an imaginary part where the dtype is complex."""
    return Argument(lambda numbers, dtype: _normal(numbers, dtype, shape), dtype)


def uniform(low: float, high: float, *shape: int, dtype: str | None = None) -> Argument:
    """Between low and high; of complex numbers both parts."""

    def make(numbers: np.random.Generator, dtype: np.dtype[Any]) -> Array:
        values = numbers.uniform(low, high, shape)
        return values + 1j * numbers.uniform(low, high, shape) if dtype.kind == "c" else values

    return Argument(make, dtype)


def integers(low: int, high: int, *shape: int, dtype: str | None = "int32") -> Argument:
    """From low to high - 1."""
    return Argument(lambda numbers, _: numbers.integers(low, high, shape), dtype)


def booleans(*shape: int) -> Argument:
    """True or false."""
    return Argument(lambda numbers, _: numbers.integers(0, 2, shape), "bool")


def distinct(*shape: int, dtype: str | None = None) -> Argument:
    """Different numbers with a distance of 1/4 in random order: no ties, so one order and maximum.

    Complex ones differ in both parts.
    """

    def make(numbers: np.random.Generator, dtype: np.dtype[Any]) -> Array:
        size = int(np.prod(shape))
        step = 1 if dtype.kind in "iu" else 0.25
        least = 0 if dtype.kind == "u" else -(size // 2)
        values = (numbers.permutation(size) + least) * step
        if dtype.kind == "c":
            values = values + 1j * (numbers.permutation(size) + least) * step
        return values.reshape(shape)

    return Argument(make, dtype)


def key() -> Argument:
    """Makes the two words of a threefry key."""
    return Argument(lambda numbers, _: numbers.integers(0, 2**32, 2), "uint32", is_key=True)


def fixed(values: Any, dtype: str | None = None) -> Argument:
    """These values, in every row."""
    return Argument(lambda *_: np.asarray(values), dtype)


def matrix(n: int) -> Argument:
    """Square, with a condition number of about ten: 3 I and a normal matrix of norm one."""

    def make(numbers: np.random.Generator, dtype: np.dtype[Any]) -> Array:
        rest = _normal(numbers, dtype, (n, n)) / np.sqrt(n)
        return np.asarray(3 * np.eye(n) + rest)

    return Argument(make)


def symmetric(n: int) -> Argument:
    """Hermitian, with eigenvalues near 1, 3, 5, ... (their distance is in the derivatives)."""
    return Argument(lambda numbers, dtype: _hermitian(numbers, dtype, np.arange(n) * 2.0 + 1))


def indefinite(n: int) -> Argument:
    """Hermitian, with eigenvalues of either sign, two apart."""
    values = np.arange(n) * 2.0 - n + 0.5
    return Argument(lambda numbers, dtype: _hermitian(numbers, dtype, values))


def singular_values_apart(m: int, n: int) -> Argument:
    """[m, n] with singular values 1, 2, 3, ..."""

    def make(numbers: np.random.Generator, dtype: np.dtype[Any]) -> Array:
        k = min(m, n)
        u, v = _orthonormal(numbers, dtype, m)[:, :k], _orthonormal(numbers, dtype, n)[:, :k]
        return np.asarray((u * np.arange(1.0, k + 1)) @ v.conj().T)

    return Argument(make)


def triangular(n: int, *, lower: bool = True) -> Argument:
    """A triangular matrix with a diagonal far from zero."""

    def make(numbers: np.random.Generator, dtype: np.dtype[Any]) -> Array:
        part = np.tril if lower else np.triu
        rest = part(_normal(numbers, dtype, (n, n)) / 2, -1 if lower else 1)
        return np.asarray(rest + 2 * np.eye(n))

    return Argument(make)


def _normal(numbers: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    values = numbers.standard_normal(shape)
    if dtype.kind == "c":
        return np.asarray(values + 1j * numbers.standard_normal(shape))
    return np.asarray(values * 4 if dtype.kind in "iu" else values)


def _orthonormal(numbers: np.random.Generator, dtype: np.dtype[Any], n: int) -> Array:
    return np.asarray(np.linalg.qr(_normal(numbers, dtype, (n, n)))[0])


def _hermitian(numbers: np.random.Generator, dtype: np.dtype[Any], values: Array) -> Array:
    q = _orthonormal(numbers, dtype, len(values))
    return np.asarray((q * values) @ q.conj().T)
