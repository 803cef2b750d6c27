"""measure_load(): sends requests to a served model from many callers, and measures the answers."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias
from urllib.parse import quote

import numpy as np

from jax2tf_bridge._utils import as_integer
from jax2tf_bridge.errors import Argument, BridgeError, Message, MissingDependencyError
from jax2tf_bridge.inspecting import read_saved_model
from jax2tf_bridge.saved_model import read_requests, read_tensor_spec
from jax2tf_bridge.serve_checking._tensorflow_environments import (
    Environment,
    ShowStep,
    check_release,
    describe_environment,
    find_environment,
    get_environment_variables,
    show_no_step,
)
from jax2tf_bridge.serve_checking.load import _callers
from jax2tf_bridge.serve_checking.load._report import (
    LoadReport,
    MeasuredAnswers,
    MeasuredRuntime,
    make_report,
)
from jax2tf_bridge.serve_checking.load._requests import (
    Example,
    LoadPlan,
    LoadRequest,
    Sizes,
    plan_load,
)
from jax2tf_bridge.serve_checking.load._servers import (
    METRICS_FILES,
    METRICS_OPTION,
    ServerCommand,
    ServerMetrics,
    find_server,
    read_last_line,
    read_peak_memory,
    start_server,
)
from jax2tf_bridge.storage import as_path, on_disk

if TYPE_CHECKING:
    from jax2tf_bridge.saving import ServingInstructions

Protocol: TypeAlias = Literal["gRPC", "REST"]
"""Protocols of TensorFlow Serving."""

DEFAULT_CALLERS = 8
_MAX_CALLERS = 10_000
DEFAULT_SECONDS = 10.0

_COMPILE_LOG = "device_compilation_profiler=1,device_compiler=1,device_executable_persistor=1"
"""Value of TF_CPP_VMODULE that makes TensorFlow log each program that it compiles or reads."""
_COMPILED = re.compile(r"compiled .* \d+ times?, compile time: (\d+) us", re.IGNORECASE)
# TensorFlow 2.20 logs this line alone; it has none for programs that are read.
_TIMED = re.compile(r"Compilation of XLA executable time: .*?\((\d+) us\)")
_READ = "] Loading cached entry for: "


def measure_load(
    path: str | os.PathLike[str],
    *,
    callers: int = DEFAULT_CALLERS,
    seconds: float = DEFAULT_SECONDS,
    sizes: Sizes | None = None,
    signature: str | None = None,
    example: Example | None = None,
    protocol: Protocol | None = None,
    server: str | os.PathLike[str] | None = None,
    tensorflow: str | None = None,
    python: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> LoadReport:
    """Serves a SavedModel, sends it requests from many callers, and measures the answers.

    TensorFlow Serving is started with the command that `save(...).serving` shows, at other ports.
    On a machine without it, TensorFlow runs the model in a session, in a process of its own. Each
    caller sends a request as soon as the previous one is answered. Callers share the machine with
    the server, so a server on a machine of its own answers more. Needs TensorFlow here.

    Args:
      path: a SavedModel's folder.
      callers: the number of requests that are under way at the same time.
      seconds: the time for which the callers send requests.
      sizes: the sizes of the requests by dimension variable, as `{"b": [1, 1, 1, 8, 20]}`; a
        repeated size is sent more often. By default all sizes up to the largest bucket; without
        buckets, 1 to 32 rows. At most 256 different requests are sent.
      signature: the signature to call; by default "serving_default", or the only one.
      example: values of inputs by name, or several of them, in place of random ones. They are
        repeated or cut to the sizes. If the signature has a `preprocess`, or the bridge did not
        save the model, they are sent unchanged (by default the warm-up requests are); `sizes` of
        the rows repeats or cuts the rows for a `preprocess`.
      protocol: "gRPC" or "REST"; by default gRPC, if grpcio is installed here.
      server: the path of TensorFlow Serving; by default that in the environment variable
        TENSORFLOW_MODEL_SERVER, or on the PATH.
      tensorflow: a TensorFlow release that runs the model instead of a server, as "2.17"; uv or
        pip makes its environment when it is first needed.
      python: an interpreter with TensorFlow that runs the model instead of a server.
      seed: the seed of the values and of the order of the requests.

    Returns:
      The measurements. Printing them shows a table; `plot()` draws the latencies.

    Raises:
      ShapeError: `sizes` or `example` do not fit the signature.
      TargetError: the release is unknown, or `python` has none or another.
      FileFormatError: `path` is not a SavedModel, or is damaged.
      BridgeError: the options contradict each other, nothing says what the inputs look like, or
        the server does not load the model.
      MissingDependencyError: TensorFlow is not installed here.
      FileNotFoundError: there is nothing at `path`.

    In a test::

        report = jax2tf_bridge.measure_load("predict/1", callers=4, seconds=2, sizes={"b": [1, 8]})
        assert report.ok, report
        assert report.compiles == 0
        assert report.p99_ms < 20
    """
    options = LoadOptions(
        callers,
        seconds,
        sizes,
        signature,
        example,
        protocol,
        None if server is None else os.fspath(server),
        tensorflow,
        None if python is None else Path(python),
        seed,
    )
    return run_measure_load(path, options, show_no_step)


@dataclass(frozen=True)
class LoadOptions:
    """Arguments of `measure_load`.

    Raises:
      BridgeError: they contradict each other.
    """

    callers: int = DEFAULT_CALLERS
    seconds: float = DEFAULT_SECONDS
    sizes: Sizes | None = None
    signature: str | None = None
    example: Example | None = None
    protocol: Protocol | None = None
    server: str | None = None
    tensorflow: str | None = None
    python: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        seconds: Any = self.seconds
        is_time = isinstance(seconds, Real) and 0 < float(seconds) < math.inf
        for name, is_valid, expected in (
            (
                "callers",
                1 <= (as_integer(self.callers) or 0) <= _MAX_CALLERS,
                f"an integer from 1 to {_MAX_CALLERS}",
            ),
            ("seconds", is_time, "a finite number of more than 0 seconds"),
            ("protocol", self.protocol in (None, "gRPC", "REST"), "gRPC or REST"),
            ("signature", self.signature is None or isinstance(self.signature, str), "a name"),
            ("sizes", _is_mapping_of(self.sizes, Iterable), "lists by dimension variable"),
            ("example", _is_example(self.example), "values by name, or a list of such mappings"),
        ):
            if not is_valid:
                text = f": expected {expected}. Got: {getattr(self, name)!r}"
                raise BridgeError(Message(Argument(name), text))
        # Plans and reports become JSON, which takes no numbers of NumPy.
        object.__setattr__(self, "callers", int(self.callers))
        object.__setattr__(self, "seconds", float(seconds))
        if not self.uses_tensorflow:
            return
        for name in ("server", "protocol"):
            if getattr(self, name) is not None:
                conflict = "tensorflow" if self.tensorflow is not None else "python"
                raise BridgeError(
                    Message(
                        *(Argument(name), " is for TensorFlow Serving, and "),
                        *(Argument(conflict), " runs the model without it. Remove one of the two."),
                    )
                )

    @property
    def uses_tensorflow(self) -> bool:
        """True if a TensorFlow is named that runs the model instead of a server."""
        return self.tensorflow is not None or self.python is not None


def _is_mapping_of(value: Any, kind: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, Mapping) and all(isinstance(each, kind) for each in value.values())


def _is_example(example: Any) -> bool:
    if isinstance(example, Sequence):
        return all(isinstance(each, Mapping) for each in example)
    return _is_mapping_of(example, object)


def run_measure_load(
    path: str | os.PathLike[str], options: LoadOptions, step: ShowStep
) -> LoadReport:
    """Measures as `measure_load` does, and shows each step."""
    try:
        from jax2tf_bridge.saving import read_instructions
    except MissingDependencyError as e:
        raise MissingDependencyError(e.package, e.extra, "measure_load") from e
    directory = as_path(path)
    with step(f"reading {directory}"):
        contents = read_saved_model(directory)
        instructions = read_instructions(contents, with_config=False)
        plan = plan_load(contents, options.signature, options.sizes, options.example, options.seed)
    program = None if options.uses_tensorflow else options.server or find_server()
    environment = None if program is not None else _find_environment(options, step)
    with on_disk(directory) as model, tempfile.TemporaryDirectory(prefix="jax2tf-bridge-") as name:
        test = _LoadTest(model, instructions, plan, options, Path(name), step)
        if environment is not None:
            runtime, answers = test.measure_tensorflow(environment)
        else:
            assert program is not None
            runtime, answers = test.measure_server(program)
    return make_report(contents.path, plan, options.callers, runtime, answers)


def _find_environment(options: LoadOptions, step: ShowStep) -> Environment:
    if options.tensorflow is not None and options.python is None:
        check_release(options.tensorflow)
        return find_environment(options.tensorflow, step)
    python = Path(sys.executable) if options.python is None else options.python.expanduser()
    return describe_environment(python, options.tensorflow)


@dataclass(frozen=True)
class _LoadTest:
    """Load test of a model on disk; `folder` is a temporary one for its files."""

    model: Path
    instructions: ServingInstructions
    plan: LoadPlan
    options: LoadOptions
    folder: Path
    step: ShowStep

    def measure_server(self, program: str) -> tuple[MeasuredRuntime, MeasuredAnswers]:
        """Calls TensorFlow Serving from several processes."""
        protocol = self._choose_protocol()
        server_folder = self.folder / "server"
        server_folder.mkdir()
        model, command = self._make_server_command(program)
        with contextlib.ExitStack() as stack:
            with self.step(f"starting {program}"):
                server = stack.enter_context(start_server(command, model, server_folder))
            shares = _share_callers(self.options.callers)
            with (self.folder / "requests.bin").open("wb") as file:
                requests = [
                    _append_bytes(file, x) for x in self._encode_requests(protocol, server.model)
                ]
            self._write_plan(
                protocol=protocol,
                callers=shares,
                requests=requests,
                rest_port=server.rest_port,
                grpc_port=server.grpc_port,
                path=f"/v1/models/{quote(server.model)}:predict",
            )
            at_load = server.read_metrics()
            processes = stack.enter_context(
                _start_callers(Path(sys.executable), self.folder, shares, dict(os.environ))
            )
            with self.step(f"calling it for {self.options.seconds:g} seconds"):
                answers = _run_callers(processes, self.folder)
            if (code := server.process.poll()) is not None:
                last = read_last_line(server_folder / "server.log")
                raise BridgeError(f"{program} ended with {code} during the load: {last}")
            metrics = server.read_metrics().since(at_load)
            peak = read_peak_memory(server.process.pid)
        joins = self.instructions.batching is not None
        name = "TensorFlow Serving"
        return MeasuredRuntime(name, program, protocol, at_load, metrics, peak, joins), answers

    def _choose_protocol(self) -> Protocol:
        has_grpc = importlib.util.find_spec("grpc") is not None
        if self.options.protocol == "gRPC" and not has_grpc:
            raise BridgeError(
                Message(
                    *(Argument("protocol", "gRPC"), " needs grpcio: pip install grpcio. Or pass "),
                    *(Argument("protocol", "REST"), "."),
                )
            )
        return self.options.protocol or ("gRPC" if has_grpc else "REST")

    def _encode_requests(self, protocol: Protocol, model: str) -> Iterator[bytes]:
        from jax2tf_bridge.saving import encode_predict_request

        for request in self.plan.requests:
            if protocol == "gRPC":
                yield encode_predict_request(self.plan.signature, request.inputs, model)
            else:
                yield request.encode_json(self.plan.signature)

    def _make_server_command(self, program: str) -> tuple[str, ServerCommand]:
        """Returns the model's name, and the command that serves this version alone, by a link."""
        prefix, path = "--model_name=", "--model_base_path="
        (option,) = (each for each in self.instructions.command if each.startswith(prefix))
        name = option.removeprefix(prefix)
        base = self.folder / "models" / name
        base.mkdir(parents=True)
        version = self.model.name if self.model.name.isdecimal() else "1"
        (base / version).symlink_to(self.model.absolute(), target_is_directory=True)
        options = [each for each in self.instructions.command[1:] if not each.startswith(path)]
        # By default the server tries to load a version for five minutes.
        options += [f"{path}{base}", METRICS_OPTION, "--max_num_load_retries=0"]
        variables = {**os.environ, **self.instructions.environment}
        variables.pop("TF_CPP_MIN_LOG_LEVEL", None)  # the log says why a model is not loaded
        files = dict(METRICS_FILES)
        if self.instructions.batching is not None:
            files[self.instructions.batching_file] = str(self.instructions.batching)
        return name, ServerCommand(program, options, variables, files)

    def measure_tensorflow(
        self, environment: Environment
    ) -> tuple[MeasuredRuntime, MeasuredAnswers]:
        """Calls a session of TensorFlow from threads of its process."""
        with (self.folder / "requests.bin").open("wb") as file:
            self._write_plan(
                protocol="TensorFlow",
                callers=[self.options.callers],
                requests=list(_append_requests(file, self.plan.requests)),
                warm_up=list(_append_warm_up(file, self.model)),
                saved_model=str(self.model.absolute()),
                signature=self.plan.signature,
                folder=str(self.folder),
            )
        is_other = environment.python != Path(sys.executable)
        variables = {
            **get_environment_variables(is_other=is_other),
            **self.instructions.environment,
            "TF_CPP_MIN_LOG_LEVEL": "0",
            "TF_CPP_VMODULE": _COMPILE_LOG,
        }
        with contextlib.ExitStack() as stack:
            with self.step(f"loading it in TensorFlow {environment.tensorflow}"):
                processes = stack.enter_context(
                    _start_callers(
                        environment.python, self.folder, [self.options.callers], variables
                    )
                )
            at_load = _count_compiles(self.folder)
            with self.step(f"calling it for {self.options.seconds:g} seconds"):
                answers = _run_callers(processes, self.folder)
            metrics = _count_compiles(self.folder).since(at_load)
            peak = read_peak_memory(processes[0].pid)
        release = json.loads((self.folder / "runtime.json").read_text())["tensorflow"]
        name, program = f"TensorFlow {release}", str(environment.python)
        return MeasuredRuntime(name, program, None, at_load, metrics, peak), answers

    def _write_plan(self, **plan: Any) -> None:
        plan |= {"seconds": self.options.seconds, "seed": self.options.seed}
        (self.folder / "plan.json").write_text(json.dumps(plan))


