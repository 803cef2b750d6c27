"""Time until a second TensorFlow Serving is available, and its first answers.

Needs TensorFlow Serving: its program on the PATH, or named by TENSORFLOW_MODEL_SERVER.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import _measure
from benchmarks._models import MODELS
from jax2tf_bridge import Target, export, write_function
from jax2tf_bridge.saved_model import WARM_UP
from jax2tf_bridge.serve_checking import (
    SERVER_VARIABLE,
    ServerCommand,
    find_server,
    start_server,
)
from jax2tf_bridge.weights import write_weights
from tests.consumers.environments import process_environment
from tests.consumers.harness import Harness
from tests.serving.client import write_request

# TensorFlow brings it along.
grpc = importlib.import_module("grpc")

_RELEASE = "2.19"
_PATCH = "2.19.1"
"""TensorFlow's release, which must be the server's: programs are compiled for one."""

_MODELS = ("MLP", "transformer")
_SIZES = (1, 8)
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_WARM_REQUESTS = 20
_WARM_CONNECTIONS = 3
_SECONDS_TO_CONNECT = 120
_SECONDS_TO_POLL = 0.005
"""Seconds between two questions whether the model is loaded: the error of the measured time."""


@dataclass(frozen=True)
class Contestant:
    """A way to save a model.

    Attributes:
      name: its name in the table.
      options: the options of `jax2tf-bridge save`.
      xla: whether XLA compiles the model.
      warm_up: whether the model keeps its warm-up requests.
    """

    name: str
    options: Sequence[str] = ()
    xla: bool = True
    warm_up: bool = True

    @property
    def is_precompiled(self) -> bool:
        return "--precompile" in self.options


_BUCKETS = ("--buckets", "b=1,8")
_CONTESTANTS = (
    Contestant("XLA, no warm-up", warm_up=False),
    Contestant("XLA, buckets", _BUCKETS),
    Contestant("XLA, buckets, precompiled", (*_BUCKETS, "--precompile")),
    Contestant("without XLA, no warm-up", xla=False, warm_up=False),
    Contestant("without XLA", xla=False),
    Contestant("without XLA, buckets", _BUCKETS, xla=False),
)


def save_models(name: str, folder: Path, python: Path) -> dict[Contestant, Path]:
    """Saves a model in each way, with the server's TensorFlow; returns the folders of versions."""
    model = MODELS[name]()
    weights = folder / "weights.msgpack"
    write_weights(weights, model.weights)
    functions = {}
    for xla in (True, False):
        functions[xla] = folder / f"xla-{xla}.jaxfn"
        shapes = [None, model.polymorphic_shape]
        target = Target.tensorflow(_RELEASE, xla=xla)
        portable = export(model.apply, polymorphic_shapes=shapes, target=target)(
            model.weights, model.inputs(2)
        )
        write_function(functions[xla], portable, vjp_order=0)
    paths = {}
    for number, contestant in enumerate(_CONTESTANTS):
        paths[contestant] = folder / str(number) / "model"
        version = paths[contestant] / "1"
        words = ["save", functions[contestant.xla], "--params", weights, "-o", version]
        _run(python, "-m", "jax2tf_bridge", *words, *contestant.options)
        if not contestant.warm_up:
            (version / WARM_UP).unlink(missing_ok=True)
    return paths


def _run(*words: Any) -> None:
    environment = process_environment({"PYTHONPATH": os.getcwd(), "TF_CPP_MIN_LOG_LEVEL": "3"})
    command = list(map(str, words))
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if process.returncode != 0:
        raise RuntimeError(process.stderr[-2000:])


@dataclass(frozen=True)
class Start:
    """A started server.

    Attributes:
      pid: the number of its process.
      port: the port of its gRPC API.
      seconds: the time until the model was available.
      cpu_seconds: the CPU time until then.
    """

    pid: int
    port: int
    seconds: float
    cpu_seconds: float


@contextlib.contextmanager
def start(program: str, python: Path, model: Path, *, precompiled: bool) -> Iterator[Start]:
    """Starts a server with a model, and stops it at the end."""
    libraries = next(python.parents[1].glob("lib/python*/site-packages/tensorflow"))
    variables = {"LD_LIBRARY_PATH": str(libraries)}
    if precompiled:
        variables["TF_XLA_FLAGS"] = (
            f"--tf_xla_persistent_cache_directory={model / 'xla_cache'} "
            "--tf_xla_persistent_cache_read_only=true"
        )
    options = (
        f"--model_name={model.name}",
        f"--model_base_path={model}",
        "--xla_cpu_compilation_enabled=true",
    )
    command = ServerCommand(program, options, process_environment(variables))
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        with start_server(
            command, model.name, Path(folder), seconds_to_poll=_SECONDS_TO_POLL
        ) as server:
            seconds = time.perf_counter() - begin
            pid = server.process.pid
            yield Start(pid, server.grpc_port, seconds, _read_cpu_seconds(pid))


def _read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_thread_seconds(pid: int) -> float:
    """Returns the CPU time of the running threads, which is more precise than the process'."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


@dataclass(frozen=True)
class Answer:
    """The seconds that a request took, and the server's CPU seconds."""

    seconds: float
    cpu_seconds: float


