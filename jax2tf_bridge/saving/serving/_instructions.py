"""Instructions for TensorFlow Serving: the command, and the file for its batching."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jax2tf_bridge.portable import variables_in
from jax2tf_bridge.saving.buckets import Bucketing, is_plain
from jax2tf_bridge.saving.serving._precompile import CompileCache
from jax2tf_bridge.saving.serving._shared_programs import served_cache
from jax2tf_bridge.saving.signatures import Endpoint, ServedArray, Sides
from jax2tf_bridge.storage import AnyPath, as_path

BATCHING_FILE = "batching_parameters.txt"

_TIMEOUT_MICROSECONDS = 0
"""TensorFlow Serving's guide begins with 0, and then tries 1000 to 10000."""

MIN_GRPC_THREADS = 256
"""Minimum number of gRPC requests that may run or wait at once. A waiting request costs a thread.

TensorFlow Serving's default of 4 for each core refuses requests of 32 callers on a small machine.
"""

_THREADS_PER_CORE = 4
"""TensorFlow Serving's default for --grpc_max_threads and --rest_api_num_threads."""


@dataclass(frozen=True)
class BatchingParameters:
    """Parameters by which TensorFlow Serving joins requests; prints as its file's text.

    Attributes:
      allowed_batch_sizes: to which joined requests are padded, increasing.
      num_batch_threads: how many batches run at the same time.
      max_enqueued_batches: how many batches may wait; TensorFlow Serving refuses what does not fit.
      batch_timeout_micros: how long a request may wait for others.
      pad_variable_length_inputs: whether requests of different lengths may be joined.
    """

    allowed_batch_sizes: tuple[int, ...]
    num_batch_threads: int
    max_enqueued_batches: int
    batch_timeout_micros: int = _TIMEOUT_MICROSECONDS
    pad_variable_length_inputs: bool = False

    def __str__(self) -> str:
        lines = [
            f"max_batch_size {{ value: {self.allowed_batch_sizes[-1]} }}",
            *(f"allowed_batch_sizes: {size}" for size in self.allowed_batch_sizes),
            f"batch_timeout_micros {{ value: {self.batch_timeout_micros} }}",
            f"num_batch_threads {{ value: {self.num_batch_threads} }}",
            f"max_enqueued_batches {{ value: {self.max_enqueued_batches} }}",
        ]
        if self.pad_variable_length_inputs:
            lines.append("pad_variable_length_inputs: true")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class ServingInstructions:
    """Instructions to serve a model; prints as text for people.

    Attributes:
      command: the command line, in words.
      environment: the variables that it is started with.
      batching: what to write into `batching_file`, where requests may be joined.
      batching_file: where the command looks for it.
      notes: what to know beside.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    batching: BatchingParameters | None = None
    batching_file: str = BATCHING_FILE
    notes: tuple[str, ...] = ()

    def command_line(self) -> str:
        """Writes the command for a shell, with the variables in front."""
        variables = (f"{name}={shlex.quote(value)}" for name, value in self.environment.items())
        program, *options = map(shlex.quote, self.command)
        return " \\\n    ".join([" ".join([*variables, program]), *options])

    def __str__(self) -> str:
        parts = [f"Start TensorFlow Serving with\n\n{_indented(self.command_line())}"]
        if self.batching is not None:
            text = _indented(str(self.batching).rstrip())
            parts.append(f"after writing to {self.batching_file}\n\n{text}")
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class ServedSignature:
    """A saved signature as requests meet it.

    Attributes:
      name: under which requests ask for it.
      inputs: what requests hold, by name.
      outputs: what answers hold, by name.
      bucketing: its buckets; None without any.
      is_preprocessed: whether the user's own TensorFlow takes the inputs.
      is_postprocessed: whether the user's own TensorFlow gives the outputs.
    """

    name: str
    inputs: Mapping[str, ServedArray]
    outputs: Mapping[str, ServedArray]
    bucketing: Bucketing | None
    is_preprocessed: bool = False
    is_postprocessed: bool = False

    def obstacle(self) -> str | None:
        """Finds the reason why its requests cannot be joined; None where they can."""
        if self.bucketing is None:
            return "it has no buckets"
        batch = _batch_variable(self.bucketing)
        if batch is None:
            return _obstacle_to_rows(self.bucketing)
        if self.bucketing.is_masked(batch):
            return "a mask says which rows are real, so rows may influence each other"
        if batch in self.bucketing.unchecked:
            return (
                f"unchecked_padding names {batch}, so rows were not checked to leave each other "
                "alone"
            )
        return self._obstacle_around() or _obstacle_to_lengths(self.bucketing, self.lengths())

    def batch_sizes(self) -> tuple[int, ...]:
        """Returns the buckets of the rows; empty where requests cannot be joined."""
        batch = None if self.bucketing is None else _batch_variable(self.bucketing)
        return () if self.bucketing is None or batch is None else self.bucketing.sizes[batch]

    def lengths(self) -> set[str]:
        """Returns the sizes of the function that requests choose beside their rows."""
        if self.bucketing is None or self.is_preprocessed:
            return set()
        avals = self.bucketing.given().values()
        return {v for aval in avals for v in variables_in(aval)} - {_batch_variable(self.bucketing)}

    def _obstacle_around(self) -> str | None:
        """Finds what the user's own TensorFlow takes or gives that is not rows of a fixed size."""
        arrays: dict[str, ServedArray] = {}
        if self.is_preprocessed:
            arrays.update(self.inputs)
        if self.is_preprocessed or self.is_postprocessed:
            arrays.update(self.outputs)
        for name, array in arrays.items():
            if not array.has_open_rows:
                return f"{name}: {array} has no open rows"
            if array.has_open_lengths:
                return f"{name}: {array} has an open size beside its rows"
        return None