def _append_requests(
    file: BinaryIO, requests: Iterable[LoadRequest]
) -> Iterator[dict[str, tuple[str, int, int]]]:
    """Appends the inputs as TensorProtos; yields the dtype, begin and end of each."""
    import tensorflow as tf

    from jax2tf_bridge.saving import encode_tensor

    for request in requests:
        yield {
            name: (tf.as_dtype(array.dtype).name, *_append_bytes(file, encode_tensor(array)))
            for name, array in request.inputs.items()
        }


def _append_warm_up(
    file: BinaryIO, model: Path
) -> Iterator[tuple[str, dict[str, tuple[str, int, int]]]]:
    for request in read_requests(model):
        yield (
            request.signature,
            {
                name: (
                    read_tensor_spec(message).dtype,
                    *_append_bytes(file, message.data[message.start : message.end]),
                )
                for name, message in request.inputs.items()
            },
        )


def _count_compiles(folder: Path) -> ServerMetrics:
    """Counts the programs that XLA compiled, by the log of the process."""
    text = (folder / "callers-0.log").read_text(errors="replace")
    times, read = _COMPILED.findall(text), text.count(_READ)
    timed = _TIMED.findall(text)
    if len(timed) > len(times) - read:
        return ServerMetrics(len(timed), sum(map(int, timed)) / 1e6, read)
    return ServerMetrics(len(times) - read, sum(map(int, times)) / 1e6, read)


