"""Requests that TensorFlow Serving replays when it loads a model, so that users need not wait."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.errors import FileFormatError, ShapeError
from jax2tf_bridge.portable import Aval, variables_in
from jax2tf_bridge.saved_model import (
    WARM_UP,
    ModelSpecField,
    PredictionLogField,
    RequestField,
    bytes_field,
    read_requests,
    write_records,
)
from jax2tf_bridge.saving.buckets import Bucketing, smallest_sizes
from jax2tf_bridge.storage import AnyPath, as_path
from shape_poly import Comparison, Integers, evaluate_shape, make_plan, solve

_MOST_ELEMENTS = 1 << 24
"""How many elements a file may stand for that it does not hold."""

MOST_REQUESTS = 1000
"""TensorFlow Serving refuses to load a model with more."""


@dataclass(frozen=True)
class Zeros:
    """Array of zeros, or empty strings, that takes no memory, neither here nor in a file."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class WarmUpRequest:
    """Call of a signature.

    Attributes:
      signature: its name.
      inputs: what it is called with, by name: zeros, or values.
    """

    signature: str
    inputs: Mapping[str, Zeros | np.ndarray[Any, Any]]

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the inputs as arrays."""
        return {name: _values(x) for name, x in self.inputs.items()}

    def tensors(self) -> dict[str, tf.Tensor]:
        """Returns the inputs as tensors."""
        return {name: tf.constant(x) for name, x in self.arrays().items()}

    def __str__(self) -> str:
        inputs = (f"{n}: {array_type_text(_dtype(x), x.shape)}" for n, x in self.inputs.items())
        return f"{self.signature}({', '.join(inputs)})"


def _values(array: Zeros | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if isinstance(array, Zeros):
        if array.dtype == "string":
            return np.full(array.shape, b"", object)
        return np.zeros(array.shape, tf.as_dtype(array.dtype).as_numpy_dtype)
    return array


def _dtype(array: Zeros | np.ndarray[Any, Any]) -> str:
    """Returns TensorFlow's name of a dtype: NumPy has strings as objects."""
    return array.dtype if isinstance(array, Zeros) else str(tf.as_dtype(array.dtype).name)


def requests_of(
    bucketing: Bucketing, example: Mapping[str, Any] | None = None
) -> tuple[WarmUpRequest, ...]:
    """Makes a request for each choice of buckets of a signature.

    Variables without buckets have the smallest sizes that the constraints allow.

    Args:
      bucketing: the signature's.
      example: values for some or all of the inputs, for a function that fails on zeros or takes
        long on them. They are repeated, or cut, to each bucket.

    Raises:
      ShapeError: an example does not fit its input, or no sizes satisfy the constraints.
    """
    avals = (*bucketing.inputs.values(), *bucketing.outputs.values())
    return tuple(
        _request(
            bucketing.name,
            bucketing.given(),
            smallest_sizes(bucketing.name, avals, bucketing.constraints, choice),
            example or {},
        )
        for choice in bucketing.choices()
    )


def check_example(bucketing: Bucketing, example: Mapping[str, Any]) -> None:
    """Raises if an example does not fit a signature with buckets, as `requests_of` does."""
    if example:
        avals = (*bucketing.inputs.values(), *bucketing.outputs.values())
        choice = next(iter(bucketing.choices()))
        sizes = smallest_sizes(bucketing.name, avals, bucketing.constraints, choice)
        _request(bucketing.name, bucketing.given(), sizes, example)


def request_without_buckets(
    signature: str,
    inputs: Mapping[str, Aval],
    constraints: Sequence[Comparison] = (),
    example: Mapping[str, Any] | None = None,
) -> WarmUpRequest:
    """Makes a request for a signature without buckets, of the smallest sizes that are allowed.

    Raises:
      ShapeError: as for `requests_of`.
    """
    sizes = smallest_sizes(signature, tuple(inputs.values()), constraints, {})
    return _request(signature, inputs, sizes, example or {})