def serving_instructions(
    root: str | os.PathLike[str],
    model_name: str,
    signatures: Iterable[ServedSignature] = (),
    *,
    platforms: Sequence[str] = ("cpu",),
    environment: Mapping[str, str] | None = None,
    cores: int | None = None,
) -> ServingInstructions:
    """Writes instructions to serve what lies in a folder with versions.

    Args:
      root: the folder that holds the versions, as 1/.
      model_name: under which clients ask for it.
      signatures: of the model. TensorFlow Serving joins requests of all of them or of none.
      platforms: what the modules that XLA compiles were lowered for.
      environment: variables to start it with, as `CompileCache.environment` gives them.
      cores: of the machine that serves; this one's by default.
    """
    signatures = tuple(signatures)
    cores = cores or os.cpu_count() or 1
    grpc_threads = max(MIN_GRPC_THREADS, _THREADS_PER_CORE * cores)
    command = [
        "tensorflow_model_server",
        "--port=8500",
        "--rest_api_port=8501",
        f"--model_name={model_name}",
        f"--model_base_path={as_path(root).absolute()}",
        f"--grpc_max_threads={grpc_threads}",
    ]
    notes = [
        "--grpc_max_threads is how many gRPC requests may run or wait at once; TensorFlow Serving "
        'refuses more with "Server Threadpool Exhausted". By default it is '
        f"{_THREADS_PER_CORE} for each core."
    ]
    if "cpu" in platforms:
        command.append("--xla_cpu_compilation_enabled=true")
        notes.append(
            "Without --xla_cpu_compilation_enabled=true every request on a CPU fails: TensorFlow "
            "Serving compiles for CPUs only if it is told to."
        )
    obstacles = {s.name: reason for s in signatures if (reason := s.obstacle()) is not None}
    batching = None
    if obstacles:
        reasons = "; and of ".join(f"{name}: {reason}" for name, reason in obstacles.items())
        notes.append(f"Requests are not joined (--enable_batching) because of {reasons}.")
    elif signatures:
        batching = _batching(signatures, cores, grpc_threads)
        command += ["--enable_batching=true", f"--batching_parameters_file={BATCHING_FILE}"]
        notes += _batching_notes(batching, grpc_threads)
    return ServingInstructions(
        tuple(command), dict(environment or {}), batching, BATCHING_FILE, tuple(notes)
    )


def _batching(
    signatures: Sequence[ServedSignature], cores: int, grpc_threads: int
) -> BatchingParameters:
    """Chooses parameters for signatures whose requests can be joined.

    The parameters are for all signatures: where their buckets differ, a size that one of them does
    not have is padded once more.
    """
    sizes = {size for signature in signatures for size in signature.batch_sizes()}
    return BatchingParameters(
        tuple(sorted(sizes)),
        num_batch_threads=cores,
        # A thread waits with one request, which may fill a batch.
        max_enqueued_batches=grpc_threads + _THREADS_PER_CORE * cores,
        pad_variable_length_inputs=any(signature.lengths() for signature in signatures),
    )


