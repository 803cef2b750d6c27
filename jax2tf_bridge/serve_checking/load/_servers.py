"""Starts TensorFlow Serving, and reads its metrics."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from jax2tf_bridge._utils import one_line
from jax2tf_bridge.errors import BridgeError

SERVER_VARIABLE = "TENSORFLOW_MODEL_SERVER"
"""Environment variable with the path of TensorFlow Serving."""

_PROGRAM = "tensorflow_model_server"
_SECONDS_TO_STOP = 20
_METRICS_PATH = "/metrics"
_SAMPLE = re.compile(r"([\w:]+)\{(.*?)\} (\S+)")
"""Line of a sample in Prometheus' text format."""
_BATCH_SIZE = re.compile(r'execution_batch_size="(\d+)"')


def find_server() -> str | None:
    """Returns the path of TensorFlow Serving; None if this machine has none."""
    return os.environ.get(SERVER_VARIABLE) or shutil.which(_PROGRAM)


@dataclass(frozen=True)
class BatchCount:
    """Batches of one size that a server ran.

    Attributes:
      size: the number of rows, with padding.
      batches: the number of batches.
      padding: the number of rows of padding in all of them.
    """

    size: int
    batches: int
    padding: int


@dataclass(frozen=True)
class ServerMetrics:
    """Numbers that a server has counted since it started.

    Attributes:
      compiles: the number of programs that XLA compiled.
      compile_seconds: the time for compiling programs and for reading compiled ones.
      programs_read: the number of programs that were read from XLA's compile cache.
      batches: the batches by size, increasing; empty if requests are not joined.
    """

    compiles: int
    compile_seconds: float
    programs_read: int = 0
    batches: tuple[BatchCount, ...] = ()

    def since(self, earlier: ServerMetrics) -> ServerMetrics:
        """Returns what was counted after `earlier`."""
        earlier_batches = {each.size: each for each in earlier.batches}
        zero = BatchCount(0, 0, 0)
        batches = (
            BatchCount(
                each.size,
                each.batches - earlier_batches.get(each.size, zero).batches,
                each.padding - earlier_batches.get(each.size, zero).padding,
            )
            for each in self.batches
        )
        return ServerMetrics(
            self.compiles - earlier.compiles,
            self.compile_seconds - earlier.compile_seconds,
            self.programs_read - earlier.programs_read,
            tuple(each for each in batches if each.batches),
        )


