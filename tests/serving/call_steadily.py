"""Calls a server over gRPC from several threads, until a file exists and there were enough calls.

python -m tests.serving.call_steadily PORT MODEL CALLERS CALLS STOP_FILE

Each request is a row of ones for the input `x`. Prints, as JSON, how many calls ended with each
status, and how many answers there were of each value, which is the first number of the only output.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tests.serving.client import RefusedError, connect
from tests.serving.server import Server

_ROW = np.ones((1, 3), np.float32)


def call_until(server: Server, calls: int, stop: Path) -> Iterator[tuple[str, float]]:
    """Sends requests one after another, and yields each status and answer."""
    with connect(server) as predict:
        count = 0
        while count < calls or not stop.exists():
            count += 1
            try:
                (output,) = predict({"x": _ROW}).values()
                yield "OK", float(output.flat[0])
            except RefusedError as e:
                yield str(e), float("nan")


def main(port: str, model: str, callers: str, calls: str, stop: str) -> None:
    """Calls the server."""
    server = Server(model, int(port), 0, Path())
    count = int(callers)
    with ThreadPoolExecutor(count) as pool:
        share = int(calls) // count
        ended = pool.map(lambda _: list(call_until(server, share, Path(stop))), range(count))
        all_calls = [call for each in ended for call in each]
    statuses = collections.Counter(status for status, _ in all_calls)
    answers = collections.Counter(value for status, value in all_calls if status == "OK")
    print(json.dumps({"statuses": statuses, "answers": answers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
