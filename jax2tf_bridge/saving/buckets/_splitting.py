"""Splits sizes above the largest bucket into pieces, and differentiates functions over pieces."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from jax2tf_bridge._dtypes import NARROW_FLOATS, find_dtype
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.saving.buckets._buckets import Bucketing, is_plain
from jax2tf_bridge.to_tensorflow import TracedOnce, opaque_to_autograph
from shape_poly import evaluate_shape

PieceKind: TypeAlias = int | Literal["whole", "sum", "first", "size"]
"""Way to cut an argument into pieces, or to join the results of the pieces.

An int is the axis along which a tensor is cut or joined. For an argument, "whole" passes all of it
to each piece, "first" passes it to the first piece and zeros to the others, and "size" passes the
size of the piece. For a result, "sum" adds those of the pieces, and "first" takes the first one.
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
      gradient_problem: returns the reason why the derivative of an order has no gradient, or None.
    """

    gradient_problem: Callable[[int], str | None]
    _by_key: dict[tuple[str, tuple[Any, ...]], PiecewiseFunction] = field(default_factory=dict)
    _untraced: list[PiecewiseFunction] = field(default_factory=list)

    def get_piecewise(
        self, variable: str, arguments: tuple[Any, ...], make: Callable[[], PiecewiseFunction]
    ) -> PiecewiseFunction:
        """Returns the cached function that cuts these arguments along a variable."""
        key = variable, arguments
        if key not in self._by_key:
            self._by_key[key] = make()
            self._untraced.append(self._by_key[key])
        return self._by_key[key]

    def concrete_functions(self) -> list[Any]:
        """Traces the gradients of all functions, including functions that this tracing adds.

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
    """Function that runs over pieces of its arguments; its gradient runs over pieces, too.

    TensorFlow never differentiates the loop. Under two tapes that would not terminate: TensorFlow
    requests the gradients of all tensors that a gradient captures, and the gradient of a loop
    captures new ones each time.

    Attributes:
      run_piece: the function of one piece.
      largest: the maximum size of a piece.
      arguments: the arguments; one has the kind "size", the size of the whole.
      results: the results.
      gradient_problem: as in `PieceGradients`.
      order: 0 for the function itself, 1 for its gradient, ...
      pull: the gradient of `run_piece`: maps its arguments and the cotangents of its results to
        cotangents of its arguments. Without it, TensorFlow runs `run_piece` again to differentiate
        it.
    """

    run_piece: Callable[..., Sequence[tf.Tensor]]
    largest: int
    arguments: tuple[Slot, ...]
    results: tuple[Slot, ...]
    gradient_problem: Callable[[int], str | None]
    order: int = 0
    pull: Callable[..., Sequence[tf.Tensor]] | None = None

    def __call__(self, *args: tf.Tensor) -> list[tf.Tensor]:
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
        def run_piece(*args: tf.Tensor) -> list[tf.Tensor]:
            watched = [args[i] for i in sources]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(watched)
                results = self.run_piece(*args[:count])
            pulled = tape.gradient(
                [results[i] for i in targets],
                watched,
                output_gradients=list(args[count:]),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return [tf.convert_to_tensor(gradient) for gradient in pulled]

        return PiecewiseFunction(
            tf.function(run_piece if self.pull is None else self.pull, autograph=False),
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
        first = list(self.run_piece(*self._piece(args, 0, tf.minimum(size, self.largest))))
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
            part = self.run_piece(*self._piece(args, start, tf.minimum(largest, size - start)))
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


@dataclass(frozen=True)
class Inputs:
    """Tensors that a function takes; or their cotangents, in which None means zeros.

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


_Kinds: TypeAlias = tuple[dict[str, PieceKind], list[PieceKind], dict[str, PieceKind]]
"""Kinds of the inputs, of the held tensors and of the unknown sizes."""


@dataclass(frozen=True)
class SplitFunction:
    """Function that runs sizes of a variable above its largest bucket in pieces.

    Attributes:
      run: the function for sizes up to the largest bucket.
      bucketing: the buckets; each input and output has the variable at most once, alone in its
        dimension.
      variable: the variable along which to cut.
      gradients: collects the gradients of the pieces.
      pull: the gradient of `run`, if there is one.
    """

    run: RunFunction
    bucketing: Bucketing
    variable: str
    gradients: PieceGradients
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
        known = {v: size for v, size in values.items() if isinstance(size, int)}
        unknown = {v: size for v, size in values.items() if v not in known}
        avals = self.bucketing.passed_inputs()
        axes = {name: _find_axis(avals[name], self.variable) for name in inputs.named}
        kinds: _Kinds = (
            {name: "whole" if axis is None else axis for name, axis in axes.items()},
            ["whole"] * len(inputs.held),
            {v: "size" if v == self.variable else "whole" for v in unknown},
        )
        flat = tf.nest.flatten((dict(inputs.named), list(inputs.held), unknown))
        arguments = tuple(
            Slot(kind, tf.TensorSpec(tensor.shape, tensor.dtype))
            for kind, tensor in zip(tf.nest.flatten(kinds), flat, strict=True)
        )
        results = {name: self._make_result(name, known) for name in self.bucketing.outputs}

        def make() -> PiecewiseFunction:
            return self._make_piecewise(kinds, known, arguments, results)

        key = (*known.items(), *inputs.named, *unknown, *arguments)
        piecewise = self.gradients.get_piecewise(self.variable, key, make)
        return dict(zip(results, piecewise(*flat), strict=True))

    def _make_piecewise(
        self,
        kinds: _Kinds,
        known: Mapping[str, int],
        arguments: tuple[Slot, ...],
        results: Mapping[str, Slot],
    ) -> PiecewiseFunction:
        def unflatten(args: Sequence[Any]) -> tuple[Inputs, dict[str, Any]]:
            named, held, sizes = tf.nest.pack_sequence_as(kinds, args[: len(arguments)])
            return Inputs(named, held), {**known, **sizes}

        def run_piece(*args: tf.Tensor) -> list[tf.Tensor]:
            tensors = self.run(*unflatten(args))
            return [tensors[name] for name in results]

        @opaque_to_autograph
        def pull_piece(*args: tf.Tensor) -> list[tf.Tensor]:
            assert self.pull is not None
            targets = [name for name, slot in results.items() if slot.is_differentiable]
            cotangents = dict(zip(targets, args[len(arguments) :], strict=True))
            pulled = self.pull(*unflatten(args), cotangents)
            named, _, sizes = kinds
            # Sizes are integers, so the list below leaves their places out.
            by_argument = tf.nest.flatten(
                ({n: pulled.named.get(n) for n in named}, list(pulled.held), sizes)
            )
            return [
                tf.zeros_like(args[i]) if by_argument[i] is None else by_argument[i]
                for i in list_differentiable(arguments)
            ]

        return PiecewiseFunction(
            tf.function(run_piece, autograph=False),
            self._largest,
            arguments,
            tuple(results.values()),
            self.gradients.gradient_problem,
            pull=None if self.pull is None else pull_piece,
        )

    def _make_result(self, name: str, known: Mapping[str, int]) -> Slot:
        aval = self.bucketing.outputs[name]
        axis = _find_axis(aval, self.variable)
        spec = tf.TensorSpec(evaluate_shape(aval.op_shape, known), get_carried_dtype(aval))
        return Slot("first" if axis is None else axis, spec)

    def _unroll(self, inputs: Inputs, values: Mapping[str, Any]) -> dict[str, Any]:
        size = values[self.variable]
        pieces = []
        for start in range(0, size, self._largest):
            part = dict(inputs.named)
            rows = min(self._largest, size - start)
            for name, aval in self.bucketing.passed_inputs().items():
                if (axis := _find_axis(aval, self.variable)) is not None:
                    part[name] = cut(inputs.named[name], axis, start, rows)
            pieces.append(self.run(Inputs(part, inputs.held), {**values, self.variable: rows}))
        joined = {}
        for name, aval in self.bucketing.outputs.items():
            axis = _find_axis(aval, self.variable)
            parts = [part[name] for part in pieces]
            joined[name] = parts[0] if axis is None else tf.concat(parts, axis)
        return joined


def _find_axis(aval: Aval, variable: str) -> int | None:
    return next((i for i, d in enumerate(aval.op_shape) if is_plain(d, variable)), None)
