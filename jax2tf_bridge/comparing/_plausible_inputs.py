"""Draws realistic inputs for a function: consistent lengths, masks and ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from jax2tf_bridge._dtypes import find_kind, is_integer
from jax2tf_bridge.portable import Aval
from shape_poly import Dim, evaluate_shape, variables_of

Draw: TypeAlias = Literal["full", "prefix", "negative", "short"]
"""Kinds of draws.

"full" and "negative" draw sequences without padding:

- "full": normally distributed numbers and maximum lengths.
- "negative": numbers below zero, ids 0 and 1, and small integers for possible lengths.

"prefix" and "short" draw sequences that end early and are padded:

- "prefix": numbers above zero.
- "short": at most three positions, and the same id everywhere, which every embedding table has.
"""

DRAWS: tuple[Draw, ...] = ("full", "prefix", "negative", "short")
FULL_DRAWS: tuple[Draw, ...] = ("full", "negative")

_IDS = (1, 2, 3, 4)
_MAX_SHORT_LENGTH = 3


def infer_batch_variable(avals: Mapping[str, Aval]) -> str | None:
    """Returns the batch variable: the first dimension, and only that, of every input that has it.

    Returns None if no variable, or more than one, qualifies (as in a graph of nodes and edges).

    >>> from shape_poly import symbolic_shape
    >>> avals = {"ids": Aval(symbolic_shape("(b, n)"), "int32")}
    >>> infer_batch_variable({**avals, "lengths": Aval(symbolic_shape("(b,)"), "int32")})
    'b'
    >>> infer_batch_variable({**avals, "table": Aval(symbolic_shape("(m, 8)"), "float32")}) is None
    True
    """
    shapes = [aval.op_shape for aval in avals.values()]
    candidates = [
        variable
        for variable in sorted({v for shape in shapes for d in shape for v in variables_of(d)})
        if all(
            [variable in variables_of(d) for d in shape] == [True] + [False] * (len(shape) - 1)
            and str(shape[0]) == variable
            for shape in shapes
            if any(variable in variables_of(d) for d in shape)
        )
    ]
    return candidates[0] if len(candidates) == 1 else None


@dataclass(frozen=True)
class PlausibleInputs:
    """Inputs that agree with each other: the same rows are short in ids, masks and lengths.

    An input is a mask if its name contains "mask"; it is 1 at real positions, or 0 if its pad value
    is not 0. Integer inputs without a sequence dimension may be lengths, so they never exceed the
    sequences. Other integers are small and differ from the pad value.

    Attributes:
      avals: the inputs' shapes and dtypes, by name.
      sequences: the variables along which rows may end early.
      batch: the batch variable, if there is one.
      pad_values: maps inputs to pad values other than 0.
      examples: example values of inputs. They are repeated or cut to size, and lengths among them
        are clipped.
    """

    avals: Mapping[str, Aval]
    sequences: tuple[str, ...]
    batch: str | None = None
    pad_values: Mapping[str, Any] = field(default_factory=dict)
    examples: Mapping[str, Any] = field(default_factory=dict)

    def draw(
        self, draw: Draw, values: Mapping[str, int], rng: np.random.Generator
    ) -> dict[str, Any]:
        """Draws arrays of int64, float64, complex128 or bool at these sizes, by name."""
        rows = values.get(self.batch, 1) if self.batch else 1
        lengths = {
            v: _draw_lengths(draw, values[v], rows, rng) for v in self.sequences if v in values
        }
        return {name: self._draw_input(name, draw, values, lengths, rng) for name in self.avals}

    def text(self, name: str) -> str:
        """Describes the values that are drawn for an input, for people."""
        aval = self.avals[name]
        if name in self.examples:
            return "the example"
        if self._is_mask(name):
            return f"{self._real_value(name):g} where it is real"
        if aval.op_dtype == "bool":
            return "true and false"
        if not is_integer(aval.op_dtype):
            return "random numbers"
        if self._may_be_lengths(aval):
            return "1 to the size of the sequence"
        return f"integers from 0 to {max(self._ids(name))}"

    def _draw_input(
        self,
        name: str,
        draw: Draw,
        values: Mapping[str, int],
        lengths: Mapping[str, Any],
        rng: np.random.Generator,
    ) -> Any:
        aval = self.avals[name]
        shape = tuple(int(size or 0) for size in evaluate_shape(aval.op_shape, values))
        if name in self.examples:
            return self._fit_example(name, shape, values)
        if self._may_be_lengths(aval):
            return self._draw_length_input(aval, shape, draw, values, lengths, rng)
        inside = self._mask_positions(aval, shape, values, lengths)
        return np.where(inside, self._draw_numbers(name, shape, draw, rng), self.pad_value(name))

    def pad_value(self, name: str) -> Any:
        """Returns the pad value of an input."""
        return self.pad_values.get(name, 0)

    def _draw_numbers(
        self, name: str, shape: tuple[int, ...], draw: Draw, rng: np.random.Generator
    ) -> Any:
        aval = self.avals[name]
        if self._is_mask(name):
            real = np.full(shape, self._real_value(name))
            return real.astype(np.bool_) if aval.op_dtype == "bool" else real
        if aval.op_dtype == "bool" or (is_integer(aval.op_dtype) and draw == "negative"):
            flags = rng.integers(0, 2, shape)
            # It may be a mask, so each row needs at least one real position.
            if any(map(self._is_sequence_dimension, aval.op_shape)):
                ends = (1 if self._is_sequence_dimension(d) else None for d in aval.op_shape)
                flags[tuple(map(slice, ends))] = self._real_value(name)
            return flags if is_integer(aval.op_dtype) else (flags == 1) | (draw != "negative")
        if is_integer(aval.op_dtype):
            ids = self._ids(name)
            return np.full(shape, ids[0]) if draw == "short" else rng.choice(ids, shape)
        numbers: Any = rng.normal(size=shape)
        if draw in ("prefix", "negative"):
            numbers = np.abs(numbers) * (1 if draw == "prefix" else -1)
        if find_kind(aval.op_dtype) == "complex":
            return numbers + 1j * rng.normal(size=shape)
        return numbers

    def _is_mask(self, name: str) -> bool:
        return "mask" in name.lower() and find_kind(self.avals[name].op_dtype) != "complex"

    def _real_value(self, name: str) -> int:
        return 1 if self.pad_value(name) == 0 else 0

    def _ids(self, name: str) -> list[int]:
        return [n for n in _IDS if n != self.pad_value(name)][:3]

    def _may_be_lengths(self, aval: Aval) -> bool:
        in_sequences = any(map(self._is_sequence_dimension, aval.op_shape))
        return is_integer(aval.op_dtype) and bool(self.sequences) and not in_sequences

    def _is_sequence_dimension(self, dimension: Dim) -> bool:
        return not variables_of(dimension).isdisjoint(self.sequences)

    def _draw_length_input(
        self,
        aval: Aval,
        shape: tuple[int, ...],
        draw: Draw,
        values: Mapping[str, int],
        lengths: Mapping[str, Any],
        rng: np.random.Generator,
    ) -> Any:
        max_length = min((values[v] for v in self.sequences if v in values), default=1)
        if draw == "negative":
            return rng.integers(1, min(_MAX_SHORT_LENGTH, max_length) + 1, shape)
        rows = np.minimum.reduce([*lengths.values()])
        if self.batch is not None and shape and str(aval.op_shape[0]) == self.batch:
            return np.broadcast_to(rows.reshape(-1, *([1] * (len(shape) - 1))), shape)
        return np.full(shape, rows.min())

    def _mask_positions(
        self,
        aval: Aval,
        shape: tuple[int, ...],
        values: Mapping[str, int],
        lengths: Mapping[str, Any],
    ) -> Any:
        """Returns a mask of the positions before the end of each row."""
        rank = len(shape)
        in_rows = bool(rank) and str(aval.op_shape[0]) == self.batch
        inside = np.ones(shape, np.bool_)
        for axis, dimension in enumerate(aval.op_shape):
            if not self._is_sequence_dimension(dimension):
                continue
            count = shape[0] if in_rows else 1
            ends = np.array(
                [
                    dimension.evaluate(  # type: ignore[union-attr]
                        {**values, **{v: int(rows[i]) for v, rows in lengths.items()}}
                    )
                    for i in range(count)
                ]
            )
            along = [-1 if a == axis else 1 for a in range(rank)]
            rows_first = [count if a == 0 and in_rows else 1 for a in range(rank)]
            inside &= np.arange(shape[axis]).reshape(along) < ends.reshape(rows_first)
        return inside

    def _fit_example(self, name: str, shape: tuple[int, ...], values: Mapping[str, int]) -> Any:
        aval = self.avals[name]
        array = np.asarray(self.examples[name])
        for axis, size in enumerate(shape):
            array = np.take(array, np.arange(size) % max(1, array.shape[axis]), axis)
        if self._may_be_lengths(aval):
            max_length = min((values[v] for v in self.sequences if v in values), default=1)
            return np.minimum(array.astype(np.int64), max_length)
        return array


def _draw_lengths(draw: Draw, size: int, rows: int, rng: np.random.Generator) -> Any:
    if draw in FULL_DRAWS:
        return np.full(rows, size)
    return rng.integers(1, (min(_MAX_SHORT_LENGTH, size) if draw == "short" else size) + 1, rows)
