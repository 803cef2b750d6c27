"""Draws sizes and values of arguments to test a function with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge._dtypes import kind_of
from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.portable import Aval, PortableFunction
from shape_poly import (
    DimExpr,
    SymbolicScope,
    evaluate_shape,
    sample_sizes,
)

Sizes: TypeAlias = dict[str, int]

_INTEGER_BOUND = 8
"""Bound of integers, which may be indices: nearly every table has this many rows."""


class Sampler:
    """Draws sizes that satisfy the constraints of a function, and arrays of these sizes."""

    def __init__(
        self,
        portable: PortableFunction,
        seed: int,
        only: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Draws arguments of a portable function; equal seeds draw equal arguments.

        Args:
          portable: the function.
          seed: the seed of sizes and values.
          only: the allowed sizes of some variables; other variables take any size.
        """
        self._name, self._seed = portable.name, seed
        self._scope = SymbolicScope((*portable.constraints, *portable.requirements), check=False)
        self._shapes = [aval.shape for aval in (*portable.in_avals, *portable.out_avals)]
        self._generator = np.random.default_rng(seed)
        dims = (d for aval in portable.in_avals for d in aval.shape if isinstance(d, DimExpr))
        self.variables: tuple[str, ...] = tuple(
            dict.fromkeys(name for dim in dims for name in sorted(dim.variables()))
        )
        self._only = only or {}

    def sizes(self, count: int) -> list[Sizes]:
        """Returns distinct sizes, the smallest first; fewer than `count` if no more exist.

        Raises:
          ShapeError: none were found.
        """
        return [self.with_sizes({}), *itertools.islice(self._iterate_sizes(self._only), 1, count)]

    def with_sizes(self, given: Sizes) -> Sizes:
        """Returns the smallest sizes that include the given ones.

        Raises:
          ShapeError: none were found.
        """
        candidates = self._iterate_sizes(
            {**self._only, **{name: [size] for name, size in given.items()}}
        )
        smallest = next(candidates, None)
        if smallest is None:
            free = [name for name in self.variables if name not in given]
            fixed = ", ".join(f"{name} = {size}" for name, size in given.items())
            raise ShapeError(
                f"{self._name}: no sizes of {', '.join(free) or 'its variables'}"
                f"{f' beside {fixed}' if fixed else ''} were found that satisfy "
                f"{self._scope if self._scope.constraints else 'its shapes'}."
            )
        return smallest

    def _iterate_sizes(self, among: Mapping[str, Sequence[int]]) -> Iterator[Sizes]:
        return sample_sizes(
            self.variables, self._scope, among=among, nonempty=self._shapes, seed=self._seed
        )

    def array(self, aval: Aval, sizes: Sizes, *, seed: bool = False) -> Any:
        """Draws a random array: normal floats or small integers; for a key, its words or a seed."""
        shape = aval.shape if seed else aval.op_shape
        concrete = tuple(int(size or 0) for size in evaluate_shape(shape, sizes))
        return self._draw_values(concrete, aval.op_dtype)

    def _draw_values(self, shape: Sequence[int], dtype: str) -> Any:
        generator, kind = self._generator, kind_of(dtype)
        if kind == "bool":
            return generator.integers(0, 2, shape).astype(bool)
        if kind in ("int", "uint"):
            return generator.integers(0, _INTEGER_BOUND, shape).astype(dtype)
        if kind == "complex":
            return (generator.normal(size=shape) + 1j * generator.normal(size=shape)).astype(dtype)
        # Other dtypes, such as bfloat16, are converted from float32 by the caller.
        known = dtype in ("float16", "float32", "float64")
        return generator.normal(size=shape).astype(dtype if known else np.float32)
