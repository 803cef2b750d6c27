"""Splits sizes above the largest bucket into pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from jax2tf_bridge._dtypes import NARROW_FLOATS
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.saving.buckets._buckets import Bucketing, is_plain
from jax2tf_bridge.saving.buckets._pieces import (
    PieceGradients,
    PieceKind,
    PiecewiseFunction,
    Slot,
    cut,
    list_differentiable,
)
from jax2tf_bridge.to_tensorflow import opaque_to_autograph
from shape_poly import evaluate_shape


@dataclass(frozen=True)
class Inputs:
    """Tensors that a function takes; or their cotangents, where None stands for zeros.

    Attributes:
      named: the inputs of the signature by name.
      held: the weights and constants. All pieces use the same.
    """

    named: Mapping[str, Any]
    held: Sequence[Any]


RunFunction: TypeAlias = Callable[[Inputs, Mapping[str, Any]], dict[str, Any]]
"""Function from inputs and the values of variables to named tensors."""

PullFunction: TypeAlias = Callable[[Inputs, Mapping[str, Any], Mapping[str, Any]], Inputs]
"""Maps the arguments of a `RunFunction` and its results' cotangents to its inputs' cotangents.

Missing cotangents are zeros.
"""


def get_carried_dtype(aval: Aval) -> tf.DType:
    """Returns the dtype in which a tensor is padded, sliced and joined, mostly its own.

    TensorFlow has no such kernels for 8-bit floats; float16 holds all their values.
    """
    return tf.float16 if aval.op_dtype in NARROW_FLOATS else tf.as_dtype(aval.op_dtype)


@dataclass(frozen=True)
class SplitFunction:
    """Function that runs sizes of a variable above its largest bucket in pieces.

    Attributes:
      run: the function for sizes up to the largest bucket.
      bucketing: the buckets; each input and output has the variable at most once, alone in its
        dimension.
      variable: the variable along which to cut.
      gradients: collects the gradients of the pieces, if they are saved.
      pull: the gradient of `run`, if there is one.
    """

    run: RunFunction
    bucketing: Bucketing
    variable: str
    gradients: PieceGradients | None
    pull: PullFunction | None = None

    def __call__(self, inputs: Inputs, values: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the function at these values of the variables; the sizes may be unknown."""
        size = values[self.variable]
        if not isinstance(size, int):
            return self._run_loop(inputs, values)
        return self.run(inputs, values) if size <= self._largest else self._unroll(inputs, values)

    @property
    def _largest(self) -> int:
        return self.bucketing.sizes[self.variable][-1]

    def _run_loop(self, inputs: Inputs, values: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the pieces of an unknown size in a loop of TensorFlow."""
        order = _PieceArguments.of(inputs, values)
        arguments = self._list_arguments(inputs, values)
        results = {name: self._make_result(name, order.known) for name in self.bucketing.outputs}

        def make() -> PiecewiseFunction:
            return self._make_piecewise(order, arguments, results)

        key = (*order.known.items(), *order.names, *order.unknown, *arguments)
        gradients = self.gradients
        piecewise = make() if gradients is None else gradients.piecewise(self.variable, key, make)
        sizes = [values[name] for name in order.unknown]
        joined = piecewise(*inputs.named.values(), *inputs.held, *sizes)
        return dict(zip(results, joined, strict=True))

    def _make_piecewise(
        self, order: _PieceArguments, arguments: tuple[Slot, ...], results: Mapping[str, Slot]
    ) -> PiecewiseFunction:
        def of_piece(*args: tf.Tensor) -> list[tf.Tensor]:
            tensors = self.run(*order.unflatten(args))
            return [tensors[name] for name in results]

        @opaque_to_autograph
        def pull_of_piece(*args: tf.Tensor) -> list[tf.Tensor]:
            assert self.pull is not None
            targets = [name for name, slot in results.items() if slot.is_differentiable]
            cotangents = dict(zip(targets, args[len(arguments) :], strict=True))
            pulled = self.pull(*order.unflatten(args), cotangents)
            # Sizes have no cotangents; they are integers, so the list below leaves them out.
            by_argument = [*map(pulled.named.get, order.names), *pulled.held]
            return [
                tf.zeros_like(args[i]) if by_argument[i] is None else by_argument[i]
                for i in list_differentiable(arguments)
            ]

        return PiecewiseFunction(
            tf.function(of_piece, autograph=False),
            self._largest,
            arguments,
            tuple(results.values()),
            (lambda order: None) if self.gradients is None else self.gradients.gradient_problem,
            pull=None if self.pull is None else pull_of_piece,
        )

    def _list_arguments(self, inputs: Inputs, values: Mapping[str, Any]) -> tuple[Slot, ...]:
        """Lists the slots of the inputs, of the held tensors and of the unknown sizes."""
        avals = self.bucketing.given()
        kinds: list[PieceKind] = []
        for name in inputs.named:
            axis = _find_axis(avals[name], self.variable)
            kinds.append("whole" if axis is None else axis)
        kinds += ["whole"] * len(inputs.held)
        tensors = (*inputs.named.values(), *inputs.held)
        slots = [
            Slot(kind, tf.TensorSpec(tensor.shape, tensor.dtype))
            for kind, tensor in zip(kinds, tensors, strict=True)
        ]
        for name, value in values.items():
            if not isinstance(value, int):
                kind: PieceKind = "size" if name == self.variable else "whole"
                slots.append(Slot(kind, tf.TensorSpec((), value.dtype)))
        return tuple(slots)

    def _make_result(self, name: str, known: Mapping[str, int]) -> Slot:
        aval = self.bucketing.outputs[name]
        axis = _find_axis(aval, self.variable)
        spec = tf.TensorSpec(evaluate_shape(aval.op_shape, known), get_carried_dtype(aval))
        return Slot("first" if axis is None else axis, spec)

    def _unroll(self, inputs: Inputs, values: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the pieces of a known size one after another."""
        size = values[self.variable]
        pieces = []
        for start in range(0, size, self._largest):
            part = dict(inputs.named)
            rows = min(self._largest, size - start)
            for name, aval in self.bucketing.given().items():
                if (axis := _find_axis(aval, self.variable)) is not None:
                    part[name] = cut(inputs.named[name], axis, start, rows)
            pieces.append(self.run(Inputs(part, inputs.held), {**values, self.variable: rows}))
        joined = {}
        for name, aval in self.bucketing.outputs.items():
            axis = _find_axis(aval, self.variable)
            parts = [part[name] for part in pieces]
            joined[name] = parts[0] if axis is None else tf.concat(parts, axis)
        return joined


@dataclass(frozen=True)
class _PieceArguments:
    """Order of the flat arguments of a piece: inputs, held tensors, unknown sizes.

    Attributes:
      names: the names of the inputs.
      held_count: the number of held tensors.
      known: the known sizes, which are no arguments.
      unknown: the variables of the unknown sizes.
    """

    names: tuple[str, ...]
    held_count: int
    known: Mapping[str, int]
    unknown: tuple[str, ...]

    @staticmethod
    def of(inputs: Inputs, values: Mapping[str, Any]) -> _PieceArguments:
        known = {name: value for name, value in values.items() if isinstance(value, int)}
        unknown = tuple(name for name in values if name not in known)
        return _PieceArguments(tuple(inputs.named), len(inputs.held), known, unknown)

    def unflatten(self, args: Sequence[Any]) -> tuple[Inputs, dict[str, Any]]:
        """Returns the inputs and the values of variables; ignores what follows them."""
        first_size = len(self.names) + self.held_count
        named = dict(zip(self.names, args, strict=False))
        sizes = dict(zip(self.unknown, args[first_size:], strict=False))
        return Inputs(named, args[len(self.names) : first_size]), {**self.known, **sizes}


def _find_axis(aval: Aval, variable: str) -> int | None:
    return next((i for i, d in enumerate(aval.op_shape) if is_plain(d, variable)), None)
