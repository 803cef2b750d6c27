"""Pads the inputs of a function to the next bucket, fills its masks, and slices its results.

`save` traces these functions into the graph of the SavedModel, which runs them for each request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.emitters import SizeAlgebra
from jax2tf_bridge.errors import StructureError, format_bullets
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.saving.buckets._buckets import Bucketing
from jax2tf_bridge.saving.buckets._splitting import (
    Inputs,
    PieceGradients,
    PullFunction,
    RunFunction,
    SplitFunction,
    get_carried_dtype,
)
from jax2tf_bridge.to_tensorflow import (
    Guards,
    cast_if_needed,
    format_known_shape,
    opaque_to_autograph,
    static_shape,
)
from shape_poly import Dim, DimExpr, evaluate_shape, shape_text, solve, variables_of

Tensors: TypeAlias = Mapping[str, Any]
NamedCall: TypeAlias = Callable[[Tensors], Tensors]
"""Function from named tensors to named tensors."""
InputsCall: TypeAlias = Callable[[Inputs], Tensors]
"""Function from inputs, with weights and constants, to named tensors."""
InputsPull: TypeAlias = Callable[[Inputs, Tensors], Inputs]
"""Function from inputs and cotangents of all results to cotangents of the inputs."""

Values: TypeAlias = Mapping[str, Any]
"""Values of the variables: ints where they are known, else int32 tensors."""

_ALGEBRA = SizeAlgebra(tf.int32)


def pad_to_buckets(
    call: InputsCall,
    bucketing: Bucketing,
    held: Callable[[], Sequence[Any]] = tuple,
    gradients: PieceGradients | None = None,
    pull: InputsPull | None = None,
) -> NamedCall:
    """Makes a function of inputs of any size that calls `call` at the sizes of its buckets only.

    Pads each input to the next bucket, with zeros or its number in `bucketing.pad_values`, and
    slices each result to its size without padding. Tensors of a bucket's size are not copied. Size
    0 gives empty results, from the smallest bucket. `bucketing.oversize` says how larger sizes run.

    The function works eagerly, in a tf.function with known and with unknown sizes, under gradient
    tapes of any order, and in a SavedModel; not within jit_compile=True, which would compile each
    size.

    Args:
      call: takes all of `bucketing.inputs` and the held tensors, returns all of its outputs.
      bucketing: the buckets, from `make_bucketing`.
      held: returns the weights and constants that `call` takes besides the inputs. Pieces have
        gradients with respect to tensors that are passed to them, but not to variables that they
        read.
      gradients: collects the gradients of the pieces, if they are saved.
      pull: the gradient of `call`, for pieces; without it TensorFlow differentiates them.

    Returns:
      A function from a dict with `bucketing.passed_inputs()` to a dict with the outputs. It raises
      StructureError for other names. For sizes that contradict each other it raises
      tf.errors.InvalidArgumentError, when called or, if sizes are unknown then, when it runs.
    """

    def run_call(inputs: Inputs, values: Values) -> dict[str, Any]:
        targets = _choose_targets(bucketing, values)

        def call_named(tensors: Tensors) -> Tensors:
            return call(Inputs(tensors, inputs.held))

        return run_padded(call_named, bucketing, inputs.named, values, targets)

    def pull_call(inputs: Inputs, values: Values, cotangents: Tensors) -> Inputs:
        assert pull is not None
        return _pull_padded(pull, bucketing, inputs, values, cotangents)

    gradients = gradients or PieceGradients(lambda order: None)
    run: RunFunction = run_call
    pull_run: PullFunction | None = None if pull is None else pull_call
    for variable, kind in bucketing.oversize.items():
        if kind == "split":
            run = SplitFunction(run, bucketing, variable, gradients, pull_run)
            pull_run = None

    def run_any_size(tensors: Tensors) -> dict[str, Any]:
        inputs = _convert_inputs(bucketing, tensors)
        values, guards = _solve_sizes(bucketing, inputs)
        if guards:
            with tf.control_dependencies(guards):
                inputs = {name: tf.identity(x) for name, x in inputs.items()}
        results = run(Inputs(inputs, list(held())), values)
        return {
            name: cast_if_needed(results[name], tf.as_dtype(aval.op_dtype))
            for name, aval in bucketing.outputs.items()
        }

    return opaque_to_autograph(run_any_size)


def run_padded(
    call: NamedCall, bucketing: Bucketing, tensors: Tensors, values: Values, targets: Values
) -> dict[str, Any]:
    """Runs a function on inputs of sizes `values`, padded to `targets`, and slices its results.

    The results have their `get_carried_dtype`.
    """
    results = call(pad_inputs(bucketing, tensors, values, targets))
    return {
        name: slice_result(
            bucketing, aval, cast_if_needed(results[name], get_carried_dtype(aval)), values
        )
        for name, aval in bucketing.outputs.items()
    }


def _pull_padded(
    pull: InputsPull, bucketing: Bucketing, inputs: Inputs, values: Values, cotangents: Tensors
) -> Inputs:
    """Computes the gradient of `run_padded` from that of its function, which does not run."""
    targets = {**values, **_choose_targets(bucketing, values)}
    padded = {}
    for name, aval in bucketing.outputs.items():
        if name in cotangents:
            tensor = _pad(bucketing, aval, cotangents[name], targets)
        else:
            sizes = [_evaluate(dimension, targets) for dimension in aval.op_shape]
            tensor = tf.zeros(sizes, get_carried_dtype(aval))
        padded[name] = cast_if_needed(tensor, tf.as_dtype(aval.op_dtype))
    full = pad_inputs(bucketing, inputs.named, values, targets)
    pulled = pull(Inputs(full, inputs.held), padded)
    named = {}
    for name, aval in bucketing.passed_inputs().items():
        if (tensor := pulled.named.get(name)) is not None:
            tensor = cast_if_needed(tensor, get_carried_dtype(aval))
            named[name] = slice_result(bucketing, aval, tensor, values)
    return Inputs(named, pulled.held)


def pad_inputs(
    bucketing: Bucketing, tensors: Tensors, values: Values, targets: Values
) -> dict[str, Any]:
    """Pads the inputs and fills in the masks; the arguments are those of `run_padded`."""
    targets = {**values, **targets}
    full = {
        name: _pad(
            bucketing,
            aval,
            cast_if_needed(tensors[name], get_carried_dtype(aval)),
            targets,
            bucketing.pad_values.get(name, 0),
        )
        for name, aval in bucketing.passed_inputs().items()
    }
    for mask in bucketing.masks:
        full[mask] = _make_mask(bucketing.inputs[mask], values, targets)
    return {
        name: cast_if_needed(full[name], tf.as_dtype(aval.op_dtype))
        for name, aval in bucketing.inputs.items()
    }


def _convert_inputs(bucketing: Bucketing, tensors: Tensors) -> dict[str, Any]:
    avals = bucketing.passed_inputs()
    problems = [f"the input {name!r} is missing" for name in avals if name not in tensors]
    for name in tensors:
        if name in bucketing.masks:
            problems.append(f"the mask {name!r} is filled in automatically; do not pass it")
        elif name not in avals:
            near = did_you_mean(name, avals, quoted=True)
            problems.append(f"the input {name!r} is not expected{near}")
    if problems:
        raise StructureError(f"{bucketing.name}:{format_bullets(problems)}")
    converted = {}
    for name, aval in avals.items():
        tensor = tf.convert_to_tensor(tensors[name], tf.as_dtype(aval.op_dtype))
        rank = len(aval.op_shape)
        if tensor.shape.rank is None:
            tensor = tf.ensure_shape(tensor, [None] * rank)
        elif tensor.shape.rank != rank:
            raise _contradiction_error(bucketing, name, tensor, f"the rank must be {rank}")
        converted[name] = cast_if_needed(tensor, get_carried_dtype(aval))
    return converted


def _solve_sizes(
    bucketing: Bucketing, tensors: Mapping[str, Any]
) -> tuple[dict[str, Any], list[tf.Operation]]:
    """Solves for the variables, and adds guards against sizes that contradict each other.

    Guards only what padding would hide; the function itself checks the rest.
    """
    avals = bucketing.passed_inputs()
    sizes = [_list_sizes(tensors[name], aval) for name, aval in avals.items()]
    # Without rows the results are empty: size 0 needs no bucket.
    solution = solve(bucketing.plan, sizes, _ALGEBRA, smallest=0)
    guards = Guards(_ALGEBRA)
    for check in solution.checks:
        (place, *_) = check.places
        name = list(avals)[place.argument]
        dimension = avals[name].op_shape[place.axis]
        if check.holds is False:
            raise _contradiction_error(
                bucketing, name, tensors[name], "".join(map(str, check.reason))
            )
        # A size is never negative.
        is_sure = check.operator == ">=" and str(dimension) in variables_of(dimension)
        if bucketing.has_bucketed_variable(dimension) and check.comparison is None and not is_sure:
            message = [
                _format_expected(bucketing, name),
                tf.shape(tensors[name]),
                ": ",
                *check.reason,
            ]
            guards.require(check.operator, check.left, check.right, message)
    return dict(solution.values), guards.last


def _list_sizes(tensor: Any, aval: Aval) -> Sequence[Any]:
    """Lists the sizes of a tensor: ints where they are known or contain no variable."""
    known = static_shape(tensor)
    if all(k is not None or isinstance(d, int) for k, d in zip(known, aval.op_shape, strict=True)):
        return [d if k is None else k for k, d in zip(known, aval.op_shape, strict=True)]
    shape = tf.shape(tensor)
    return [shape[axis] if size is None else size for axis, size in enumerate(known)]


def _format_expected(bucketing: Bucketing, name: str) -> str:
    shape = shape_text(bucketing.inputs[name].op_shape)
    return f"{bucketing.name}: {name}: expected shape {shape}, got "


def _contradiction_error(bucketing: Bucketing, name: str, tensor: Any, reason: str) -> Exception:
    text = f"{_format_expected(bucketing, name)}{format_known_shape(tensor)}: {reason}"
    error: Exception = tf.errors.InvalidArgumentError(None, None, text)
    return error


def _evaluate(dimension: Dim, values: Values) -> Any:
    if isinstance(dimension, int):
        return dimension
    return dimension.evaluate_with(values, _ALGEBRA)


def _choose_targets(bucketing: Bucketing, values: Values) -> dict[str, Any]:
    return {
        variable: _choose_bucket(bucketing, variable, values[variable])
        for variable in bucketing.sizes
    }


def _choose_bucket(bucketing: Bucketing, variable: str, size: Any) -> Any:
    """Returns the smallest bucket that holds a size; above the largest, the size itself."""
    if isinstance(size, int):
        return bucketing.find_bucket(variable, size) or size
    buckets = bucketing.sizes[variable]
    # On the CPU, where the sizes are, so that nothing waits for a GPU.
    with tf.device("/device:CPU:0"):
        too_small = tf.constant((-1, *buckets[:-1])) < size
        bucket = tf.reduce_max(tf.where(too_small, tf.constant(buckets), 0))
        return tf.maximum(bucket, size) if bucketing.oversize[variable] == "as is" else bucket


def _pad(bucketing: Bucketing, aval: Aval, tensor: Any, targets: Values, value: Any = 0) -> Any:
    is_padded = [bucketing.has_bucketed_variable(dimension) for dimension in aval.op_shape]
    if not any(is_padded):
        return tensor
    known: Sequence[Any] = static_shape(tensor)
    sizes: Sequence[Any] = [
        _evaluate(dimension, targets) if padded else size
        for dimension, size, padded in zip(aval.op_shape, known, is_padded, strict=True)
    ]
    before = np.zeros(len(sizes), np.int32)
    paddings: Any
    if all(isinstance(size, int) for size in (*sizes, *known)):
        amounts = np.subtract(sizes, known, dtype=np.int32)
        if not amounts.any():
            return tensor
        paddings = np.stack([before, amounts], axis=1)
    else:
        # tf.pad copies nothing where all amounts are 0.
        extra = tf.stack([0 if size is None else size for size in sizes]) - tf.shape(tensor)
        # A session accepts other sizes than the graph states: fixed dimensions are never padded.
        extra *= np.array(is_padded, np.int32)
        paddings = tf.stack([before, extra], axis=1)
    number = np.asarray(value).astype(tensor.dtype.as_numpy_dtype)
    padded = tf.pad(tensor, paddings, constant_values=tf.constant(number) if value else 0)
    padded.set_shape(_evaluate_shape(aval, targets))
    return padded


def slice_result(bucketing: Bucketing, aval: Aval, tensor: Any, values: Values) -> Any:
    """Slices a result for padded sizes to its size for these values of the variables."""
    if not any(map(bucketing.has_bucketed_variable, aval.op_shape)):
        return tensor
    known = _evaluate_shape(aval, values)
    sizes, static = [], []
    for dimension, size in zip(aval.op_shape, known, strict=True):
        if bucketing.has_bucketed_variable(dimension):
            target = _evaluate_result_size(dimension, values)
            sizes.append(target)
            static.append(target if isinstance(target, int) else None)
        else:
            sizes.append(-1)  # all of it
            static.append(size)
    sliced = tf.slice(tensor, [0] * len(sizes), tf.stack(sizes))
    sliced.set_shape(static)
    return sliced


def _evaluate_result_size(dimension: Dim, values: Values) -> Any:
    """Returns a size of a result; 0 where it is negative, for sizes that the function refuses."""
    size = _evaluate(dimension, values)
    may_be_negative = isinstance(dimension, DimExpr) and any(c < 0 for _, c in dimension.terms)
    return _ALGEBRA.maximum(0, size) if may_be_negative else size


def _evaluate_shape(aval: Aval, values: Values) -> tuple[int | None, ...]:
    known = {name: value for name, value in values.items() if isinstance(value, int)}
    return evaluate_shape(aval.op_shape, known)


def _make_mask(aval: Aval, values: Values, targets: Values) -> Any:
    """Makes a mask: 1 where each index is below the size of its dimension, else 0."""
    rank = len(aval.op_shape)
    mask: Any = tf.ones([1] * rank, tf.bool)
    sizes = [_evaluate(dimension, targets) for dimension in aval.op_shape]
    for axis, dimension in enumerate(aval.op_shape):
        row = tf.sequence_mask(_evaluate(dimension, values), sizes[axis])
        shape = [-1 if a == axis else 1 for a in range(rank)]
        mask = tf.logical_and(mask, tf.reshape(row, shape))
    mask = tf.cast(mask, tf.as_dtype(aval.op_dtype))
    mask.set_shape(_evaluate_shape(aval, targets))
    return mask
