"""A program of the table: a JAX function, arguments for it, and how it is to be judged."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Call:
    """Arguments of one call: pytrees of numpy arrays."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """A JAX function and the calls to try it with, at different shapes or values."""

    function: Callable[..., Any]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Program:
    """A row of the table.

    Attributes:
      name: of the program, unique.
      build: makes the function and its arguments, the same at every call.
      polymorphic_shapes, constraints: as `convert` takes them.
      differentiable: whether a VJP can be exported.
      tolerance: of the results and gradients, absolute and relative.
      needs_linalg: whether JAX lowers it to LAPACK unless told otherwise.
      x64: whether it is built, exported and run with 64-bit values.
      jit_compile: whether consumers try it with jit_compile=True as well.
      seventeen: whether it is one of those that the published tables of pairs count.
      oldest_tensorflow: the first release that can run it; oldest_for_gradient: its gradient.
      key_arguments: the positional arguments that are the words of typed PRNG keys.
    """

    name: str
    build: Callable[[], Example]
    polymorphic_shapes: Any = None
    constraints: tuple[str, ...] = ()
    differentiable: bool = True
    tolerance: float = 2e-4
    needs_linalg: bool = False
    x64: bool = False
    jit_compile: bool = False
    seventeen: bool = False
    oldest_tensorflow: str = "2.15"
    oldest_for_gradient: str = "2.15"
    key_arguments: tuple[int, ...] = ()

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Within it, JAX takes 64-bit values as this program wants them."""
        context: contextlib.AbstractContextManager[Any] = jax.enable_x64(self.x64)
        return context

    def __str__(self) -> str:
        return self.name


def program(**attributes: Any) -> Callable[[Callable[[], Example]], Program]:
    """Makes a Program, with these attributes, of the function that builds it."""

    def make(build: Callable[[], Example]) -> Program:
        return Program(build.__name__, build, **attributes)

    return make


def calls(*args: tuple[Any, ...]) -> tuple[Call, ...]:
    """One Call for each tuple of positional arguments."""
    return tuple(Call(a) for a in args)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Normally distributed numbers, the same for the same shape and seed.

    >>> normal(2, 3).shape, bool((normal(4) == normal(4)).all())
    ((2, 3), True)
    """
    numbers = _generator(shape, seed)
    values = numbers.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        values = values + 1j * numbers.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def integers(low: int, high: int, *shape: int, seed: int = 0, dtype: Any = np.int32) -> Array:
    """Integers from low to high - 1, the same for the same shape and seed."""
    return np.asarray(_generator(shape, seed).integers(low, high, shape)).astype(dtype)


def _generator(shape: tuple[int, ...], seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, *shape])
