"""Plans how a signature scores rows: the inputs of a row, and the sizes at which it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.errors import BridgeError, ShapeError
from jax2tf_bridge.portable import variables_in
from jax2tf_bridge.saving.serving import ServedSignature, find_obstacle
from shape_poly import Dim, Integers, evaluate_shape, make_plan, shape_text, solve, variables_of

Sizes: TypeAlias = tuple[int, ...]
RowShape: TypeAlias = tuple[Dim | None, ...] | None
"""Shape of a row's array, without the dimension of the rows; None stands for unknown."""


@dataclass(frozen=True)
class RowInput:
    """Input for which each row has a value.

    Attributes:
      name: the name of the input.
      dtype: TensorFlow's name of its dtype.
      shape: the shape of a row's value.
      pad: the number with which shorter rows are padded.
    """

    name: str
    dtype: str
    shape: RowShape
    pad: Any = 0

    def __str__(self) -> str:
        return array_type_text(self.dtype, self.shape)


@dataclass(frozen=True)
class RowSizes:
    """Sizes of a row.

    Attributes:
      padded: the shape of each input in the batch.
      outputs: the shape of each output of the row, by name; empty if no output is sliced.
    """

    padded: tuple[Sizes, ...]
    outputs: Mapping[str, Sizes]


@dataclass(frozen=True)
class RowPlan:
    """Plan for scoring rows with a signature.

    Attributes:
      signature: the name of the signature.
      inputs: the inputs of the rows.
      shared: the other inputs, by name, with their types.
      outputs: the outputs, with the shape of a row's result; None if it is never sliced.
      buckets: the buckets of each size to which single rows may be padded.
      batch_buckets: the buckets of the number of rows; empty without them.
    """

    signature: str
    inputs: tuple[RowInput, ...]
    shared: Mapping[str, Any]
    outputs: Mapping[str, RowShape]
    buckets: Mapping[str, Sizes] = field(default_factory=dict)
    batch_buckets: Sizes = ()

    def find_sizes(self, shapes: Sequence[Sizes]) -> RowSizes:
        """Chooses the sizes that a row runs at.

        Args:
          shapes: the shape of each of the row's inputs.

        Raises:
          ShapeError: a shape does not fit. The text begins with the input.
        """
        values = self._solve(shapes)
        for value, shape in zip(self.inputs, shapes, strict=True):
            if not fits_shape(value.shape, shape, values):
                raise ShapeError(self._describe_misfit(value, shape, values))
        bucketed = values.keys() & self.buckets.keys()
        targets = {v: _find_bucket(self.buckets[v], values[v]) for v in bucketed}
        if targets.items() <= values.items():
            return RowSizes(tuple(shapes), {})
        padded = {**values, **targets}
        return RowSizes(
            tuple(
                _evaluate(value.shape, shape, padded)
                for value, shape in zip(self.inputs, shapes, strict=True)
            ),
            {
                name: _evaluate(shape, (), values)
                for name, shape in self.outputs.items()
                if shape is not None and targets.keys() & _list_variables(shape)
            },
        )

    def _solve(self, shapes: Sequence[Sizes]) -> dict[str, int]:
        known = [
            (dimension, size)
            for value, shape in zip(self.inputs, shapes, strict=True)
            if value.shape is not None and len(value.shape) == len(shape)
            for dimension, size in zip(value.shape, shape, strict=True)
            if dimension is not None
        ]
        plan = make_plan([[dimension for dimension, _ in known]])
        return dict(solve(plan, [[size for _, size in known]], Integers(), smallest=0).values)

    def _describe_misfit(self, value: RowInput, shape: Sizes, values: Mapping[str, int]) -> str:
        assert value.shape is not None
        used = [f"{v} = {values[v]}" for v in sorted(_list_variables(value.shape)) if v in values]
        where = f" with {', '.join(used)}" if used and len(shape) == len(value.shape) else ""
        advice = (
            "Pass each row without its dimension of rows."
            if len(shape) == len(value.shape) + 1
            else "Correct the row, or leave it out."
        )
        return (
            f"input {value.name}: expected shape {shape_text(value.shape)}{where}, got "
            f"{shape_text(shape)}. {advice}"
        )


