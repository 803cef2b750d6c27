"""Calls a server over gRPC, from many threads at once.

python -m tests.serving.call_server PORT MODEL REQUESTS.npz CALLERS

The file has an array `<number>/<input>` for each input of each request. Every caller sends all
requests. Prints how many calls ended with each status, as JSON.
"""

from __future__ import annotations

import collections
import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.saved_model import ModelSpecField, RequestField, bytes_field

# In the environments that call, which other tests do without.
grpc = importlib.import_module("grpc")

_METHOD = "/tensorflow.serving.PredictionService/Predict"
_SECONDS = 60


def read_requests(path: str, model: str) -> list[bytes]:
    """Reads requests, as PredictRequest messages."""
    messages: dict[str, bytes] = {}
    with np.load(path) as arrays:
        for key, array in arrays.items():
            number, _, name = key.partition("/")
            tensor = tf.make_tensor_proto(array).SerializeToString()
            entry = bytes_field(1, name) + bytes_field(2, tensor)
            spec = bytes_field(ModelSpecField.NAME, model)
            start = bytes_field(RequestField.MODEL_SPEC, spec)
            messages[number] = messages.get(number, start) + bytes_field(RequestField.INPUTS, entry)
    return list(messages.values())


def call_all(port: str, requests: list[bytes]) -> list[str]:
    """Sends requests one after another, and returns their statuses."""
    statuses = []
    # Otherwise all callers of the process share one connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"localhost:{port}", options=options) as channel:
        predict: Any = channel.unary_unary(_METHOD)
        for request in requests:
            try:
                predict(request, timeout=_SECONDS)
                statuses.append("OK")
            except grpc.RpcError as e:
                statuses.append(f"{e.code().name}: {e.details()}")
    return statuses


def main(port: str, model: str, path: str, callers: str) -> None:
    """Calls the server."""
    requests = read_requests(path, model)
    with ThreadPoolExecutor(int(callers)) as pool:
        statuses = list(pool.map(lambda _: call_all(port, requests), range(int(callers))))
    print(json.dumps(collections.Counter(s for each in statuses for s in each)))


if __name__ == "__main__":
    main(*sys.argv[1:])
