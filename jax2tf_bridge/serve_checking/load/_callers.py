"""Callers of a load test: threads that send requests, one after another, and time the answers.

Runs by its path in environments without the bridge, from Python 3.9 on:
`python _callers.py FOLDER NUMBER`. FOLDER has plan.json and requests.bin. Prints "ready", waits
for a line, calls, writes calls-NUMBER.bin and failures-NUMBER.json, prints "done", and waits for
the end of its input, so that the other process can read how much memory this one took.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import mmap
import os
import random
import sys
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

Call = Callable[[int], "str | None"]
"""Function that sends a request by its number, and returns the error, or None."""

_SECONDS_TO_ANSWER = 600
_PAUSE = 0.05
"""Seconds that a caller waits after a failed request, so that it does not fail in a tight loop."""


def main(folder: str, number: int) -> None:
    """Carries out the plan, as the caller process of this number."""
    # Python adds the folder of this file to the path, but its modules are not top-level.
    own_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != own_folder]
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    with open(os.path.join(folder, "requests.bin"), "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    callers: int = plan["callers"][number]
    make = {
        "gRPC": _make_grpc_calls,
        "REST": _make_rest_calls,
        "TensorFlow": _make_tensorflow_calls,
    }
    calls = make[plan["protocol"]](plan, data, callers)
    _say("ready")
    sys.stdin.readline()
    records = [array("d") for _ in calls]
    failures: list[dict[str, int]] = [{} for _ in calls]
    threads = [
        threading.Thread(
            target=_call_repeatedly,
            args=(call, plan, f"{number}/{i}", records[i], failures[i]),
            daemon=True,
        )
        for i, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open(os.path.join(folder, f"calls-{number}.bin"), "wb") as file:
        for each in records:
            each.tofile(file)
    with open(os.path.join(folder, f"failures-{number}.json"), "w", encoding="utf-8") as text_file:
        json.dump(failures, text_file)
    _say("done")
    sys.stdin.read()


def _say(text: str) -> None:
    print(text, flush=True)


def _call_repeatedly(
    call: Call, plan: Any, seed: str, records: array[float], failures: dict[str, int]
) -> None:
    """Sends all requests in random order, again and again, until the time is over.

    Appends the number, the begin and the seconds of each answered request to `records`, and counts
    failed ones by their error in `failures`.
    """
    order = list(range(len(plan["requests"])))
    shuffle = random.Random(seed).shuffle
    end = time.monotonic() + plan["seconds"]
    while True:
        shuffle(order)
        for number in order:
            begin = time.monotonic()
            if begin >= end:
                return
            error = call(number)
            if error is None:
                records.extend((number, begin, time.monotonic() - begin))
            else:
                failures[error] = failures.get(error, 0) + 1
                time.sleep(_PAUSE)


def _make_rest_calls(plan: Any, data: Any, count: int) -> list[Call]:
    bodies = [data[start:end] for start, end in plan["requests"]]
    return [_RestCaller(plan, bodies) for _ in range(count)]


class _RestCaller:
    """Caller with a connection of its own, which is kept open."""

    def __init__(self, plan: Any, bodies: list[bytes]) -> None:
        self._connection = http.client.HTTPConnection(
            "localhost", plan["rest_port"], timeout=_SECONDS_TO_ANSWER
        )
        self._path, self._bodies = plan["path"], bodies

    def __call__(self, number: int) -> str | None:
        try:
            self._connection.request(
                "POST", self._path, self._bodies[number], {"Content-Type": "application/json"}
            )
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as e:
            self._connection.close()  # the next request connects again
            return f"{type(e).__name__}: {e}"
        if answer.status == 200:
            return None
        text = content.decode(errors="replace")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = str(json.loads(text)["error"])
        return f"{answer.status}: {_find_first_line(text)}"


def _make_grpc_calls(plan: Any, data: Any, count: int) -> list[Call]:
    # TensorFlow brings it along; it has no types.
    grpc = importlib.import_module("grpc")

    def make() -> Call:
        options = [
            ("grpc.use_local_subchannel_pool", 1),  # a connection for each caller
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        channel = grpc.insecure_channel(f"localhost:{plan['grpc_port']}", options=options)
        predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")

        def call(number: int) -> str | None:
            try:
                predict(requests[number], timeout=_SECONDS_TO_ANSWER)
            except grpc.RpcError as e:
                return f"{e.code().name}: {_find_first_line(e.details())}"
            return None

        return call

    requests = [data[start:end] for start, end in plan["requests"]]
    return [make() for _ in range(count)]


def _make_tensorflow_calls(plan: Any, data: Any, count: int) -> list[Call]:
    """Loads the model into a session, as TensorFlow Serving does, and replays the warm-up file."""
    import tensorflow as tf

    def read(inputs: dict[str, tuple[str, int, int]]) -> dict[str, Any]:
        return {
            name: tf.io.parse_tensor(data[start:end], tf.as_dtype(dtype)).numpy()
            for name, (dtype, start, end) in inputs.items()
        }

    requests = [read(inputs) for inputs in plan["requests"]]
    warm_up = [(name, read(inputs)) for name, inputs in plan["warm_up"]]
    v1 = tf.compat.v1
    session = v1.Session(graph=tf.Graph())
    signatures = v1.saved_model.load(session, ["serve"], plan["saved_model"]).signature_def

    def make(name: str) -> tuple[list[str], Callable[..., Any]]:
        signature = signatures[name]
        names = sorted(signature.inputs)
        fetches = [output.name for output in signature.outputs.values()]
        return names, session.make_callable(fetches, [signature.inputs[n].name for n in names])

    for name, inputs in warm_up:
        names, run = make(name)
        run(*(inputs[n] for n in names))
    names, run = make(plan["signature"])
    arguments = [[inputs[n] for n in names] for inputs in requests]
    with open(os.path.join(plan["folder"], "runtime.json"), "w", encoding="utf-8") as file:
        json.dump({"tensorflow": tf.__version__}, file)

    def call(number: int) -> str | None:
        try:
            run(*arguments[number])
        except Exception as e:
            return f"{type(e).__name__}: {_find_first_line(getattr(e, 'message', str(e)))}"
        return None

    return [call] * count


def _find_first_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines()]
    headings = ("Graph execution error:", "Detected at node", "2 root error(s) found.")
    lines = [line for line in lines if line and not line.startswith(headings)]
    return lines[0][:500] if lines else "no text"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