def plan_rows(path: str, served: ServedSignature) -> RowPlan:
    """Plans how a signature scores rows.

    Raises:
      ShapeError: the signature takes no rows, or its rows may influence each other.
      BridgeError: the signature changes weights.
    """
    bucketing, name = served.bucketing, served.name
    if served.changes_weights:
        raise BridgeError(
            f"{name} of {path} changes weights, so scores would depend on the order of the rows. "
            "Choose a signature that only reads them."
        )
    if bucketing is None or served.is_preprocessed:
        rows = {n: a.shape[1:] for n, a in served.inputs.items() if a.has_open_rows and a.shape}
    else:
        avals = bucketing.passed_inputs()
        rows = {
            n: aval.op_shape[1:]
            for n, aval in avals.items()
            if aval.op_shape and str(aval.op_shape[0]) == bucketing.batch
        }
    if not rows:
        inputs = ", ".join(f"{n}: {array}" for n, array in served.inputs.items())
        raise ShapeError(
            f"{name} of {path} takes no rows: no input begins with an open size ({inputs}). Save "
            "it with one, as with polymorphic_shapes='(b, ...)'."
        )
    shared = {n: array for n, array in served.inputs.items() if n not in rows}
    outputs: dict[str, RowShape] = dict.fromkeys(served.outputs)
    if bucketing is None:
        return RowPlan(name, _make_inputs(served, rows, {}), shared, outputs)
    own = bucketing
    if not served.is_preprocessed:
        own_inputs = {n: aval for n, aval in bucketing.inputs.items() if n not in shared}
        own = replace(bucketing, inputs=own_inputs)
    obstacle = find_obstacle(own)
    if obstacle is not None:
        raise ShapeError(
            f"Rows of {name} of {path} cannot be scored in batches: {obstacle}. Call the signature "
            "with the rows that belong together."
        )
    # The graph fills a mask for the sizes of the whole batch, so rows must not differ along it.
    fixed = {v for mask in bucketing.masks for v in variables_in(bucketing.inputs[mask])}
    buckets = {v: s for v, s in bucketing.sizes.items() if v != own.batch and v not in fixed}
    if served.is_postprocessed:
        in_outputs = {v for aval in bucketing.outputs.values() for v in variables_in(aval)}
        buckets = {v: sizes for v, sizes in buckets.items() if v not in in_outputs}
    else:
        outputs = {n: aval.op_shape[1:] for n, aval in bucketing.outputs.items()}
    return RowPlan(
        name,
        _make_inputs(served, rows, bucketing.pad_values),
        shared,
        outputs,
        {} if served.is_preprocessed else buckets,
        bucketing.sizes.get(own.batch or "", ()),
    )


def _make_inputs(
    served: ServedSignature, rows: Mapping[str, RowShape], pads: Mapping[str, Any]
) -> tuple[RowInput, ...]:
    return tuple(
        RowInput(n, served.inputs[n].dtype, shape, pads.get(n, 0)) for n, shape in rows.items()
    )


def _find_bucket(buckets: Sizes, size: int) -> int:
    """Returns the smallest bucket that holds a size; the size itself above the largest."""
    return next((bucket for bucket in buckets if bucket >= size), size)


def fits_shape(expected: RowShape, shape: Sizes, values: Mapping[str, int]) -> bool:
    """Returns whether an array may have a shape, where `values` has the sizes of some variables."""
    if expected is None:
        return True
    if len(expected) != len(shape):
        return False
    known = evaluate_shape([d for d in expected if d is not None], values)
    sizes = [size for d, size in zip(expected, shape, strict=True) if d is not None]
    return all(k in (None, size) for k, size in zip(known, sizes, strict=True))


def _evaluate(shape: RowShape, actual: Sizes, values: Mapping[str, int]) -> Sizes:
    """Evaluates a shape; returns the actual one if a size of it is unknown."""
    if shape is None or None in shape:
        return actual
    return tuple(int(d or 0) for d in evaluate_shape([d for d in shape if d is not None], values))


def _list_variables(shape: RowShape) -> set[str]:
    return {v for d in shape or () if d is not None for v in variables_of(d)}
