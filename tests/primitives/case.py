"""Cases: a public function of JAX, arguments for it, and how its results are judged."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import ml_dtypes
import numpy as np

from tests.primitives.arguments import Argument, Array

FLOATS = ("float32", "float64", "bfloat16", "float16")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int32", "uint8", "int16", "uint32", "int64")

_WIDE = frozenset({"float64", "complex128", "int64", "uint64"})

# Eight to sixteen roundings of the dtype: JAX's XLA and TensorFlow's are of different dates, and
# approximate and fuse differently. The narrow dtypes are computed in wider ones by either.
_TOLERANCES = {
    "float16": 8e-3,
    "bfloat16": 6e-2,
    "float32": 2e-5,
    "complex64": 2e-5,
    "float64": 1e-11,
    "complex128": 1e-11,
}


@dataclass(frozen=True)
class Case:
    """One row of the table; tests run it with fixed sizes and with an open batch.

    Attributes:
      target: the public name of the function, as "jax.lax.sin".
      call: calls it; its first argument is the function, the others are arrays.
      arguments: how to make them.
      dtype: of the arguments that have none of their own.
      label: tells cases of one function apart.
      tolerance: relative to the values, or to 1 where they are smaller; None for that of
        the dtype.
      no_gradient: why jax.vjp raises, where it does.
      no_batch: why jax.vmap cannot map it, where it cannot.
      no_open_gradient: why JAX cannot trace the gradient with an open size, where it cannot.
      open_gradient_needs: what JAX asks of the open size b for the gradient, as "b >= 2".
      depends_on_batch: why a row has other results in a batch of another size, where it has.
      needs: another public name without which the case does not exist.
      since: the first release of JAX in which it works, where older ones have a fault.
    """

    target: str
    call: Callable[..., Any]
    arguments: tuple[Argument, ...]
    dtype: str = "float32"
    label: str = ""
    tolerance: float | None = None
    no_gradient: str = ""
    no_batch: str = ""
    no_open_gradient: str = ""
    open_gradient_needs: str = ""
    depends_on_batch: str = ""
    needs: str = ""
    since: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name of the case, as "jax.lax.sin[complex64]"."""
        return f"{self.target}[{', '.join(filter(None, (self.label, self.dtype)))}]"

    @property
    def x64(self) -> bool:
        """Returns whether the case needs JAX's 64-bit mode."""
        return not _WIDE.isdisjoint({self.dtype, *(a.dtype for a in self.arguments)})

    @property
    def exists(self) -> bool:
        """Returns whether the installed JAX has the function, without faults."""
        needed = (self.target, self.needs) if self.needs else (self.target,)
        is_new_enough = jax.__version_info__ >= self.since
        return is_new_enough and all(find(name) is not None for name in needed)

    @property
    def relative_tolerance(self) -> float:
        if self.tolerance is not None:
            return self.tolerance
        return _TOLERANCES.get(self.dtype, _TOLERANCES["float64" if self.x64 else "float32"])

    def sample(self, row: int) -> list[Array]:
        """Makes the arguments, the same for the same row."""
        numbers = np.random.default_rng([row, len(self.arguments)])
        return [a.sample(numbers, numpy_dtype(a.dtype or self.dtype)) for a in self.arguments]

    def function(self, *, used: Callable[[], None] = lambda: None) -> Callable[..., list[Any]]:
        """Makes a function over flat arrays; `used` is called when the function of `target` is."""
        target = find(self.target)

        @functools.wraps(target, updated=())
        def watched(*args: Any, **kwargs: Any) -> Any:
            used()
            return target(*args, **kwargs)

        def flat(*arrays: Any) -> list[Any]:
            values = [
                jax.random.wrap_key_data(x) if a.is_key else x
                for a, x in zip(self.arguments, arrays, strict=True)
            ]
            return [_words(leaf) for leaf in jax.tree.leaves(self.call(watched, *values))]

        return flat

    def __str__(self) -> str:
        return self.name


def precision(x64: bool) -> contextlib.AbstractContextManager[Any]:
    """Within it, JAX keeps 64-bit values, or does not."""
    context: contextlib.AbstractContextManager[Any] = jax.enable_x64(x64)
    return context


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Also of the dtypes that numpy itself lacks."""
    return np.dtype(getattr(ml_dtypes, name, name))


@functools.cache
def find(name: str) -> Any:
    """Finds what the public name stands for in the installed JAX, or None."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        return found
    return None


def cases(
    names: str,
    *arguments: Argument,
    call: Callable[..., Any] = lambda f, *args: f(*args),
    dtypes: Sequence[str] = ("float32",),
    **attributes: Any,
) -> tuple[Case, ...]:
    """A case for each name and dtype; names as "jax.lax: sin cos", or one with all its dots.

    >>> [case.name for case in cases("jax.lax: sin cos")]
    ['jax.lax.sin[float32]', 'jax.lax.cos[float32]']
    """
    prefix, _, rest = names.partition(": ")
    targets = [f"{prefix}.{name}" for name in rest.split()] or [names]
    first = Case("", call, arguments, **attributes)
    return tuple(replace(first, target=t, dtype=d) for t in targets for d in dtypes)


def _words(leaf: Any) -> Any:
    if hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf
