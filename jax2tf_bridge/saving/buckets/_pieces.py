"""Functions that run over pieces of their arguments, and so do their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge.to_tensorflow import TracedOnce, opaque_to_autograph

PieceKind: TypeAlias = int | Literal["whole", "sum", "first", "size"]
"""Way to cut an argument into pieces, or to join a result.

An int is the axis along which a tensor is cut or joined. For an argument, "whole" passes all of it
to each piece, "first" passes it to the first piece and zeros to the others, and "size" passes the
size of the piece. For a result, "sum" adds the pieces, and "first" takes that of the first piece.
"""

_DUAL: dict[PieceKind, PieceKind] = {"whole": "sum", "sum": "whole", "first": "first"}


@dataclass(frozen=True)
class Slot:
    """Argument or result of a function over pieces.

    Attributes:
      kind: the way to cut or join it.
      spec: its dtype and the known part of its shape.
    """

    kind: PieceKind
    spec: tf.TensorSpec

    @property
    def is_differentiable(self) -> bool:
        """True if TensorFlow has gradients for the dtype; it has none for 8-bit floats."""
        row = find_dtype(self.spec.dtype.name)
        return row is not None and row.is_differentiable and row.bits > 8

    def to_cotangent(self) -> Slot:
        """Returns the slot of the cotangent: arguments become results of the gradient, and back."""
        return Slot(_DUAL.get(self.kind, self.kind), self.spec)


@dataclass
class PieceGradients:
    """Gradients of functions over pieces, as TF functions that a SavedModel can hold.

    Attributes:
      gradient_problem: returns the reason why the gradient of an order has no gradient, or None.
    """

    gradient_problem: Callable[[int], str | None]
    _by_key: dict[tuple[str, tuple[Any, ...]], PiecewiseFunction] = field(default_factory=dict)
    _untraced: list[PiecewiseFunction] = field(default_factory=list)

    def piecewise(
        self, variable: str, arguments: tuple[Any, ...], make: Callable[[], PiecewiseFunction]
    ) -> PiecewiseFunction:
        """Returns the function that cuts these arguments along a variable, made once and cached."""
        key = variable, arguments
        if key not in self._by_key:
            self._by_key[key] = make()
            self._untraced.append(self._by_key[key])
        return self._by_key[key]

    def concrete_functions(self) -> list[Any]:
        """Traces the gradients of all functions, also of functions that this tracing adds.

        Pieces along one variable may be cut into pieces along another.
        """
        functions = []
        while self._untraced:
            piecewise = self._untraced.pop()
            while self.gradient_problem(piecewise.order) is None:
                functions.append(piecewise.vjp_function.concrete)
                piecewise = piecewise.vjp
        return functions


@dataclass(frozen=True)
class PiecewiseFunction:
    """Function that runs over pieces of its arguments, and so does its gradient.

    TensorFlow never differentiates the loop. Under two tapes this would not terminate: TensorFlow
    asks for gradients of all that a gradient keeps, and that of a loop keeps new tensors each time.

    Attributes:
      of_piece: the function of one piece.
      largest: the maximum size of a piece.
      arguments: the arguments; one has the kind "size", the size of the whole.
      results: the results.
      gradient_problem: as in `PieceGradients`.
      order: 0 for the function itself, 1 for its gradient, ...
      pull: the gradient of `of_piece`, from its arguments and the cotangents of its results;
        without it TensorFlow differentiates `of_piece`, which then runs once more.
    """

    of_piece: Callable[..., Sequence[tf.Tensor]]
    largest: int
    arguments: tuple[Slot, ...]
    results: tuple[Slot, ...]
    gradient_problem: Callable[[int], str | None]
    order: int = 0
    pull: Callable[..., Sequence[tf.Tensor]] | None = None

    def __call__(self, *args: tf.Tensor) -> list[tf.Tensor]:
        """Runs the function over the pieces and joins the results."""
        if (why := self.gradient_problem(self.order)) is not None:
            return [tf.raw_ops.PreventGradient(input=r, message=why) for r in self._run(args)]

        @tf.custom_gradient
        def call(*args: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
            @opaque_to_autograph
            def gradient(*cotangents: Any) -> list[Any]:
                dense = [
                    tf.zeros_like(results[i])
                    if cotangents[i] is None
                    else tf.convert_to_tensor(cotangents[i])
                    for i in list_differentiable(self.results)
                ]
                pulled = self.vjp_function(*args, *dense)
                by_argument = dict(zip(list_differentiable(self.arguments), pulled, strict=True))
                return [by_argument.get(i) for i in range(len(args))]

            results = self._run(args)
            return results, gradient

        return list(call(*args))

    @functools.cached_property
    def vjp(self) -> PiecewiseFunction:
        """VJP: maps the arguments and the cotangents of results to the cotangents of arguments."""
        sources, targets = list_differentiable(self.arguments), list_differentiable(self.results)
        count = len(self.arguments)

        @opaque_to_autograph
        def of_piece(*args: tf.Tensor) -> list[tf.Tensor]:
            watched = [args[i] for i in sources]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(watched)
                results = self.of_piece(*args[:count])
            pulled = tape.gradient(
                [results[i] for i in targets],
                watched,
                output_gradients=list(args[count:]),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return [tf.convert_to_tensor(gradient) for gradient in pulled]

        return PiecewiseFunction(
            tf.function(of_piece if self.pull is None else self.pull, autograph=False),
            self.largest,
            (*self.arguments, *(self.results[i].to_cotangent() for i in targets)),
            tuple(self.arguments[i].to_cotangent() for i in sources),
            self.gradient_problem,
            self.order + 1,
        )

    @functools.cached_property
    def vjp_function(self) -> TracedOnce:
        """VJP as a TF function."""
        vjp = self.vjp
        signature = [slot.spec for slot in vjp.arguments]

        @opaque_to_autograph
        def piecewise_vjp(*args: tf.Tensor) -> list[tf.Tensor]:
            return vjp(*args)

        return TracedOnce(piecewise_vjp, signature)

    def _run(self, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Computes the results without a gradient."""
        position = next(i for i, slot in enumerate(self.arguments) if slot.kind == "size")
        size = args[position]
        # The first piece runs outside of the branches, so that one branch computes nothing.
        first = list(self.of_piece(*self._piece(args, 0, tf.minimum(size, self.largest))))
        longer = [i for i, slot in enumerate(self.results) if slot.kind != "first"]
        if longer:
            joined = tf.cond(
                size <= self.largest,
                lambda: {str(i): first[i] for i in longer},
                lambda: self._run_rest(args, size, first),
            )
            for i in longer:
                first[i] = joined[str(i)]
        for result, slot in zip(first, self.results, strict=True):
            result.set_shape(slot.spec.shape)
        return first

    def _piece(self, args: Sequence[tf.Tensor], start: Any, size: Any) -> list[tf.Tensor]:
        piece = []
        bounds: dict[tuple[int, int], tuple[Any, Any]] = {}
        for tensor, slot in zip(args, self.arguments, strict=True):
            if isinstance(slot.kind, int):
                key = tensor.shape.rank, slot.kind
                if key not in bounds:
                    bounds[key] = _slice_bounds(*key, start, size)
                piece.append(_cut(tensor, slot.kind, size, *bounds[key]))
            elif slot.kind == "size":
                piece.append(size)
            else:
                is_zero = slot.kind == "first" and not isinstance(start, int)
                piece.append(tf.zeros_like(tensor) if is_zero else tensor)
        return piece

    def _run_rest(
        self, args: Sequence[tf.Tensor], size: tf.Tensor, first: Sequence[tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Runs the other pieces, and joins their results to those of the first."""
        largest = self.largest
        count = tf.math.floordiv(size + (largest - 1), largest)
        axes = {i: slot.kind for i, slot in enumerate(self.results) if isinstance(slot.kind, int)}
        summed = [i for i, slot in enumerate(self.results) if slot.kind == "sum"]

        def write(arrays: dict[int, Any], step: Any, part: Sequence[tf.Tensor]) -> dict[int, Any]:
            return {
                i: array.write(step, _move_to_front(part[i], axes[i]))
                for i, array in arrays.items()
            }

        def body(step: Any, arrays: Any, sums: Any) -> tuple[Any, Any, Any]:
            start = step * largest
            part = self.of_piece(*self._piece(args, start, tf.minimum(largest, size - start)))
            added = {}
            for i in summed:
                added[i] = sums[i] + part[i]
                added[i].set_shape(sums[i].shape)
            return step + 1, write(arrays, step, part), added

        arrays = {
            i: tf.TensorArray(
                self.results[i].spec.dtype,
                size=count,
                infer_shape=False,
                element_shape=_front_shape(self.results[i].spec, axis),
            )
            for i, axis in axes.items()
        }
        _, arrays, sums = tf.while_loop(
            lambda step, *_: step < count,
            body,
            (tf.constant(1), write(arrays, 0, first), {i: first[i] for i in summed}),
            parallel_iterations=1,
        )
        joined = {i: _move_from_front(array.concat(), axes[i]) for i, array in arrays.items()}
        return {str(i): result for i, result in {**joined, **sums}.items()}


def cut(tensor: Any, axis: int, start: Any, size: Any) -> Any:
    """Slices a tensor along an axis."""
    return _cut(tensor, axis, size, *_slice_bounds(tensor.shape.rank, axis, start, size))


def _slice_bounds(rank: int, axis: int, start: Any, size: Any) -> tuple[Any, Any]:
    """Returns `begin` and `size` of tf.slice along an axis."""
    begin = tf.stack([start if i == axis else 0 for i in range(rank)])
    sizes = tf.stack([size if i == axis else -1 for i in range(rank)])
    return begin, sizes


def _cut(tensor: Any, axis: int, size: Any, begin: Any, sizes: Any) -> Any:
    part = tf.slice(tensor, begin, sizes)
    known = tensor.shape.as_list()
    known[axis] = size if isinstance(size, int) else None
    part.set_shape(known)
    return part


def list_differentiable(slots: Sequence[Slot]) -> list[int]:
    """Lists the positions of the slots that have gradients."""
    return [i for i, slot in enumerate(slots) if slot.is_differentiable]


def _front_shape(spec: tf.TensorSpec, axis: int) -> list[int | None]:
    known = list(spec.shape)
    del known[axis]
    return [None, *known]


def _move_to_front(tensor: Any, axis: int) -> Any:
    if not axis:
        return tensor
    rank = tensor.shape.rank
    return tf.transpose(tensor, [axis, *(i for i in range(rank) if i != axis)])


def _move_from_front(tensor: Any, axis: int) -> Any:
    if not axis:
        return tensor
    rank = tensor.shape.rank
    return tf.transpose(tensor, [*range(1, axis + 1), 0, *range(axis + 1, rank)])
