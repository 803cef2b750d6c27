"""Calls a server over gRPC from several threads, until a file exists and there were enough calls.

python -m tests.serving.call_steadily PORT MODEL CALLERS CALLS STOP_FILE

Each request is a row of ones for the input `x`. Prints, as JSON, how many calls ended with each
status, and how many answers there were of each value, which is the first number of the only output.
"""

from __future__ import annotations

import collections
import importlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.saved_model import (
    ModelSpecField,
    ProtoMessage,
    RequestField,
    bytes_field,
)

# In the environments that call, which other tests do without.
grpc = importlib.import_module("grpc")

_METHOD = "/tensorflow.serving.PredictionService/Predict"
_SECONDS = 60
_OUTPUTS = 1  # the field of PredictResponse


def make_request(model: str) -> bytes:
    """Makes a PredictRequest message with one row of three ones."""
    tensor = tf.make_tensor_proto(np.ones((1, 3), np.float32)).SerializeToString()
    entry = bytes_field(1, "x") + bytes_field(2, tensor)
    spec = bytes_field(RequestField.MODEL_SPEC, bytes_field(ModelSpecField.NAME, model))
    return spec + bytes_field(RequestField.INPUTS, entry)


def read_answer(response: bytes) -> float:
    """Returns the first number of the only output of a PredictResponse message."""
    (output,) = ProtoMessage(response, "the answer").messages(_OUTPUTS, "an output")
    (tensor,) = output.messages(2, "a tensor")
    proto = tf.make_tensor_proto(0.0)
    proto.ParseFromString(bytes(tensor.data[tensor.start : tensor.end]))
    return float(tf.make_ndarray(proto).flat[0])


def call_until(port: str, request: bytes, calls: int, stop: Path) -> Iterator[tuple[str, float]]:
    """Sends requests one after another, and yields each status and answer."""
    # Otherwise all callers of the process share one connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"localhost:{port}", options=options) as channel:
        predict: Any = channel.unary_unary(_METHOD)
        count = 0
        while count < calls or not stop.exists():
            count += 1
            try:
                yield "OK", read_answer(predict(request, timeout=_SECONDS))
            except grpc.RpcError as e:
                yield f"{e.code().name}: {e.details()}", float("nan")


def main(port: str, model: str, callers: str, calls: str, stop: str) -> None:
    """Calls the server."""
    request, share = make_request(model), int(calls) // int(callers)
    with ThreadPoolExecutor(int(callers)) as pool:
        ended = list(
            pool.map(
                lambda _: list(call_until(port, request, share, Path(stop))), range(int(callers))
            )
        )
    calls_of_all = [call for each in ended for call in each]
    statuses = collections.Counter(status for status, _ in calls_of_all)
    answers = collections.Counter(value for status, value in calls_of_all if status == "OK")
    print(json.dumps({"statuses": statuses, "answers": answers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
