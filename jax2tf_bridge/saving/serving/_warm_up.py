"""Warm-up requests, which TensorFlow Serving replays at load time to spare users the wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.portable import Aval, variables_in
from jax2tf_bridge.saved_model import (
    WARM_UP,
    ModelSpecField,
    PredictionLogField,
    RequestField,
    bytes_field,
    read_requests,
    tensor_type,
    write_records,
)
from jax2tf_bridge.saving.buckets import Bucketing, find_smallest_sizes
from shape_poly import Comparison, Integers, evaluate_shape, make_plan, solve

MAX_REQUESTS = 1000
"""Maximum number of requests with which TensorFlow Serving loads a model."""


@dataclass(frozen=True)
class Zeros:
    """Array of zeros or empty strings that takes no space in memory or in a file."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class WarmUpRequest:
    """Call of a signature.

    Attributes:
      signature: the name of the signature.
      inputs: the arguments by name: zeros, or values.
    """

    signature: str
    inputs: Mapping[str, Zeros | np.ndarray[Any, Any]]

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the inputs as arrays."""
        return {name: _to_array(x) for name, x in self.inputs.items()}

    def __str__(self) -> str:
        inputs = (
            f"{n}: {array_type_text(_get_dtype_name(x), x.shape)}" for n, x in self.inputs.items()
        )
        return f"{self.signature}({', '.join(inputs)})"


def _to_array(array: Zeros | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if isinstance(array, Zeros):
        if array.dtype == "string":
            return np.full(array.shape, b"", object)
        return np.zeros(array.shape, tf.as_dtype(array.dtype).as_numpy_dtype)
    return array


def _get_dtype_name(array: Zeros | np.ndarray[Any, Any]) -> str:
    """Returns TensorFlow's name of the dtype; NumPy stores strings as objects."""
    return array.dtype if isinstance(array, Zeros) else str(tf.as_dtype(array.dtype).name)


def make_bucket_requests(
    bucketing: Bucketing, example: Mapping[str, Any] | None = None
) -> tuple[WarmUpRequest, ...]:
    """Makes a request for each combination of buckets of a signature.

    Variables without buckets have the smallest sizes that the constraints allow.

    Args:
      bucketing: the buckets of the signature.
      example: values for some or all of the inputs, for a function that fails on zeros or is slow
        on them. They are repeated or cut to the size of each bucket.

    Raises:
      ShapeError: an example does not fit its input, or no sizes satisfy the constraints.
    """
    avals = (*bucketing.inputs.values(), *bucketing.outputs.values())
    return tuple(
        _make_request(
            bucketing.name,
            bucketing.given(),
            find_smallest_sizes(bucketing.name, avals, bucketing.constraints, choice),
            example or {},
        )
        for choice in bucketing.choices()
    )


def check_example(bucketing: Bucketing, example: Mapping[str, Any]) -> None:
    """Raises, as `make_bucket_requests` does, if an example does not fit the buckets."""
    if example:
        avals = (*bucketing.inputs.values(), *bucketing.outputs.values())
        choice = next(iter(bucketing.choices()))
        sizes = find_smallest_sizes(bucketing.name, avals, bucketing.constraints, choice)
        _make_request(bucketing.name, bucketing.given(), sizes, example)


def make_request_without_buckets(
    signature: str,
    inputs: Mapping[str, Aval],
    constraints: Sequence[Comparison] = (),
    example: Mapping[str, Any] | None = None,
) -> WarmUpRequest:
    """Makes a request for a signature without buckets, of the smallest valid sizes.

    Raises:
      ShapeError: as for `make_bucket_requests`.
    """
    sizes = find_smallest_sizes(signature, tuple(inputs.values()), constraints, {})
    return _make_request(signature, inputs, sizes, example or {})