def parse_metrics(text: str) -> ServerMetrics:
    """Parses the metrics of TensorFlow Serving in Prometheus' text format.

    >>> parse_metrics(":tensorflow:core:xla_compilations{} 3").compiles
    3
    """
    samples: dict[str, dict[str, float]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        samples.setdefault(name.rpartition(":tensorflow:")[2], {})[labels] = float(value)
    counts = samples.get("serving:batching_session:padding_size_count", {})
    sums = samples.get("serving:batching_session:padding_size_sum", {})
    batches = [
        BatchCount(int(size[1]), int(count), round(sums.get(labels, 0)))
        for labels, count in counts.items()
        if (size := _BATCH_SIZE.search(labels))
    ]
    compiles, microseconds, read = (
        sum(samples.get(f"core:{name}", {}).values())
        for name in (
            "xla_compilations",
            "xla_compilation_time_usecs",
            "persistent_cache_load_count",
        )
    )
    return ServerMetrics(
        int(compiles - read),  # TensorFlow counts programs that it reads as compiled
        microseconds / 1e6,
        int(read),
        tuple(sorted(batches, key=lambda each: each.size)),
    )


METRICS_OPTION = "--monitoring_config_file=monitoring.txt"
"""Option of a server that enables the metrics for `RunningServer.read_metrics`."""

METRICS_FILES = {
    "monitoring.txt": f'prometheus_config {{ enable: true path: "{_METRICS_PATH}" }}\n'
}
"""Content, by name, of the file that METRICS_OPTION names."""


@dataclass(frozen=True)
class RunningServer:
    """TensorFlow Serving with a loaded model.

    Attributes:
      model: the name of the model.
      grpc_port, rest_port: where it listens.
      process: the process.
    """

    model: str
    grpc_port: int
    rest_port: int
    process: subprocess.Popen[bytes]

    def read_metrics(self) -> ServerMetrics:
        """Reads the numbers that the server has counted so far.

        Raises:
          OSError: the server does not answer.
        """
        return parse_metrics(self._get(_METRICS_PATH).decode())

    def read_states(self) -> list[tuple[str, str]]:
        """Reads the state of each version of the model, and its error message.

        The list is empty while the server does not know the model.

        Raises:
          OSError: the server does not answer.
        """
        answer = json.loads(self._get(f"/v1/models/{quote(self.model)}"))
        versions = answer.get("model_version_status", ())
        return [(version["state"], version["status"]["error_message"]) for version in versions]

    def _get(self, path: str) -> bytes:
        # Unlike urllib.request, this ignores the settings for proxies.
        connection = http.client.HTTPConnection("localhost", self.rest_port)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read()


@dataclass(frozen=True)
class ServerCommand:
    """Command that runs TensorFlow Serving.

    Attributes:
      program: the path of the server.
      options: its options; the ports among them are replaced by free ones.
      environment: the environment variables of its process.
      files: the content of each file that the options name, by its path below the working folder.
    """

    program: str
    options: Sequence[str]
    environment: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def start_server(
    command: ServerCommand,
    model: str,
    folder: Path,
    *,
    seconds_to_load: float = 600,
    seconds_to_poll: float = 0.1,
) -> Iterator[RunningServer]:
    """Runs TensorFlow Serving at free ports, and stops it at the end.

    Yields once a version of the model is loaded.

    Args:
      command: the command.
      model: the name of the model.
      folder: the working folder of the server, which also gets its log, server.log.
      seconds_to_load: the time to wait for the model.
      seconds_to_poll: the time between two questions whether it is loaded.

    Raises:
      BridgeError: the server does not start, or does not load the model.
    """
    grpc_port, rest_port = find_free_ports(2)
    ports = {"--port": grpc_port, "--rest_api_port": rest_port}
    options = [each for each in command.options if each.partition("=")[0] not in ports]
    options += [f"{name}={port}" for name, port in ports.items()]
    for path, content in command.files.items():
        (folder / path).write_text(content)
    # It runs in another folder, where a relative path would name another file.
    executable = os.path.abspath(shutil.which(command.program) or command.program)
    log = folder / "server.log"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                [executable, *options],
                cwd=folder,
                env=command.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as e:
            raise BridgeError(f"{command.program} cannot be started: {e.strerror}.") from e
        try:
            server = RunningServer(model, grpc_port, rest_port, process)
            end = time.monotonic() + seconds_to_load
            while not _is_loaded(server, command.program, log):
                if time.monotonic() > end:
                    raise BridgeError(
                        f"{command.program} has not loaded the model after {seconds_to_load:g} "
                        "seconds."
                    )
                time.sleep(seconds_to_poll)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_loaded(server: RunningServer, program: str, log: Path) -> bool:
    """Returns whether a version is loaded.

    Raises:
      BridgeError: the server ended, or gave up all versions.
    """
    if server.process.poll() is not None:
        raise BridgeError(
            f"{program} ended with {server.process.returncode} before it had loaded the model: "
            f"{read_last_line(log)}"
        )
    states: list[tuple[str, str]] = []
    with contextlib.suppress(ConnectionError):
        states = server.read_states()
    if any(state == "AVAILABLE" for state, _ in states):
        return True
    if states and all(state == "END" for state, _ in states):
        raise BridgeError(f"{program} does not load the model: {one_line(states[0][1])}")
    return False


def read_last_line(log: Path) -> str:
    """Reads the last line that a process printed, for messages."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return one_line(lines[-1]) if lines else "it printed nothing"


def find_free_ports(count: int) -> list[int]:
    """Returns the numbers of ports of this machine that are free."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]


def read_peak_memory(process_id: int) -> int | None:
    """Returns the largest resident memory of a process in bytes; None where there is no /proc."""
    try:
        status = Path("/proc", str(process_id), "status").read_text()
    except OSError:
        return None
    match = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return None if match is None else int(match[1]) * 1024
