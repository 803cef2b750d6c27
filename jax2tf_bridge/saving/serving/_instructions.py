"""Instructions for TensorFlow Serving: the command and the batching file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jax2tf_bridge._utils import name_items
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.portable import Aval, Port, PortableFunction, variables_in
from jax2tf_bridge.publishing import (
    list_label_options,
    list_program_names,
    locate_served_cache,
)
from jax2tf_bridge.saved_model import (
    SERVING_DEFAULT,
    ArrayEntry,
    EntryPoint,
    SavedModelContents,
    Sidecar,
    SignaturePort,
    read_sidecar,
)
from jax2tf_bridge.saving._weight_signatures import WEIGHT_SIGNATURES
from jax2tf_bridge.saving.buckets import Bucketing
from jax2tf_bridge.saving.serving._batching import (
    CHANGES_WEIGHTS,
    find_batch_variable,
    find_lengths,
    find_obstacle,
)
from jax2tf_bridge.saving.serving._warm_up import make_cache_environment
from jax2tf_bridge.serving_requests import (
    GRPC_PORT,
    REST_PORT,
    ExampleRequest,
    ServedName,
    find_dtypes_without_rest,
    find_served_name,
    find_versions_folder,
)
from jax2tf_bridge.signatures import ServedArray, Sides
from jax2tf_bridge.storage import AnyPath, as_path
from shape_poly import SymbolicScope, is_symbolic_dim

BATCHING_FILE = "batching_parameters.txt"

_DEFAULT_TIMEOUT_MICROSECONDS = 0
"""Default time that a request waits for others, in microseconds.

TensorFlow Serving's guide recommends to begin with 0, and then to try 1000 to 10000.
"""

MIN_GRPC_THREADS = 256
"""Minimum number of gRPC requests that may run or wait at once. A waiting request costs a thread.

TensorFlow Serving's default of 4 for each core refuses requests of 32 callers on a small machine.
"""

_RETRY_MICROSECONDS = 1_000_000
"""Time between two tries to load a version, in microseconds; there are five after the first."""

_LOAD_THREADS = 2
"""Number of threads that load versions.

By default, TensorFlow Serving tries a version that cannot be loaded for five minutes, and loads no
other version meanwhile, such as the one that a rollback publishes.
"""

_THREADS_PER_CORE = 4
"""TensorFlow Serving's default for --grpc_max_threads and --rest_api_num_threads."""