def _batching_notes(batching: BatchingParameters, grpc_threads: int) -> list[str]:
    notes = [
        f"With batching, a request of more than {batching.allowed_batch_sizes[-1]} rows is "
        "refused; without the last two options it is not, and requests are not joined.",
        f"max_enqueued_batches is the number of threads that take requests: {grpc_threads} for "
        f"gRPC and {batching.max_enqueued_batches - grpc_threads} for REST. Each thread waits with "
        "one request, so the queue is never full, even if each request fills a batch. If you "
        "change --grpc_max_threads, change both by the same number. By default the queue holds 10 "
        "batches, and TensorFlow Serving refuses what does not fit.",
    ]
    if batching.pad_variable_length_inputs:
        notes.append(
            "With pad_variable_length_inputs, TensorFlow Serving also pads requests of a wrong "
            "size where it joins them with right ones, instead of refusing them."
        )
    return notes


def _batch_variable(bucketing: Bucketing) -> str | None:
    """Finds the bucketed variable that is the first dimension of each input and output."""
    avals = [*bucketing.given().values(), *bucketing.outputs.values()]
    for variable in bucketing.sizes:
        if all(aval.op_shape and is_plain(aval.op_shape[0], variable) for aval in avals):
            return variable
    return None


def _obstacle_to_rows(bucketing: Bucketing) -> str:
    """Names an array without bucketed rows, where there is no batch variable."""
    for name, aval in (*bucketing.given().items(), *bucketing.outputs.items()):
        shape = aval.op_shape
        if not shape or not any(is_plain(shape[0], variable) for variable in bucketing.sizes):
            return f"{name}: {ServedArray.of_aval(aval)} does not begin with a bucketed size"
    return "its inputs and outputs do not all begin with the same size"


def _obstacle_to_lengths(bucketing: Bucketing, lengths: set[str]) -> str | None:
    """Finds the reason why TensorFlow Serving must not pad lengths; None where it may.

    It pads inputs with the first number of each, does not slice the results, and knows nothing of
    masks (tensorflow_serving/batching/batching_util.cc).
    """
    if not lengths:
        return None
    unbucketed = sorted(lengths - bucketing.sizes.keys())
    lengthy = [
        f"{name}: {ServedArray.of_aval(aval)}"
        for name, aval in bucketing.outputs.items()
        if lengths & variables_in(aval)
    ]
    if unbucketed:
        reason = f"{', '.join(unbucketed)} has no buckets"
    elif lengthy:
        reason = f"it would pad, and not slice {', '.join(lengthy)}"
    elif not bucketing.any_padding:
        reason = "it would pad with the first number of each input, and that may change results"
    else:
        return None
    return (
        f"requests choose the size {', '.join(sorted(lengths))} beside their rows, and TensorFlow "
        f"Serving fails where it joins different ones; {reason}"
    )


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def instructions(
    path: AnyPath,
    endpoints: Sequence[Endpoint],
    served: Mapping[str, Sides],
    *,
    programs: int | None,
) -> ServingInstructions:
    """Writes instructions to serve the model at `path`.

    Args:
      path: the directory of the model.
      endpoints: its signatures.
      served: the inputs and outputs of each signature, with its preprocess and postprocess.
      programs: the number of programs that were compiled for it; None if none were.
    """
    whole = path.absolute()
    cache = None if programs is None else CompileCache(served_cache(whole), programs)
    # TensorFlow Serving wants a folder of versions.
    root = whole.parent if whole.name.isdecimal() else whole
    # TensorFlow's own operations are not compiled.
    platforms = sorted(
        {p for e in endpoints if e.portable.target.xla for p in e.portable.platforms}
    )
    return serving_instructions(
        root,
        root.name,
        [
            ServedSignature(
                e.name,
                *served[e.name],
                e.bucketing,
                is_preprocessed=e.signature.preprocess is not None,
                is_postprocessed=e.signature.postprocess is not None,
            )
            for e in endpoints
        ],
        platforms=platforms,
        environment=None if cache is None else cache.environment(),
    )