def request_of_example(
    signature: str,
    inputs: Mapping[str, Aval],
    constraints: Sequence[Comparison],
    example: Mapping[str, Any],
) -> WarmUpRequest:
    """Makes a request of an example of a signature with open sizes and no buckets, as it is.

    Inputs that the example leaves out are zeros, of the smallest sizes that go with the others.

    Raises:
      ShapeError: it does not fit the inputs or the constraints.
    """
    given = {name: np.asarray(example[name]) for name in inputs if name in example}
    for name, array in given.items():
        _check_fits(signature, name, inputs[name], array)
    shapes = [inputs[name].op_shape for name in given]
    sizes = [array.shape for array in given.values()]
    solution = solve(
        make_plan(shapes, constraints=constraints), sizes, Integers(), constraints, smallest=0
    )
    failed = next((check for check in solution.checks if check.holds is False), None)
    if failed is not None:
        texts = (
            f"{name} is {array_type_text(array.dtype, array.shape)}, expected {inputs[name]}"
            for name, array in given.items()
        )
        raise ShapeError(
            f"{signature}: the example's sizes cannot be: {'; '.join(texts)}: "
            f"{''.join(map(str, failed.reason))}"
        )
    values = smallest_sizes(signature, tuple(inputs.values()), constraints, solution.values)
    request = _request(signature, inputs, values, example)
    for name, array in given.items():
        if request.inputs[name].shape != array.shape:
            others = [n for n in inputs if n not in given and variables_in(inputs[n])]
            raise ShapeError(
                f"{signature}: the example for {name} is "
                f"{array_type_text(array.dtype, array.shape)}, and from {inputs[name]} alone its "
                f"sizes do not follow. Give {' and '.join(others)} as well."
            )
    return request


def _request(
    signature: str,
    inputs: Mapping[str, Aval],
    values: Mapping[str, int],
    example: Mapping[str, Any],
) -> WarmUpRequest:
    made: dict[str, Zeros | np.ndarray[Any, Any]] = {}
    for name, aval in inputs.items():
        shape = tuple(size or 0 for size in evaluate_shape(aval.op_shape, values))
        if name in example:
            made[name] = _resized(signature, name, aval, np.asarray(example[name]), shape)
        else:
            made[name] = Zeros(shape, aval.op_dtype)
    return WarmUpRequest(signature, made)