@dataclass(frozen=True)
class BatchingParameters:
    """TensorFlow Serving's parameters for joining requests; str() gives the text of its file.

    Attributes:
      allowed_batch_sizes: the sizes to which joined requests are padded, increasing.
      num_batch_threads: the number of batches that run at the same time.
      max_enqueued_batches: the number of batches that may wait; TensorFlow Serving refuses others.
      batch_timeout_micros: how long a request may wait for others, in microseconds.
      pad_variable_length_inputs: whether requests of different lengths may be joined.
    """

    allowed_batch_sizes: tuple[int, ...]
    num_batch_threads: int
    max_enqueued_batches: int
    batch_timeout_micros: int = _DEFAULT_TIMEOUT_MICROSECONDS
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
    """Instructions to serve a model; str() gives text for people.

    Attributes:
      command: the words of the command line.
      environment: the environment variables of the command.
      batching: the content of `batching_file`, if requests may be joined.
      batching_file: the path at which the command expects that file.
      notes: further notes.
      requests: an example request for each signature, by name.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    batching: BatchingParameters | None = None
    batching_file: str = BATCHING_FILE
    notes: tuple[str, ...] = ()
    requests: Mapping[str, ExampleRequest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name_items(self, requests="signature")

    def command_line(self) -> str:
        """Formats the command for a shell, with the environment variables in front."""
        variables = (f"{name}={shlex.quote(value)}" for name, value in self.environment.items())
        program, *options = map(shlex.quote, self.command)
        return " \\\n    ".join([" ".join([*variables, program]), *options])

    def __str__(self) -> str:
        parts = [f"Start TensorFlow Serving with\n\n{_indent(self.command_line())}"]
        if self.batching is not None:
            text = _indent(str(self.batching).rstrip())
            parts.append(f"after writing to {self.batching_file}\n\n{text}")
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        if self.requests:
            request = self.requests.get(SERVING_DEFAULT) or next(iter(self.requests.values()))
            text = _indent(request.rest_problem or request.curl())
            parts.append(f"Call {request.signature} with\n\n{text}")
            if len(self.requests) > 1:
                parts.append("`requests` of these instructions has one for each signature.")
        return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class ServedSignature:
    """A saved signature as requests see it.

    Attributes:
      name: the name of the signature in requests.
      inputs: the arrays in requests, by name.
      outputs: the arrays in responses, by name.
      bucketing: its buckets, or None.
      defaults: the names of the inputs that gRPC requests may leave out.
      is_preprocessed: whether the user's own TensorFlow code takes the inputs.
      is_postprocessed: whether the user's own TensorFlow code returns the outputs.
      changes_weights: whether a request changes weights.
    """

    name: str
    inputs: Mapping[str, ServedArray]
    outputs: Mapping[str, ServedArray]
    bucketing: Bucketing | None
    defaults: Collection[str] = ()
    is_preprocessed: bool = False
    is_postprocessed: bool = False
    changes_weights: bool = False

    def find_obstacle(self) -> str | None:
        """Returns the reason why its requests cannot be joined; None if they can."""
        if self.changes_weights:
            return CHANGES_WEIGHTS
        if self.bucketing is None:
            return "it has no buckets"
        return (
            find_obstacle(self.bucketing)
            or self._find_processing_obstacle()
            or _find_length_obstacle(self.bucketing, self.find_lengths())
        )

    def get_batch_sizes(self) -> tuple[int, ...]:
        """Returns the buckets of the rows; empty if requests cannot be joined."""
        if self.bucketing is None:
            return ()
        return self.bucketing.sizes.get(find_batch_variable(self.bucketing) or "", ())

    def find_lengths(self) -> set[str]:
        """Returns the variables, other than the rows, that requests choose."""
        if self.bucketing is None or self.is_preprocessed:
            return set()
        return find_lengths(self.bucketing)

    def _find_processing_obstacle(self) -> str | None:
        """Finds an array of preprocess or postprocess that does not consist of rows of one size."""
        inputs = self.inputs if self.is_preprocessed else {}
        outputs = self.outputs if self.is_preprocessed or self.is_postprocessed else {}
        for name, array in (*inputs.items(), *outputs.items()):
            if not array.has_open_rows:
                return f"{name}: {array} has no open rows"
            if array.has_open_lengths:
                return f"{name}: {array} has an open size beside its rows"
        return None


def make_serving_instructions(
    root: str | os.PathLike[str],
    model_name: str,
    signatures: Iterable[ServedSignature] = (),
    *,
    platforms: Sequence[str] = ("cpu",),
    environment: Mapping[str, str] | None = None,
    cores: int | None = None,
    joins_requests: bool = False,
    configured: AnyPath | None = None,
) -> ServingInstructions:
    """Writes instructions to serve the model in a folder with versions.

    Args:
      root: the folder that holds the versions, such as 1/.
      model_name: the name of the model in requests.
      signatures: the signatures of the model. TensorFlow Serving joins requests of all or of none.
      platforms: the platforms that the modules for XLA were lowered for.
      environment: environment variables for the server, as from `make_cache_environment`.
      cores: the number of cores of the serving machine; by default that of this machine.
      joins_requests: whether the model joins requests itself.
      configured: the folder of the versions, if models.config beside it lists the model.
    """
    signatures = tuple(signatures)
    cores = cores or os.cpu_count() or 1
    grpc_threads = max(MIN_GRPC_THREADS, _THREADS_PER_CORE * cores)
    command = [
        "tensorflow_model_server",
        f"--port={GRPC_PORT}",
        f"--rest_api_port={REST_PORT}",
        *(
            (f"--model_name={model_name}", f"--model_base_path={as_path(root).absolute()}")
            if configured is None
            else list_label_options(configured)
        ),
        f"--grpc_max_threads={grpc_threads}",
        f"--num_load_threads={_LOAD_THREADS}",
        f"--load_retry_interval_micros={_RETRY_MICROSECONDS}",
    ]
    notes = [
        "--grpc_max_threads is how many gRPC requests may run or wait at once; TensorFlow Serving "
        'refuses more with "Server Threadpool Exhausted". By default it is '
        f"{_THREADS_PER_CORE} for each core.",
        "With --num_load_threads a rollback takes effect at once if a version cannot be loaded. By "
        "default TensorFlow Serving tries that version for five minutes, and loads no other.",
        "--load_retry_interval_micros is the time between two of these tries, a minute by "
        "default. If a version is removed while TensorFlow Serving begins to load it, no other is "
        "loaded until these tries end, whatever --num_load_threads is.",
    ]
    if configured is not None:
        notes.append(
            "--model_config_file lists the models with their labels, which publish and promote "
            "move; TensorFlow Serving reads it again every ten seconds. "
            "--allow_version_labels_for_unavailable_models lets it name a version that is not "
            "loaded yet."
        )
    if "cpu" in platforms:
        command.append("--xla_cpu_compilation_enabled=true")
        notes.append(
            "Without --xla_cpu_compilation_enabled=true every request on a CPU fails: TensorFlow "
            "Serving compiles for CPUs only if it is told to."
        )
    if environment:
        notes.append(
            f"{', '.join(environment)} names the programs that precompile stored. They are for the "
            "TensorFlow release that stored them; another one compiles when it loads the model."
        )
    obstacles = {s.name: reason for s in signatures if (reason := s.find_obstacle()) is not None}
    batching = None
    if joins_requests:
        notes.append(
            "The model joins requests itself, so --enable_batching is left out: with it, requests "
            "would wait in two queues."
        )
    elif obstacles:
        reasons = "; and of ".join(f"{name}: {reason}" for name, reason in obstacles.items())
        notes.append(f"Requests are not joined (--enable_batching) because of {reasons}.")
    elif signatures:
        batching = _choose_batching(signatures, cores, grpc_threads)
        command += ["--enable_batching=true", f"--batching_parameters_file={BATCHING_FILE}"]
        notes += _write_batching_notes(batching, grpc_threads)
    notes += _write_rest_notes(signatures)
    if changing := [s.name for s in signatures if s.changes_weights]:
        notes.append(
            f"Requests for {' and '.join(changing)} change the weights of the server that answers "
            "them. Other servers keep theirs, and a server that starts again, or loads another "
            "version, begins with the saved weights."
        )
    return ServingInstructions(
        tuple(command), dict(environment or {}), batching, BATCHING_FILE, tuple(notes)
    )


def _choose_batching(
    signatures: Sequence[ServedSignature], cores: int, grpc_threads: int
) -> BatchingParameters:
    """Chooses the parameters that all signatures share.

    If their buckets differ, TensorFlow Serving may pad to a size that is no bucket of a signature;
    that signature then pads once more.
    """
    sizes = {size for signature in signatures for size in signature.get_batch_sizes()}
    return BatchingParameters(
        tuple(sorted(sizes)),
        num_batch_threads=cores,
        # Each thread waits with one request, which may fill a batch.
        max_enqueued_batches=grpc_threads + _THREADS_PER_CORE * cores,
        pad_variable_length_inputs=any(signature.find_lengths() for signature in signatures),
    )


def _write_batching_notes(batching: BatchingParameters, grpc_threads: int) -> list[str]:
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
    else:
        notes.append(
            "A request of a wrong size also fails the requests that TensorFlow Serving joins with "
            'it: "Tensors ... from different tasks have different shapes". Callers who get this '
            "error can send their request again."
        )
    notes.append("A request of 0 rows waits until another request comes.")
    return notes


def _write_rest_notes(signatures: Iterable[ServedSignature]) -> list[str]:
    """Lists what works over gRPC only."""
    dtypes: list[str] = []
    names, defaults = [], []
    for signature in signatures:
        arrays = {**signature.inputs, **signature.outputs}
        others = find_dtypes_without_rest({name: array.dtype for name, array in arrays.items()})
        if others:
            dtypes += others.values()
            names.append(f"{signature.name} ({', '.join(others)})")
        defaults += [f"{name} of {signature.name}" for name in signature.defaults]
    notes = []
    if names:
        notes.append(
            f"The REST API has no {' and no '.join(dict.fromkeys(dtypes))}, so these signatures "
            f"work over gRPC only: {', '.join(names)}."
        )
    if defaults:
        notes.append(
            "The REST API does not fill in defaults, so its callers also pass "
            f"{', '.join(defaults)}."
        )
    return notes


def _find_length_obstacle(bucketing: Bucketing, lengths: set[str]) -> str | None:
    """Returns the reason why TensorFlow Serving must not pad lengths; None if it may.

    TensorFlow Serving pads each input with its first number, does not slice the results, and does
    not know masks (tensorflow_serving/batching/batching_util.cc).
    """
    if not lengths:
        return None
    unbucketed = sorted(lengths - bucketing.sizes.keys())
    unsliced = [
        f"{name}: {ServedArray.of_aval(aval)}"
        for name, aval in bucketing.outputs.items()
        if lengths & variables_in(aval)
    ]
    if unbucketed:
        reason = f"{', '.join(unbucketed)} has no buckets"
    elif unsliced:
        reason = f"it would not slice the padding off {', '.join(unsliced)}"
    elif not bucketing.any_padding:
        reason = "it would pad with the first number of each input, and that may change results"
    else:
        return None
    return (
        f"requests choose the size {', '.join(sorted(lengths))} beside their rows, and TensorFlow "
        f"Serving fails where it joins different ones; {reason}"
    )


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def read_instructions(
    contents: SavedModelContents, *, with_config: bool = True
) -> ServingInstructions:
    """Writes instructions to serve a SavedModel, without example requests.

    A model of an older bridge does not record whether sequences may be padded with any values, and
    a model of another tool records nothing. Where this matters, their requests are not joined.

    Args:
      contents: the contents of the SavedModel.
      with_config: whether the server reads models.config beside the versions, if that lists the
        model; otherwise it serves the model alone, under the name of its folder.

    Raises:
      FileFormatError: the sidecar is damaged.
      BridgeError: the model has no signatures.
      OSError: a file cannot be read.
    """
    path = as_path(contents.path)
    entries = [entry for entry in contents.entries if entry.is_signature]
    if not entries:
        raise BridgeError(f"{path} has no signatures, so there is nothing to serve.")
    sidecar = read_sidecar(path)
    stored = {} if sidecar is None else sidecar[0].signatures
    # The reasons to keep requests for weights apart are those of the signatures that change them.
    hidden = WEIGHT_SIGNATURES if any(each.updates for each in stored.values()) else ()
    numbers = {number for entry in entries for number in entry.modules}
    platforms = {p for m in contents.modules if m.number in numbers for p in m.platforms}
    cache = locate_served_cache(path.absolute())
    name = find_served_name(path) if with_config else ServedName(find_versions_folder(path).name)
    return make_serving_instructions(
        find_versions_folder(path),  # TensorFlow Serving expects a folder of versions
        name.model,
        [read_signature(entry, sidecar) for entry in entries if entry.name not in hidden],
        platforms=sorted(platforms),
        environment=make_cache_environment(cache) if list_program_names(path) else None,
        joins_requests=any(each.batching is not None for each in stored.values()),
        configured=name.configured,
    )


def read_signature(
    entry: EntryPoint, sidecar: tuple[Sidecar, Mapping[str, PortableFunction]] | None
) -> ServedSignature:
    """Describes a signature of a SavedModel as requests see it.

    Args:
      entry: the signature in the graph.
      sidecar: what `read_sidecar` returned; a signature that it lacks has no buckets.
    """
    if sidecar is None or entry.name not in sidecar[0].signatures:
        return ServedSignature(entry.name, *_read_sides(entry), None)
    stored, portable = sidecar[0].signatures[entry.name], sidecar[1][entry.name]
    inputs = _find_avals(stored.inputs, portable.inputs)
    outputs = _find_avals(stored.outputs, portable.outputs)
    bucketing = None
    if stored.buckets:
        constraints = (*portable.constraints, *portable.requirements)
        bucketing = Bucketing(
            entry.name,
            {**inputs, **_find_avals(stored.masks, portable.inputs)},
            outputs,
            stored.buckets,
            {},
            tuple(stored.masks),
            SymbolicScope(constraints, check=False).constraints,
            stored.pad_numbers(),
            stored.unchecked_padding,
            stored.any_padding,
        )
    return ServedSignature(
        entry.name,
        *_read_sides(entry),
        bucketing,
        tuple(port.name for port in entry.inputs if port.default is not None),
        is_preprocessed=not _have_types(entry.inputs, inputs),
        is_postprocessed=not _have_types(entry.outputs, outputs),
        changes_weights=bool(stored.updates),
    )


def _find_avals(entries: Mapping[str, ArrayEntry], ports: Iterable[Port]) -> dict[str, Aval]:
    avals = {port.path: port.aval for port in ports}
    return {name: avals[entry.path] for name, entry in entries.items()}


def _read_sides(entry: EntryPoint) -> Sides:
    inputs, outputs = (
        {port.name: ServedArray(port.type.dtype, port.type.shape) for port in ports}
        for ports in (entry.inputs, entry.outputs)
    )
    return inputs, outputs


def _have_types(ports: Iterable[SignaturePort], avals: Mapping[str, Aval]) -> bool:
    """Returns whether the arrays in requests have the types of the function's."""
    types = {port.name: (port.type.dtype, port.type.shape) for port in ports}
    return types == {
        name: (aval.op_dtype, tuple(None if is_symbolic_dim(d) else d for d in aval.op_shape))
        for name, aval in avals.items()
    }
