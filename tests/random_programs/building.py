"""Builds a random program step by step: a pool of values, and what a step may take from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import numpy as np
from jax import export as jax_export

from tests.random_programs.program import NAMES, Input, Program, Step
from tests.random_programs.values import DTYPES, X64_DTYPES, kind_of

T = TypeVar("T")

MAX_INPUTS = 5
MAX_ELEMENTS = 600
"""Maximum number of elements of a value, where open sizes are 5."""

_SIZES = (1, 2, 3, 4)


class RejectedStepError(Exception):
    """A step that JAX refuses, or that the pool has no operand for."""


@dataclass(frozen=True)
class Value:
    """A value that later steps may read; its sizes are integers or JAX's symbolic ones."""

    name: str
    dtype: str
    shape: tuple[Any, ...]

    @property
    def kind(self) -> str:
        """The kind of its dtype: b, i, u, f or c."""
        return kind_of(self.dtype)

    @property
    def rank(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    def fixed_axes(self) -> list[int]:
        """The axes with a known size."""
        return [axis for axis, size in enumerate(self.shape) if isinstance(size, int)]


class Builder:
    """A program in the making.

    Args:
      integer: draws an integer between two bounds, both included.
      x64: whether JAX has 64-bit dtypes.
      symbols: the names of the open sizes.
      dtypes: of the inputs; by default all.
    """

    def __init__(
        self,
        integer: Callable[[int, int], int],
        *,
        x64: bool,
        symbols: Sequence[str],
        dtypes: Sequence[str] = (),
    ) -> None:
        self.integer, self.x64 = integer, x64
        self.dtypes = tuple(dtypes) or (X64_DTYPES if x64 else DTYPES)
        self.symbols = dict(
            zip(symbols, jax_export.symbolic_shape(",".join(symbols)), strict=True)
            if symbols
            else ()
        )
        self.inputs: list[Input] = []
        self.values: list[Value] = []
        self.steps: list[Step] = []

    # Choices.

    def choose(self, options: Sequence[T]) -> T:
        """Draws one of the options."""
        if not options:
            raise RejectedStepError("no option")
        if len(options) == 1:
            return options[0]
        return options[self.integer(0, len(options) - 1)]

    def flag(self, one_in: int = 2) -> bool:
        """Draws True once in `one_in` times."""
        return self.integer(0, one_in - 1) == one_in - 1

    def dtype(self, kinds: str = "biufc") -> str:
        """Draws a dtype of some kinds."""
        return self.choose([d for d in self.dtypes if kind_of(d) in kinds])

    def axis(self, value: Value, *, fixed: bool = False) -> int:
        """Draws an axis of a value."""
        return self.choose(value.fixed_axes() if fixed else list(range(value.rank)))

    # Operands.

    def value(
        self,
        kinds: str = "biufc",
        *,
        rank: tuple[int, int] = (0, 4),
        where: Callable[[Value], bool] = lambda value: True,
    ) -> Value:
        """Draws a value of the pool; later ones are likelier. Makes an input where none fits."""
        fitting = [
            v for v in self.values if v.kind in kinds and rank[0] <= v.rank <= rank[1] and where(v)
        ]
        if fitting and not (len(self.inputs) < MAX_INPUTS and self.flag(6)):
            recent = fitting[-4:]
            return self.choose(recent if self.flag() else fitting)
        shape = self.shape(self.integer(rank[0], max(rank[0], min(rank[1], 3))))
        made = self.new_input(self.dtype(kinds), shape)
        if not where(made):
            raise RejectedStepError("no operand")
        return made

    def like(self, value: Value, *, dtype: str | None = None, shape: Any = None) -> Value:
        """Draws a value with the dtype and shape of another, or as they are given."""
        dtype = dtype or value.dtype
        shape = value.shape if shape is None else tuple(shape)
        fitting = [
            v for v in self.values if v.dtype == dtype and v.rank == len(shape) and v.shape == shape
        ]
        others = [v for v in fitting if v != value]
        if others and not self.flag(5):
            return self.choose(others)
        if len(self.inputs) < MAX_INPUTS:
            return self.new_input(dtype, shape)
        return self.choose(fitting)

    def shape(self, rank: int) -> tuple[Any, ...]:
        """Draws a shape: known sizes, and now and then a symbol."""
        return tuple(
            self.choose([*self.symbols.values()])
            if self.symbols and self.flag(3)
            else self.choose(_SIZES)
            for _ in range(rank)
        )

    def new_input(self, dtype: str, shape: Sequence[Any]) -> Value:
        """Adds an argument to the program."""
        if len(self.inputs) >= MAX_INPUTS + 2:
            raise RejectedStepError("too many inputs")
        sizes = tuple(size if isinstance(size, int) else str(size) for size in shape)
        if any(isinstance(size, str) and size not in self.symbols for size in sizes):
            raise RejectedStepError("an input's size is no symbol")
        name = f"x{len(self.inputs)}"
        self.inputs.append(Input(name, dtype, sizes))
        self.values.append(Value(name, dtype, tuple(shape)))
        return self.values[-1]

    # Steps.

    def add(self, expression: str, operation: str) -> list[Value]:
        """Adds a step, with a value for each of its results.

        Raises:
          RejectedStepError: JAX refuses it, or the result is too large.
        """
        self._check_symbols(expression)
        specs = {v.name: jax.ShapeDtypeStruct(v.shape, np.dtype(v.dtype)) for v in self.values}
        operands = [name for name in Step("", expression, "").operands if name in specs]
        code = eval(f"lambda {', '.join(operands)}: {expression}", {**NAMES, **self.symbols})
        try:
            with jax.enable_x64(self.x64):
                result = jax.eval_shape(code, *(specs[name] for name in operands))
        except Exception as error:
            raise RejectedStepError(f"{expression}: {error}") from None
        leaves = jax.tree.leaves(result)
        if not leaves or not all(_is_small(leaf) for leaf in leaves):
            raise RejectedStepError("too large")
        if len(leaves) > 1:
            number = self.integer(0, len(leaves) - 1)
            expression = f"jax.tree.leaves({expression})[{number}]"
            leaves = [leaves[number]]
        name = f"v{len(self.steps)}"
        self.steps.append(Step(name, expression, operation))
        self.values.append(Value(name, str(leaves[0].dtype), tuple(leaves[0].shape)))
        return [self.values[-1]]

    def _check_symbols(self, expression: str) -> None:
        """Makes an input for each open size that the program has not met yet."""
        known = {size for i in self.inputs for size in i.shape}
        for symbol in self.symbols:
            if symbol not in known:
                self.new_input(self.dtype("f"), (self.symbols[symbol],))

    def program(self, outputs: Sequence[str], **rest: Any) -> Program:
        """Ends the program."""
        made = Program(tuple(self.inputs), tuple(self.steps), tuple(outputs), x64=self.x64)
        return replace(made, **rest).pruned()


def size_text(size: Any) -> str:
    """Writes a size of a value as an expression of a program."""
    return str(size)


def shape_text(shape: Sequence[Any]) -> str:
    """Writes a shape as an expression of a program.

    >>> shape_text([3]), shape_text([])
    ('(3,)', '()')
    """
    return "(" + "".join(f"{size}, " for size in shape).rstrip(" ") + ")"


def _is_small(leaf: Any) -> bool:
    if len(leaf.shape) > 5:
        return False
    count = 1
    for size in leaf.shape:
        if not isinstance(size, int):
            try:
                size = eval(str(size), {**NAMES, "b": 5, "n": 5, "max": max, "min": min})
            except Exception:
                return False
        count *= size
    return count <= MAX_ELEMENTS
