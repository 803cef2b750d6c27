"""Calls TensorFlow Serving over gRPC and REST, and compares its answers with the right ones."""

from __future__ import annotations

import contextlib
import importlib
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.saved_model import ModelSpecField, ProtoMessage, RequestField, bytes_field
from tests.serving.server import Server

# TensorFlow depends on it. It has no annotations.
grpc = importlib.import_module("grpc")

_METHOD = "/tensorflow.serving.PredictionService/Predict"
_RESPONSE_OUTPUTS = 1
_SECONDS = 60

Arrays = Mapping[str, Any]
Predict = Callable[..., dict[str, Any]]
"""Takes inputs and, where it is not the default one, the name of a signature."""


class RefusedError(Exception):
    """The server refused a request; the text has the status and the server's message."""


@dataclass(frozen=True)
class Call:
    """A request with the right answer.

    Attributes:
      inputs: the arrays to send.
      outputs: the right answer.
      signature: name of the signature; "" leaves it out of the request.
    """

    inputs: Arrays
    outputs: Arrays
    signature: str = ""


@contextlib.contextmanager
def connect(server: Server) -> Iterator[Predict]:
    """Opens a connection of its own, and yields the function that calls over gRPC.

    The function raises RefusedError.
    """
    # By default all callers of a process share one connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"localhost:{server.grpc_port}", options=options) as channel:
        method: Any = channel.unary_unary(_METHOD)

        def predict(inputs: Arrays, signature: str = "") -> dict[str, Any]:
            request = write_request(server.model, inputs, signature)
            try:
                return _read_response(method(request, timeout=_SECONDS))
            except grpc.RpcError as e:
                raise RefusedError(f"{e.code().name}: {e.details()}") from None

        yield predict


def call_from_many(
    server: Server, draw: Callable[[np.random.Generator], Call], *, callers: int, calls: int
) -> list[str]:
    """Calls from several callers at once, and lists the problems with all answers.

    Args:
      server: the server.
      draw: draws a call.
      callers: number of callers. Each draws other calls.
      calls: number of calls of each.
    """
    # Drawn before, since callers that only wait for the server keep it busier.
    randoms = [np.random.default_rng([callers, number]) for number in range(callers)]
    calls_by_caller = [[draw(random) for _ in range(calls)] for random in randoms]

    def run(own: list[Call]) -> list[str]:
        with connect(server) as predict:
            return [problem for call in own for problem in find_problems(predict, call)]

    with ThreadPoolExecutor(callers) as pool:
        return [problem for problems in pool.map(run, calls_by_caller) for problem in problems]


def find_problems(predict: Predict, call: Call) -> list[str]:
    """Calls over gRPC, and lists the problems with the answer."""
    try:
        return _compare(predict(call.inputs, call.signature), call.outputs)
    except RefusedError as e:
        return [str(e)]


def find_rest_problems(server: Server, call: Call) -> list[str]:
    """Calls over REST by columns and, if every input has rows, by rows, and lists the problems."""
    problems = []
    status, answer = predict_by_rest(server, call.inputs, call.signature)
    if status == 200:
        columns = _by_name(answer["outputs"], call.outputs)
        problems += _compare(_from_json(columns, call.outputs), call.outputs)
    else:
        problems.append(f"columns: {answer}")
    inputs = {name: _to_json(array) for name, array in call.inputs.items()}
    if not all(isinstance(value, list) for value in inputs.values()):
        return problems
    rows = [dict(zip(inputs, row, strict=True)) for row in zip(*inputs.values(), strict=True)]
    status, answer = post(server, {"signature_name": call.signature, "instances": rows})
    if status != 200:
        return [*problems, f"rows: {answer}"]
    named = [_by_name(row, call.outputs) for row in answer["predictions"]]
    columns = {name: [row[name] for row in named] for name in call.outputs}
    return [*problems, *_compare(_from_json(columns, call.outputs), call.outputs)]


def predict_by_rest(server: Server, inputs: Arrays, signature: str = "") -> tuple[int, Any]:
    """Calls over REST by columns, and returns the status and the decoded answer."""
    columns = {name: _to_json(array) for name, array in inputs.items()}
    return post(server, {"signature_name": signature, "inputs": columns})


def post(server: Server, request: Mapping[str, Any]) -> tuple[int, Any]:
    """Sends a request to the REST API, and returns the status and the decoded answer."""
    model = urllib.parse.quote(server.model)
    url = f"http://localhost:{server.rest_port}/v1/models/{model}:predict"
    body = json.dumps({key: value for key, value in request.items() if value != ""}).encode()
    try:
        with urllib.request.urlopen(url, body, _SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.load(e)


def _to_json(array: Any) -> Any:
    return np.asarray(array).tolist()


def _by_name(value: Any, outputs: Arrays) -> Any:
    """Names the value of a single output, whose name REST leaves out."""
    return value if len(outputs) > 1 else dict.fromkeys(outputs, value)


def _from_json(values: Mapping[str, Any], outputs: Arrays) -> dict[str, Any]:
    arrays = {}
    for name, value in values.items():
        dtype = np.asarray(outputs[name]).dtype
        is_text = dtype.kind == "O"
        arrays[name] = np.array([v.encode() for v in value] if is_text else value, dtype)
    return arrays


def _compare(answer: Arrays, expected: Arrays) -> list[str]:
    if answer.keys() != expected.keys():
        return [f"outputs {sorted(answer)} instead of {sorted(expected)}"]
    problems = []
    for name in expected:
        array, right = np.asarray(answer[name]), np.asarray(expected[name])
        if (array.dtype, array.shape) != (right.dtype, right.shape):
            kinds = [f"{a.dtype}{list(a.shape)}" for a in (array, right)]
            problems.append(f"{name}: {kinds[0]} instead of {kinds[1]}")
        elif array.dtype.kind in "Obiu":
            if (array != right).any():
                problems.append(f"{name}: {array.tolist()} instead of {right.tolist()}")
        else:
            tolerance = 2e-2 if array.dtype.itemsize == 2 else 1e-4
            expected_values = right.astype(np.float64)
            difference = np.abs(array.astype(np.float64) - expected_values)
            if not (difference <= tolerance * (1 + np.abs(expected_values))).all():
                problems.append(f"{name}: differs by {difference.max():.2g}")
    return problems


def write_request(model: str, inputs: Arrays, signature: str = "") -> bytes:
    """Writes a PredictRequest message."""
    spec = bytes_field(ModelSpecField.NAME, model)
    if signature:
        spec += bytes_field(ModelSpecField.SIGNATURE_NAME, signature)
    message = bytes_field(RequestField.MODEL_SPEC, spec)
    for name, array in inputs.items():
        tensor = tf.make_tensor_proto(array).SerializeToString()
        message += bytes_field(RequestField.INPUTS, bytes_field(1, name) + bytes_field(2, tensor))
    return message


def _read_response(response: bytes) -> dict[str, Any]:
    message = ProtoMessage(response, "the response")
    arrays = {}
    for field in message.fields():
        if field.number == _RESPONSE_OUTPUTS:
            name, tensor = message.entry(field, "an output")
            proto = tf.make_tensor_proto(0)
            proto.ParseFromString(tensor.data[tensor.start : tensor.end])
            arrays[name] = tf.make_ndarray(proto)
    return arrays
