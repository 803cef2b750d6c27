"""Sizes and values that a function is tried with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.portable import Aval, PortableFunction, kind_of
from shape_poly import (
    DimExpr,
    SymbolicScope,
    evaluate_shape,
    sample_sizes,
)

Sizes: TypeAlias = dict[str, int]

_INTEGERS = 8
"""Integers are below this: they may be indices, and those of every table are likely to be there."""


class Sampler:
    """Draws sizes that satisfy what a function demands of them, and arrays of these sizes."""

    def __init__(
        self,
        portable: PortableFunction,
        seed: int,
        only: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """For the arguments of a portable function; equal seeds draw the same.

        Args:
          portable: the function.
          seed: of sizes and values.
          only: the sizes that are drawn of some variables; of all others any.
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
        """Returns different sizes, first the smallest; fewer where there are no more.

        Raises:
          ShapeError: none were found.
        """
        return [self.with_sizes({}), *itertools.islice(self._found(self._only), 1, count)]

    def with_sizes(self, given: Sizes) -> Sizes:
        """Returns the smallest sizes among which these are.

        Raises:
          ShapeError: none were found.
        """
        found = self._found({**self._only, **{name: [size] for name, size in given.items()}})
        smallest = next(found, None)
        if smallest is None:
            free = [name for name in self.variables if name not in given]
            what = ", ".join(f"{name} = {size}" for name, size in given.items())
            raise ShapeError(
                f"{self._name}: no sizes of {', '.join(free) or 'its variables'}"
                f"{f' beside {what}' if what else ''} were found that satisfy "
                f"{self._scope if self._scope.constraints else 'its shapes'}."
            )
        return smallest

    def _found(self, among: Mapping[str, Sequence[int]]) -> Iterator[Sizes]:
        return sample_sizes(
            self.variables, self._scope, among=among, nonempty=self._shapes, seed=self._seed
        )

    def array(self, aval: Aval, sizes: Sizes, *, seed: bool = False) -> Any:
        """A random array: normal floats, small integers; of a key its words, or a seed."""
        shape = aval.shape if seed else aval.op_shape
        concrete = tuple(int(size or 0) for size in evaluate_shape(shape, sizes))
        return self._values(concrete, aval.op_dtype)

    def _values(self, shape: Sequence[int], dtype: str) -> Any:
        generator, kind = self._generator, kind_of(dtype)
        if kind == "bool":
            return generator.integers(0, 2, shape).astype(bool)
        if kind in ("int", "uint"):
            return generator.integers(0, _INTEGERS, shape).astype(dtype)
        if kind == "complex":
            return (generator.normal(size=shape) + 1j * generator.normal(size=shape)).astype(dtype)
        # Others, as bfloat16, are made of these.
        known = dtype in ("float16", "float32", "float64")
        return generator.normal(size=shape).astype(dtype if known else np.float32)
