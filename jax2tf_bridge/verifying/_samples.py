"""Sizes and values that a function is tried with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._dtypes import kind_of
from jax2tf_bridge.portable._portable_function import PortableFunction
from shape_poly import Comparison, DimExpr, evaluate_shape, parse_comparison

Sizes: TypeAlias = dict[str, int]

_CANDIDATES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33, 48, 64, 6, 9, 10, 128, 256)
_MOST_TRIALS = 20_000
_INTEGERS = 8
"""Integers are below this: they may be indices, and those of every table are likely to be there."""


class Sampler:
    """Draws sizes that satisfy what a function demands of them, and arrays of these sizes."""

    def __init__(
        self,
        record: PortableFunction,
        seed: int,
        only: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """For the arguments of a record; equal seeds draw the same.

        Args:
          record: the function.
          seed: of sizes and values.
          only: the sizes that are drawn of some variables; of all others any.
        """
        self._avals = record.in_avals
        self._name = record.name
        self._constraints: tuple[Comparison, ...] = tuple(
            map(parse_comparison, (*record.constraints, *record.requirements))
        )
        self._outputs = record.out_avals
        self._generator = np.random.default_rng(seed)
        dims = (d for aval in record.in_avals for d in aval.shape if isinstance(d, DimExpr))
        self.variables: tuple[str, ...] = tuple(
            dict.fromkeys(name for dim in dims for name in sorted(dim.variables()))
        )
        self._only = only or {}
        self._candidates = self._beside(self._only)

    def sizes(self, count: int) -> list[Sizes]:
        """Different sizes, first the smallest; fewer where there are no more.

        Raises:
          ShapeError: none were found.
        """
        found, tried = [self.with_sizes({})], set[tuple[int, ...]]()
        most = math.prod(map(len, self._candidates.values()))
        for _ in range(_MOST_TRIALS):
            if len(found) >= count or len(tried) == most or not self.variables:
                break
            drawn = tuple(int(self._generator.choice(c)) for c in self._candidates.values())
            if drawn in tried:
                continue
            tried.add(drawn)
            sizes = dict(zip(self.variables, drawn, strict=True))
            if sizes not in found and self._allows(sizes):
                found.append(sizes)
        return found

    def with_sizes(self, given: Sizes) -> Sizes:
        """The smallest sizes among which these are.

        Raises:
          ShapeError: none were found.
        """
        free = [name for name in self.variables if name not in given]
        candidates = self._beside({**self._only, **{name: [size] for name, size in given.items()}})
        trials = itertools.product(*(candidates[name] for name in free))
        for drawn in itertools.islice(trials, _MOST_TRIALS):
            sizes = {**given, **dict(zip(free, drawn, strict=True))}
            if self._allows(sizes):
                return {name: sizes[name] for name in self.variables}
        constraints = ", ".join(map(str, self._constraints)) or "its shapes"
        what = ", ".join(f"{name} = {size}" for name, size in given.items())
        raise ShapeError(
            f"{self._name}: no sizes of {', '.join(free) or 'its variables'}"
            f"{f' beside {what}' if what else ''} were found that satisfy {constraints}."
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

    def _beside(self, fixed: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """The sizes to draw of each variable, beside the only ones of some.

        What a comparison ties to these may have to be larger than all others: m of n == 2*m.
        """
        tied = {name: tuple(sizes) for name, sizes in fixed.items()}
        found = {name: tied.get(name, _CANDIDATES) for name in self.variables}
        comparisons = list(self._constraints)
        while comparisons:
            comparison = comparisons.pop()
            names = comparison.variables()
            known = [name for name in names if name in tied]
            if len(names) != 2 or len(known) != 1:
                continue
            (variable,) = names - set(known)
            sizes = (_just_held(comparison, {known[0]: s}, variable) for s in tied[known[0]])
            tied[variable] = tuple(dict.fromkeys(itertools.chain.from_iterable(sizes)))
            found[variable] = tuple(sorted({*_CANDIDATES, *tied[variable]}))
            comparisons = list(self._constraints)  # one of them may tie another to this
        return found

    def _allows(self, sizes: Sizes) -> bool:
        if not all(constraint.holds(sizes) for constraint in self._constraints):
            return False
        shapes = [evaluate_shape(aval.shape, sizes) for aval in (*self._avals, *self._outputs)]
        return all((size or 0) >= 1 for shape in shapes for size in shape)


def _just_held(comparison: Comparison, known: Sizes, variable: str) -> list[int]:
    """The sizes of a variable at which a linear comparison begins or ceases to hold."""
    difference = comparison.difference()
    if isinstance(difference, int):
        return []
    try:
        first, second = (difference.evaluate({**known, variable: size}) for size in (1, 2))
    except ZeroDivisionError:
        return []
    if first == second:
        return []
    near = 1 - first // (second - first)
    sizes = [size for size in (near - 1, near, near + 1) if size >= 1]
    return [size for size in sizes if comparison.holds({**known, variable: size})]
