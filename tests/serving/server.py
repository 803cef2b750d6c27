"""Starts TensorFlow Serving as `print(saved.serving)` says."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf_bridge.saving import ServingInstructions
from scripts._env import ROOT
from tests.consumers.environments import process_environment

PROGRAM = "TENSORFLOW_MODEL_SERVER"
_SECONDS_TO_START = 120
_SECONDS_TO_STOP = 20


def find_server() -> str | None:
    """Returns the path of TensorFlow Serving; None if this machine has none."""
    return os.environ.get(PROGRAM) or shutil.which("tensorflow_model_server")


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
      python: interpreter of an environment with TensorFlow and gRPC.
      model: name of the model.
      grpc_port, rest_port: where it listens.
    """

    python: Path
    model: str
    grpc_port: int
    rest_port: int

    def predict_by_rest(self, request: Mapping[str, Any]) -> tuple[int, Any]:
        """Sends a request to the REST API, and returns the status and the answer."""
        url = f"http://localhost:{self.rest_port}/v1/models/{self.model}:predict"
        try:
            with urllib.request.urlopen(url, json.dumps(request).encode()) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            with e:
                return e.code, json.load(e)

    def call_by_grpc(
        self, requests: Sequence[Mapping[str, Any]], callers: int, folder: Path
    ) -> dict[str, int]:
        """Sends all requests from each of several callers, and counts the statuses."""
        file = folder / "requests.npz"
        np.savez(file, **{f"{i}/{n}": x for i, r in enumerate(requests) for n, x in r.items()})
        module = "tests.serving.call_server"
        words = [self.python, "-m", module, self.grpc_port, self.model, file, callers]
        done = subprocess.run(
            list(map(str, words)),
            cwd=ROOT,
            env=process_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
        return counts


@contextlib.contextmanager
def serving(
    program: str,
    python: Path,
    instructions: ServingInstructions,
    folder: Path,
    *,
    model: str | None = None,
) -> Iterator[Server]:
    """Runs a server, and stops it at the end.

    Args:
      program: path of the server.
      python: interpreter of an environment with TensorFlow, whose libraries the server may need.
      instructions: what `save` says, but for the ports.
      folder: where the server's log and its batching file are written.
      model: name of the model, if the command does not have it.
    """
    grpc_port, rest_port = _free_ports(2)
    ports = {"--port": grpc_port, "--rest_api_port": rest_port}
    _, *options = instructions.command
    names = [option.partition("=")[0] for option in options]
    words = [f"{n}={ports[n]}" if n in ports else o for n, o in zip(names, options, strict=True)]
    if model is None:
        (model,) = (o.partition("=")[2] for o in options if o.startswith("--model_name="))
    if instructions.batching is not None:
        (folder / instructions.batching_file).write_text(str(instructions.batching))
    libraries = str(next(python.parents[1].glob("lib/python*/site-packages/tensorflow")))
    extra = {**instructions.environment, "LD_LIBRARY_PATH": libraries}
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [program, *words],
            cwd=folder,
            env=process_environment(extra),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_until_available(process, f"http://localhost:{rest_port}/v1/models/{model}", log)
            yield Server(python, model, grpc_port, rest_port)
        finally:
            process.terminate()
            try:
                process.wait(_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_available(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
            if b'"AVAILABLE"' in answer.read():
                return
        time.sleep(0.2)
    raise AssertionError(f"TensorFlow Serving did not start:\n{log.read_text()[-4000:]}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]