def make_request_from_example(
    signature: str,
    inputs: Mapping[str, Aval],
    constraints: Sequence[Comparison],
    example: Mapping[str, Any],
) -> WarmUpRequest:
    """Makes a request from an example for a signature with open sizes and no buckets.

    Missing inputs are zeros, of the smallest sizes that fit the example.

    Raises:
      ShapeError: the example does not fit the inputs or the constraints.
    """
    arrays = {name: np.asarray(example[name]) for name in inputs if name in example}
    for name, array in arrays.items():
        _check_fits(signature, name, inputs[name], array)
    shapes = [inputs[name].op_shape for name in arrays]
    sizes = [array.shape for array in arrays.values()]
    solution = solve(
        make_plan(shapes, constraints=constraints), sizes, Integers(), constraints, smallest=0
    )
    failed = next((check for check in solution.checks if check.holds is False), None)
    if failed is not None:
        texts = (
            f"{name} is {array_type_text(array.dtype, array.shape)}, expected {inputs[name]}"
            for name, array in arrays.items()
        )
        raise ShapeError(
            f"{signature}: the sizes of the example are impossible: {'; '.join(texts)}: "
            f"{''.join(map(str, failed.reason))}"
        )
    values = find_smallest_sizes(signature, tuple(inputs.values()), constraints, solution.values)
    request = _make_request(signature, inputs, values, example)
    for name, array in arrays.items():
        if request.inputs[name].shape != array.shape:
            others = [n for n in inputs if n not in arrays and variables_in(inputs[n])]
            raise ShapeError(
                f"{signature}: the example for {name} is "
                f"{array_type_text(array.dtype, array.shape)}; its sizes do not follow from "
                f"{inputs[name]} alone. Give {' and '.join(others)} as well."
            )
    return request


def _make_request(
    signature: str,
    inputs: Mapping[str, Aval],
    values: Mapping[str, int],
    example: Mapping[str, Any],
) -> WarmUpRequest:
    arrays: dict[str, Zeros | np.ndarray[Any, Any]] = {}
    for name, aval in inputs.items():
        shape = tuple(size or 0 for size in evaluate_shape(aval.op_shape, values))
        if name in example:
            arrays[name] = _resize(signature, name, aval, np.asarray(example[name]), shape)
        else:
            arrays[name] = Zeros(shape, aval.op_dtype)
    return WarmUpRequest(signature, arrays)


def _resize(
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
    """Raises unless an array fits an input, or can be repeated to this shape."""
    dtype = tf.as_dtype(aval.op_dtype).as_numpy_dtype
    target = array.shape if shape is None else shape
    fits = array.ndim == len(aval.op_shape) and all(
        actual == d if isinstance(d, int) else actual > 0 or size == 0
        for actual, size, d in zip(array.shape, target, aval.op_shape, strict=True)
    )
    if not fits or array.dtype != dtype:
        raise ShapeError(
            f"{signature}: the example for {name} is {array_type_text(array.dtype, array.shape)}, "
            f"and {name} is {aval}"
        )


def write_warm_up(folder: Path, requests: Iterable[WarmUpRequest]) -> None:
    """Writes the file with requests that TensorFlow Serving replays when it loads the model.

    Args:
      folder: the folder of the SavedModel.
      requests: at most 1000 requests, in the order in which they run.

    Raises:
      ShapeError: there are more than 1000 requests.
      OSError: the file cannot be written.
    """
    requests = tuple(requests)
    if len(requests) > MAX_REQUESTS:
        raise ShapeError(
            f"{len(requests)} warm-up requests, one for each signature and choice of buckets: "
            f"TensorFlow Serving loads a model with at most {MAX_REQUESTS}. Give fewer buckets."
        )
    path = folder / WARM_UP
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(path, map(_encode_log, requests))


def _encode_log(request: WarmUpRequest) -> bytes:
    # TensorFlow Serving ignores the model's name in replays, so the spec has none.
    spec = bytes_field(ModelSpecField.SIGNATURE_NAME, request.signature)
    message = bytes_field(RequestField.MODEL_SPEC, spec)
    for name, array in request.inputs.items():
        entry = bytes_field(1, name) + bytes_field(2, _encode_tensor(array))
        message += bytes_field(RequestField.INPUTS, entry)
    predict_log = bytes_field(PredictionLogField.REQUEST, message)
    return bytes_field(PredictionLogField.PREDICT_LOG, predict_log)


def _encode_tensor(array: Zeros | np.ndarray[Any, Any]) -> bytes:
    if not isinstance(array, Zeros):
        return bytes(tf.make_tensor_proto(array).SerializeToString())
    dtype = tf.as_dtype(array.dtype)
    zero = b"" if dtype == tf.string else np.zeros((), dtype.as_numpy_dtype)
    proto = tf.make_tensor_proto(zero, dtype)
    # A proto with a shape and a single value repeats that value; without a value, it is 0.
    proto.ClearField("tensor_content")
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    return bytes(proto.SerializeToString())


def read_warm_up(folder: Path) -> Iterator[WarmUpRequest]:
    """Yields the requests in a SavedModel's warm-up file.

    Raises:
      FileFormatError: the file is not a warm-up file, or is damaged.
    """
    for request in read_requests(folder):
        inputs = {
            name: np.asarray(
                tf.io.parse_tensor(
                    message.data[message.start : message.end], tensor_type(message).dtype
                ).numpy()
            )
            for name, message in request.inputs.items()
        }
        yield WarmUpRequest(request.signature, inputs)
