"""Instructions for TensorFlow Serving: the command, and the file for its batching."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._plausible_inputs import variables_in
from jax2tf_bridge.saving.buckets._buckets import Bucketing, is_plain
from jax2tf_bridge.saving.serving._precompile import CompileCache
from jax2tf_bridge.saving.serving._shared_programs import served_cache
from jax2tf_bridge.saving.signatures._endpoint import Endpoint
from jax2tf_bridge.saving.signatures._served_arrays import ServedArray, Sides
from jax2tf_bridge.storage._paths import AnyPath, as_path

BATCHING_FILE = "batching_parameters.txt"

_TIMEOUT_MICROSECONDS = 0
"""TensorFlow Serving's guide begins with 0, and then tries 1000 to 10000."""


@dataclass(frozen=True)
class BatchingParameters:
    """Parameters by which TensorFlow Serving joins requests; prints as its file's text.

    Attributes:
      allowed_batch_sizes: to which joined requests are padded, increasing.
      num_batch_threads: how many batches run at the same time.
      batch_timeout_micros: how long a request may wait for others.
      pad_variable_length_inputs: whether requests of different lengths may be joined.
    """

    allowed_batch_sizes: tuple[int, ...]
    num_batch_threads: int
    batch_timeout_micros: int = _TIMEOUT_MICROSECONDS
    pad_variable_length_inputs: bool = False

    def __str__(self) -> str:
        lines = [
            f"max_batch_size {{ value: {self.allowed_batch_sizes[-1]} }}",
            *(f"allowed_batch_sizes: {size}" for size in self.allowed_batch_sizes),
            f"batch_timeout_micros {{ value: {self.batch_timeout_micros} }}",
            f"num_batch_threads {{ value: {self.num_batch_threads} }}",
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


def serving_instructions(
    root: str | os.PathLike[str],
    model_name: str,
    bucketings: Iterable[Bucketing] = (),
    *,
    signatures_that_stay_apart: Iterable[str] = (),
    preprocessed: Iterable[str] = (),
    platforms: Sequence[str] = ("cpu",),
    environment: Mapping[str, str] | None = None,
    cores: int | None = None,
) -> ServingInstructions:
    """Tells how to serve what lies in a folder with versions.

    Args:
      root: the folder that holds the versions, as 1/.
      model_name: under which clients ask for it.
      bucketings: of its signatures.
      signatures_that_stay_apart: those whose requests cannot be joined: without buckets, or with
        a preprocess or postprocess that does not take and give rows.
      preprocessed: those that have a preprocess: what that takes cannot be padded.
      platforms: what the modules that XLA compiles were lowered for.
      environment: variables to start it with, as `CompileCache.environment` gives them.
      cores: of the machine that serves; this one's by default.
    """
    bucketings = tuple(bucketings)
    others = tuple(signatures_that_stay_apart)
    command = [
        "tensorflow_model_server",
        "--port=8500",
        "--rest_api_port=8501",
        f"--model_name={model_name}",
        f"--model_base_path={as_path(root).absolute()}",
    ]
    notes = []
    if "cpu" in platforms:
        command.append("--xla_cpu_compilation_enabled=true")
        notes.append(
            "Without --xla_cpu_compilation_enabled=true every request on a CPU fails: TensorFlow "
            "Serving compiles for CPUs only if it is told to."
        )
    cores = cores or os.cpu_count() or 1
    batching = None if others else _batching(bucketings, cores, frozenset(preprocessed))
    if batching is not None:
        command += ["--enable_batching=true", f"--batching_parameters_file={BATCHING_FILE}"]
        largest = batching.allowed_batch_sizes[-1]
        notes.append(
            f"With batching, a request of more than {largest} rows is refused; without the last "
            "two options it is not, and requests are not joined."
        )
    elif bucketings:
        notes.append(
            "Requests are not joined (--enable_batching): for that each signature needs buckets, "
            "each input and output the bucketed variable as its first dimension (with a preprocess "
            "or postprocess, an open one), and rows that do not influence each other."
        )
    return ServingInstructions(
        tuple(command), dict(environment or {}), batching, BATCHING_FILE, tuple(notes)
    )


def _batching(
    bucketings: Sequence[Bucketing], cores: int, preprocessed: Collection[str]
) -> BatchingParameters | None:
    """Finds parameters with which requests may be joined; None if they may not.

    The parameters are for all signatures: where their buckets differ, a size that one of them does
    not have is padded once more.
    """
    batches = [_batch_variable(bucketing) for bucketing in bucketings]
    sizes: set[int] = set()
    for bucketing, variable in zip(bucketings, batches, strict=True):
        if variable is None:
            return None
        sizes.update(bucketing.sizes[variable])
    if not sizes:
        return None
    pad = all(
        bucketing.name not in preprocessed and _lengths_may_differ(bucketing, variable)
        for bucketing, variable in zip(bucketings, batches, strict=True)
        if variable is not None
    )
    return BatchingParameters(
        tuple(sorted(sizes)), num_batch_threads=cores, pad_variable_length_inputs=pad
    )


def _batch_variable(bucketing: Bucketing) -> str | None:
    """Finds the bucketed variable that is the first dimension of each input and output.

    None where rows may influence each other, so that requests must not be joined.
    """
    avals: list[Aval] = [*bucketing.given().values(), *bucketing.outputs.values()]
    for variable in bucketing.sizes:
        if bucketing.is_masked(variable) or variable in bucketing.unchecked:
            continue
        if all(aval.op_shape and is_plain(aval.op_shape[0], variable) for aval in avals):
            return variable
    return None


def _lengths_may_differ(bucketing: Bucketing, batch: str) -> bool:
    """True if TensorFlow Serving may pad other dimensions, so that requests can be joined.

    It pads inputs with the first number of each, does not slice the results, and knows nothing of
    masks (tensorflow_serving/batching/batching_util.cc).
    """
    lengths = {v for aval in bucketing.given().values() for v in variables_in(aval)} - {batch}
    in_outputs = {v for aval in bucketing.outputs.values() for v in variables_in(aval)}
    return (
        bool(lengths)
        and lengths <= set(bucketing.sizes)
        and bucketing.any_padding
        and not lengths & in_outputs
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
    """Makes the instructions for a model at `path`.

    Args:
      path: the directory of the model.
      endpoints: its signatures.
      served: the inputs and outputs of each signature, with its preprocess and postprocess.
      programs: the number of programs that were compiled for it; None if none were.
    """
    joined = {e.name for e in endpoints if _rows_can_be_joined(e, *served[e.name])}
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
        [e.bucketing for e in endpoints if e.bucketing is not None],
        signatures_that_stay_apart=[e.name for e in endpoints if e.name not in joined],
        preprocessed=[e.name for e in endpoints if e.signature.preprocess is not None],
        platforms=platforms,
        environment=None if cache is None else cache.environment(),
    )


def _rows_can_be_joined(
    endpoint: Endpoint, inputs: Mapping[str, ServedArray], outputs: Mapping[str, ServedArray]
) -> bool:
    """True if the user's own functions take and give rows, so that requests may be joined."""
    if endpoint.bucketing is None:
        return False
    if not endpoint.is_processed:
        return True
    return all(array.has_open_rows for array in (*inputs.values(), *outputs.values()))