def _append_bytes(file: BinaryIO, content: bytes | memoryview) -> tuple[int, int]:
    """Appends to a file, and returns the begin and the end."""
    begin = file.tell()
    file.write(content)
    return begin, file.tell()


def _share_callers(callers: int) -> list[int]:
    """Distributes callers over as many processes as there are cores.

    Threads of one process wait for each other, and more processes take time from the server.
    """
    count = min(callers, os.cpu_count() or 1)
    return [callers // count + (number < callers % count) for number in range(count)]


_Process: TypeAlias = "subprocess.Popen[str]"


@contextlib.contextmanager
def _start_callers(
    python: Path, folder: Path, shares: Sequence[int], variables: Mapping[str, str]
) -> Iterator[list[_Process]]:
    """Starts processes with callers, which are ready to call; kills them at the end.

    Raises:
      BridgeError: one of them ends.
    """
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(len(shares)):
            log = stack.enter_context((folder / f"callers-{number}.log").open("wb"))
            process = subprocess.Popen(
                [str(python), str(_callers.__file__), str(folder), str(number)],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            stack.callback(_end_process, process)
            processes.append(process)
        for number, process in enumerate(processes):
            _expect_word(process, "ready", folder / f"callers-{number}.log")
        yield processes


def _end_process(process: _Process) -> None:
    process.kill()
    process.communicate()


def _run_callers(processes: Sequence[_Process], folder: Path) -> MeasuredAnswers:
    """Lets the callers call; the processes stay, so that their memory can be read.

    Raises:
      BridgeError: a process ends early.
    """
    for process in processes:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a process that ended is reported below
            process.stdin.write("go\n")
            process.stdin.flush()
    parts = []
    failures: Counter[str] = Counter()
    for number, process in enumerate(processes):
        _expect_word(process, "done", folder / f"callers-{number}.log")
        parts.append(np.fromfile(folder / f"calls-{number}.bin", np.float64).reshape(-1, 3))
        for each in json.loads((folder / f"failures-{number}.json").read_text()):
            failures.update(each)
    requests, begins, seconds = np.concatenate(parts).T
    return MeasuredAnswers(requests, begins, seconds, dict(failures.most_common()))


def _expect_word(process: _Process, word: str, log: Path) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line.strip() != word:
        process.kill()
        process.wait()
        raise BridgeError(f"The model cannot be called: {read_last_line(log)}")