def time_requests(server: Start, request: bytes, count: int) -> list[Answer]:
    """Sends a request several times over a new connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    answers = []
    with grpc.insecure_channel(f"localhost:{server.port}", options=options) as channel:
        grpc.channel_ready_future(channel).result(timeout=_SECONDS_TO_CONNECT)
        predict = channel.unary_unary(_PREDICT)
        for _ in range(count):
            cpu_start, start = _read_thread_seconds(server.pid), time.perf_counter()
            predict(request, timeout=_SECONDS_TO_CONNECT)
            seconds = time.perf_counter() - start
            answers.append(Answer(seconds, _read_thread_seconds(server.pid) - cpu_start))
    return answers


def measure_start(
    program: str, python: Path, model: Path, requests: Sequence[bytes], *, precompiled: bool
) -> dict[str, float]:
    """Measures a new server: its start, and for each size the first and later answers."""
    with start(program, python, model, precompiled=precompiled) as server:
        figures = {"start": server.seconds, "start, CPU": server.cpu_seconds}
        first = [time_requests(server, request, _WARM_REQUESTS)[0] for request in requests]
        for size, request, answer in zip(_SIZES, requests, first, strict=True):
            # A new connection costs a warm server time as well, so a cold one is compared with it.
            warm = [time_requests(server, request, 3)[0] for _ in range(_WARM_CONNECTIONS)]
            figures[f"first of {size}"] = answer.seconds
            figures[f"warm of {size}"] = statistics.median(a.seconds for a in warm)
            figures[f"first of {size}, CPU"] = answer.cpu_seconds
            figures[f"warm of {size}, CPU"] = statistics.median(a.cpu_seconds for a in warm)
    return figures


def make_requests(name: str) -> list[bytes]:
    """Makes a request of each size, as PredictRequest messages."""
    model = MODELS[name]()
    return [write_request("model", {"x": model.inputs(size)}) for size in _SIZES]


def report(results: dict[tuple[str, str], list[dict[str, float]]], json_path: Path | None) -> None:
    """Prints a row for each model and way to save it."""
    rows, measured = [], []
    for (name, who), rounds in results.items():
        row: dict[str, Any] = {"model": name, "who": who}
        texts = []
        for key in ("start", "start, CPU"):
            row[key] = _measure.Spread.of([figures[key] for figures in rounds])
            texts.append(_measure.seconds_text(row[key].median))
        for size in _SIZES:
            for kind in ("first", "warm"):
                key = f"{kind} of {size}"
                row[key] = _measure.Spread.of([figures[key] for figures in rounds])
                texts.append(_measure.seconds_text(row[key].median))
            for suffix in ("", ", CPU"):
                ratios = [
                    f[f"first of {size}{suffix}"] / f[f"warm of {size}{suffix}"] for f in rounds
                ]
                row[f"first to warm of {size}{suffix}"] = _measure.Spread.of(ratios, is_ratio=True)
                texts.append(row[f"first to warm of {size}{suffix}"].ratio_text())
        rows.append([name, who, *texts])
        measured.append(row)
    header = ["model", "saved", "until available", "CPU time"]
    for size in _SIZES:
        header += [f"first answer of {size}", "warm", "x warm", "CPU time, x"]
    _measure.report(
        "A cold start of TensorFlow Serving",
        header,
        rows,
        measured,
        json_path=json_path,
        notes=[f"TensorFlow Serving {_PATCH}, and models saved with TensorFlow {_PATCH}."],
    )


def main() -> None:
    """Measures and prints a table."""
    parser = _measure.make_parser(__doc__, rounds=9)
    parser.add_argument("--models", nargs="+", default=list(_MODELS), choices=list(MODELS))
    options = parser.parse_args()
    program = find_server()
    if program is None:
        _measure.print_progress(
            f"skipped: there is no TensorFlow Serving: {SERVER_VARIABLE} names none, nor does the "
            "PATH"
        )
        return
    with tempfile.TemporaryDirectory() as temporary:
        harness = Harness(Path(temporary), lambda text: print(text, file=sys.stderr))
        python = harness.consumer_python(_PATCH)
        results: dict[tuple[str, str], list[dict[str, float]]] = {}
        for name in options.models:
            folder = Path(temporary) / name
            folder.mkdir()
            _measure.print_progress(f"{name}, saved")
            paths, requests = save_models(name, folder, python), make_requests(name)
            order = list(_CONTESTANTS)
            for number in range(options.rounds):
                _measure.print_progress(f"{name}, round {number + 1} of {options.rounds}")
                random.Random(number).shuffle(order)
                for who in order:
                    figures = measure_start(
                        program, python, paths[who], requests, precompiled=who.is_precompiled
                    )
                    results.setdefault((name, who.name), []).append(figures)
        ordered = {
            (name, who.name): results[name, who.name]
            for name in options.models
            for who in _CONTESTANTS
        }
    report(ordered, options.json)


if __name__ == "__main__":
    main()