def _resized(
    signature: str, name: str, aval: Aval, array: Any, shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Repeats or cuts an array along each dimension that is not fixed."""
    _check_fits(signature, name, aval, array, shape)
    for axis, size in enumerate(shape):
        if array.shape[axis] != size:
            array = np.take(array, np.arange(size) % array.shape[axis], axis)
    return np.asarray(array, order="C")  # ascontiguousarray gives scalars a dimension


def _check_fits(
    signature: str, name: str, aval: Aval, array: Any, shape: tuple[int, ...] | None = None
) -> None:
    """Raises unless an array is one for an input, or can be repeated to be one of this shape."""
    dtype = tf.as_dtype(aval.op_dtype).as_numpy_dtype
    wanted = array.shape if shape is None else shape
    fits = array.ndim == len(aval.op_shape) and all(
        given == d if isinstance(d, int) else given > 0 or size == 0
        for given, size, d in zip(array.shape, wanted, aval.op_shape, strict=True)
    )
    if not fits or array.dtype != dtype:
        raise ShapeError(
            f"{signature}: the example for {name} is {array_type_text(array.dtype, array.shape)}, "
            f"and {name} is {aval}"
        )


def write_warm_up(
    folder: str | os.PathLike[str],
    requests: Iterable[WarmUpRequest],
    model_name: str | None = None,
) -> AnyPath:
    """Writes the file with requests that TensorFlow Serving replays when it loads the model.

    Args:
      folder: the SavedModel's.
      requests: at most 1000, in the order in which they are to run.
      model_name: under which the model will be served; when replaying, TensorFlow Serving does not
        look at it.

    Returns:
      Where it is written: assets.extra/tf_serving_warmup_requests.

    Raises:
      ShapeError: there are more than 1000.
      OSError: it cannot be written.
    """
    requests = tuple(requests)
    if len(requests) > MOST_REQUESTS:
        raise ShapeError(
            f"{len(requests)} warm-up requests, one for each signature and choice of buckets: "
            f"TensorFlow Serving loads a model with at most {MOST_REQUESTS}. Give fewer buckets."
        )
    path = as_path(folder) / WARM_UP
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(path, (_as_log(request, model_name) for request in requests))
    return path


def _as_log(request: WarmUpRequest, model_name: str | None) -> bytes:
    spec = bytes_field(ModelSpecField.NAME, model_name) if model_name else b""
    spec += bytes_field(ModelSpecField.SIGNATURE_NAME, request.signature)
    message = bytes_field(RequestField.MODEL_SPEC, spec)
    for name, array in request.inputs.items():
        entry = bytes_field(1, name) + bytes_field(2, _tensor_proto(array))
        message += bytes_field(RequestField.INPUTS, entry)
    predict_log = bytes_field(PredictionLogField.REQUEST, message)
    return bytes_field(PredictionLogField.PREDICT_LOG, predict_log)


def _tensor_proto(array: Zeros | np.ndarray[Any, Any]) -> bytes:
    if not isinstance(array, Zeros):
        return bytes(tf.make_tensor_proto(array).SerializeToString())
    dtype = tf.as_dtype(array.dtype)
    zero = b"" if dtype == tf.string else np.zeros((), dtype.as_numpy_dtype)
    proto = tf.make_tensor_proto(zero, dtype)
    # One value and a shape mean that value everywhere; with no value at all, it is 0.
    proto.ClearField("tensor_content")
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    return bytes(proto.SerializeToString())


def read_warm_up(folder: str | os.PathLike[str]) -> tuple[WarmUpRequest, ...]:
    """Reads the requests in a SavedModel's warm-up file; none where there is no such file.

    Requests to classify, and to regress, and those of other kinds are left out.

    Raises:
      FileFormatError: it is no warm-up file, or damaged.
    """
    requests = []
    for request in read_requests(as_path(folder)):
        try:
            inputs = {
                name: _read_tensor(tensor.data[tensor.start : tensor.end])
                for name, tensor in request.inputs.items()
            }
        except (ValueError, TypeError, tf.errors.OpError) as e:
            reason = e.message if isinstance(e, tf.errors.OpError) else str(e)
            path = as_path(folder) / WARM_UP
            text = f"{path}: not a warm-up file of TensorFlow Serving, or damaged: {reason}"
            raise FileFormatError(text, file=str(path)) from e
        requests.append(WarmUpRequest(request.signature, inputs))
    return tuple(requests)


def _read_tensor(serialized: bytes) -> Zeros | np.ndarray[Any, Any]:
    proto = tf.make_tensor_proto(0)
    proto.Clear()
    try:
        proto.MergeFromString(serialized)
    except Exception as e:  # protobuf's DecodeError, which has no public name in TensorFlow
        raise ValueError(f"an input is no tensor: {e}") from e
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    dtype = tf.as_dtype(proto.dtype)
    if min(shape, default=0) < 0:
        raise ValueError(f"an input has the shape {list(shape)}")
    if not _holds_numbers(proto):
        return Zeros(shape, dtype.name)
    if math.prod(shape) > max(_MOST_ELEMENTS, len(serialized)):
        raise ValueError(f"an input has the shape {list(shape)}, and few numbers")
    return np.asarray(tf.io.parse_tensor(serialized, dtype).numpy())


def _holds_numbers(proto: Any) -> bool:
    """True if a TensorProto holds anything but zeros."""
    if proto.tensor_content:
        return True
    repeated = (values for _, values in proto.ListFields() if hasattr(values, "__len__"))
    return any(any(values) for values in repeated)
