"""Joins concurrent requests inside the SavedModel, with TensorFlow's BatchFunction."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import tensorflow as tf

from jax2tf_bridge._utils import as_integer
from jax2tf_bridge.errors import Argument, Message, SavingError
from jax2tf_bridge.portable import Aval, variables_in
from jax2tf_bridge.saving.buckets import (
    BUCKETS,
    Bucketing,
    Inputs,
    NamedCall,
    get_carried_dtype,
    is_plain,
)
from jax2tf_bridge.saving.signatures import Endpoint
from jax2tf_bridge.signatures import ServedArray
from jax2tf_bridge.to_tensorflow import cast_if_needed, opaque_to_autograph
from shape_poly import is_symbolic_dim, variables_of

_BATCHING = Argument("batching")

_MIN_VALUES = {"num_batch_threads": 1, "batch_timeout_micros": 0, "max_enqueued_batches": 1}

_NO_GRADIENT = (
    "The signature {0} joins the requests of several callers, so it has no gradient. Call the "
    "method {0} of the loaded model, which has a gradient."
)


@dataclass(frozen=True)
class Batching:
    """Settings of a model that joins concurrent requests itself, for `save(..., batching=...)`.

    The names are those of TensorFlow Serving's parameters. Joined requests are padded to the
    buckets of the batch dimension.

    Attributes:
      num_batch_threads: the number of batches of a signature that run at the same time.
      batch_timeout_micros: how long a request waits for others, in microseconds. Even with 0,
        requests that arrive while all threads are busy are joined.
      max_enqueued_batches: the number of batches that may wait; TensorFlow refuses further requests
        with UnavailableError.

    >>> Batching(batch_timeout_micros=500).num_batch_threads
    1
    """

    num_batch_threads: int = 1
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 1000

    def numbers(self) -> dict[str, int]:
        """Returns the settings by name."""
        return {name: int(number) for name, number in asdict(self).items()}


CHANGES_WEIGHTS = "each request changes weights"
"""Reason why the requests of a signature that changes weights cannot be joined."""


def find_batch_variable(bucketing: Bucketing) -> str | None:
    """Returns the bucketed variable that is the first dimension of each input and output."""
    avals = [*bucketing.passed_inputs().values(), *bucketing.outputs.values()]
    for variable in bucketing.sizes:
        if all(aval.op_shape and is_plain(aval.op_shape[0], variable) for aval in avals):
            return variable
    return None


def find_lengths(bucketing: Bucketing) -> set[str]:
    """Returns the variables of the inputs that are not the rows, such as lengths of sequences."""
    avals = bucketing.passed_inputs().values()
    return {v for aval in avals for v in variables_in(aval)} - {find_batch_variable(bucketing)}


def find_obstacle(bucketing: Bucketing) -> str | None:
    """Returns the reason why rows of several requests must not be joined; None if they may."""
    batch = find_batch_variable(bucketing)
    for name, aval in (*bucketing.passed_inputs().items(), *bucketing.outputs.items()):
        first, others = aval.op_shape[:1], aval.op_shape[1:]
        if not any(is_plain(d, variable) for d in first for variable in bucketing.sizes):
            return f"{name}: {ServedArray.of_aval(aval)} does not begin with a bucketed size"
        if any(batch in variables_of(dimension) for dimension in others):
            return f"{name}: {ServedArray.of_aval(aval)} has the number of rows twice"
    if batch is None:
        return "its inputs and outputs do not all begin with the same size"
    if bucketing.is_masked(batch):
        return "a mask says which rows are real, so rows may influence each other"
    if batch in bucketing.unchecked:
        return f"unchecked_padding names {batch}, so the independence of rows was not checked"
    return None


def check_batching(batching: Any) -> None:
    """Checks the `batching` option.

    Raises:
      SavingError: it is neither None nor a Batching with valid settings.
    """
    if batching is None:
        return
    if not isinstance(batching, Batching):
        raise SavingError(Message(_BATCHING, f" must be a Batching or None. Got: {batching!r}"))
    for name, smallest in _MIN_VALUES.items():
        number = as_integer(getattr(batching, name))
        if number is None or not smallest <= number < 2**31:
            problem = f": {name} must be an integer from {smallest} to {2**31 - 1}."
            raise SavingError(Message(_BATCHING, f"{problem} Got: {getattr(batching, name)!r}"))


def make_no_buckets_error(name: str) -> SavingError:
    """Makes the error for a signature without buckets."""
    hint = ("it has no buckets. Give save ", BUCKETS, ", or leave out ", _BATCHING, ".")
    return SavingError(Message(_BATCHING, _format_problem(name), *hint))


def _format_problem(name: str) -> str:
    return f" cannot join the requests of the signature {name}: "


def check_joinable(endpoints: Sequence[Endpoint]) -> None:
    """Raises unless the requests of every endpoint can be joined.

    Raises:
      SavingError: rows may influence each other, or have no buckets; requests choose other sizes as
        well; or the model is for converters.
    """
    for endpoint in endpoints:
        bucketing = endpoint.bucketing
        if bucketing is None:
            raise make_no_buckets_error(endpoint.name)
        reason = CHANGES_WEIGHTS if endpoint.function.updates else find_obstacle(bucketing)
        if reason is None and (lengths := find_lengths(bucketing)):
            reason = (
                f"requests choose the size {', '.join(sorted(lengths))} beside their rows, and "
                "TensorFlow fails where it joins different ones"
            )
        if reason is None and endpoint.portable.target.for_converters:
            reason = "converters do not know TensorFlow's BatchFunction"
        if reason is not None:
            start = (_BATCHING, _format_problem(endpoint.name), f"{reason}. ")
            raise SavingError(Message(*start, "Leave out ", _BATCHING, "."))


def join_requests(endpoint: Endpoint, batching: Batching, alone: Any) -> Endpoint:
    """Returns the endpoint with a call that joins requests of several callers.

    The requests are padded once, to a bucket of the rows. Empty requests and those of more rows
    than the largest bucket run alone.

    Args:
      endpoint: an endpoint that `check_joinable` accepts.
      batching: the settings.
      alone: a function of the endpoint's inputs by name, which runs one request.
    """
    padded = endpoint.padded
    assert padded is not None
    variable = find_batch_variable(padded.bucketing)
    assert variable is not None
    sizes = padded.bucketing.sizes[variable]
    inputs, outputs = padded.bucketing.inputs, padded.bucketing.outputs
    # BatchFunction and tf.cond do not take 8-bit floats.
    specs = [tf.TensorSpec(_list_known_sizes(a), get_carried_dtype(a)) for a in inputs.values()]

    def run_named(run: NamedCall, tensors: Sequence[Any]) -> list[Any]:
        named = {
            name: cast_if_needed(tensor, tf.as_dtype(aval.op_dtype))
            for (name, aval), tensor in zip(inputs.items(), tensors, strict=True)
        }
        results = run(named)
        return [cast_if_needed(results[n], get_carried_dtype(a)) for n, a in outputs.items()]

    def run_rows(*tensors: Any) -> list[Any]:
        held = endpoint.function.read_held()
        return run_named(lambda named: endpoint.function.call(Inputs(named, held)), tensors)

    function = tf.function(run_rows, autograph=False).get_concrete_function(*specs)

    def run_joined(tensors: Sequence[Any]) -> list[Any]:
        results = tf.raw_ops.BatchFunction(
            in_tensors=tensors,
            captured_tensors=function.captured_inputs,
            f=function,
            Tout=[output.dtype for output in function.outputs],
            allowed_batch_sizes=sizes,
            max_batch_size=sizes[-1],
            enable_large_batch_splitting=True,
            # Sessions find the queue by this name. tf.saved_model.load makes it unique.
            shared_name=f"{endpoint.name}_{uuid.uuid4().hex}",
            **batching.numbers(),
        )
        for result, aval in zip(results, outputs.values(), strict=True):
            result.set_shape(_list_known_sizes(aval))
        return list(results)

    def call(named: Mapping[str, Any]) -> dict[str, Any]:
        tensors = [cast_if_needed(named[n], s.dtype) for n, s in zip(inputs, specs, strict=True)]
        with tf.device("/device:CPU:0"):
            rows = tf.stack([tf.shape(tensor)[0] for tensor in tensors])
            is_joined = tf.reduce_all((rows > 0) & (rows <= sizes[-1]) & (rows == rows[0]))
        results = tf.cond(
            is_joined,
            lambda: run_joined(tensors),
            lambda: run_named(lambda named: alone(**named), tensors),
        )
        return {
            name: _prevent_gradient(
                cast_if_needed(result, tf.as_dtype(aval.op_dtype)), endpoint.name
            )
            for (name, aval), result in zip(outputs.items(), results, strict=True)
        }

    return replace(endpoint, padded=replace(padded, call=opaque_to_autograph(call)))


def _list_known_sizes(aval: Aval) -> list[int | None]:
    return [None if is_symbolic_dim(d) else int(str(d)) for d in aval.op_shape]


def _prevent_gradient(result: Any, name: str) -> Any:
    # BatchFunction's gradient would be None, which an optimizer may take for zero.
    if not (result.dtype.is_floating or result.dtype.is_complex):
        return result
    return tf.raw_ops.PreventGradient(input=result, message=_NO_GRADIENT.format(name))
