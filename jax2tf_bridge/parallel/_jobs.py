"""ExportJob; names of jobs; jobs and answers as messages between processes."""

from __future__ import annotations

import itertools
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

import jax
import numpy as np

from jax2tf_bridge.colocated import Channel, find_importable_name
from jax2tf_bridge.errors import (
    BridgeError,
    DTypeError,
    ExportError,
    FunctionError,
    SerializationError,
    StructureError,
)
from jax2tf_bridge.from_jax import export
from jax2tf_bridge.from_jax.arguments import JaxCallable
from jax2tf_bridge.from_jax.trees import check_dict_keys, tree_spec
from jax2tf_bridge.parallel._configuration import read_configuration, use_configuration
from jax2tf_bridge.parallel._failures import ExceptionParts, Failure
from jax2tf_bridge.portable import PolyConstraints, PortableFunction, TreeSpec
from jax2tf_bridge.serialization import deserialize, serialize
from jax2tf_bridge.targets import Target


@dataclass(frozen=True)
class ExportJob:
    """One export: a function, its arguments' shapes, and the options of `export`.

    Attributes:
      function: the JAX function, jitted or not. It is sent to another process, together with the
        arrays that it captures.
      args: examples of its positional arguments, arrays or jax.ShapeDtypeStructs. Only the shapes
        and dtypes of arrays are sent.
      kwargs: examples of its keyword arguments.
      name: the key of the result; by default the function's name, plus a number if several jobs
        would have the same name.
      polymorphic_shapes, polymorphic_constraints, platforms: as in `export`.
      disabled_checks, target, runtime_checks: as in `export`.
      vjp_order: the number of gradient orders to export. The result cannot be differentiated
        further, because the JAX function stays in the other process.
    """

    function: Callable[..., Any]
    args: Sequence[Any] = field(default=(), repr=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _: KW_ONLY
    name: str | None = None
    polymorphic_shapes: Any = None
    polymorphic_constraints: PolyConstraints = ()
    platforms: Sequence[str] | None = None
    disabled_checks: Sequence[Any] = ()
    target: Target | None = None
    runtime_checks: Literal["drop"] | None = None
    vjp_order: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.args, (tuple, list)):
            raise FunctionError(
                "ExportJob takes the arguments of its function as a list, args=[x]. Got: a "
                f"{type(self.args).__name__}."
            )
        if not isinstance(self.kwargs, Mapping):
            raise FunctionError(
                "ExportJob takes keyword arguments as a dict, kwargs={'x': x}. Got: a "
                f"{type(self.kwargs).__name__}."
            )


Jobs: TypeAlias = Sequence[ExportJob] | Mapping[str, ExportJob]
"""A list of jobs, or a mapping of jobs by name."""


def name_jobs(jobs: Jobs) -> dict[str, ExportJob]:
    """Gives each job a unique name, and returns the jobs by name, in order.

    Raises:
      FunctionError: `jobs` has something other than an ExportJob.
      ExportError: the user gave two jobs the same name.
    """
    if isinstance(jobs, ExportJob) or not hasattr(jobs, "__iter__"):
        job_text = "job" if isinstance(jobs, ExportJob) else "ExportJob(f, args=[...])"
        raise FunctionError(
            f"export_many takes a list of jobs. Pass [{job_text}], or use export()."
        )
    if isinstance(jobs, Mapping):
        return {
            name: replace(_check_job(job, f"The job {name!r}"), name=name)
            for name, job in jobs.items()
        }
    job_list = [_check_job(job, f"Job {number}") for number, job in enumerate(jobs)]
    user_names = [job.name for job in job_list if job.name is not None]
    duplicates = sorted({name for name in user_names if user_names.count(name) > 1})
    if duplicates:
        raise ExportError(
            f"Several jobs have the name {', '.join(map(repr, duplicates))}. Give each job its own "
            "name: results are returned by name."
        )
    used_names = set(user_names)
    jobs_by_name: dict[str, ExportJob] = {}
    for job in job_list:
        name = job.name
        if name is None:
            name = _make_unique(_get_function_name(job), used_names)
            used_names.add(name)
        jobs_by_name[name] = replace(job, name=name)
    return jobs_by_name


def _check_job(job: object, which: str) -> ExportJob:
    if isinstance(job, ExportJob):
        return job
    hint = (
        f" Write ExportJob({getattr(job, '__name__', 'f')}, args=[...])." if callable(job) else ""
    )
    raise FunctionError(f"{which} must be an ExportJob. Got: a {type(job).__name__}.{hint}")


def _get_function_name(job: ExportJob) -> str:
    try:
        return JaxCallable.of(job.function, caller="ExportJob").name
    except FunctionError:
        return "job"  # the export reports the problem


def _make_unique(name: str, used_names: set[str]) -> str:
    candidates = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(candidate for candidate in candidates if candidate not in used_names)


@dataclass(frozen=True)
class _NamedFunction:
    """The name of a jitted function at the top of a module, such as `jax.nn.relu`.

    pickle sends only plain functions by name.
    """

    module: str
    name: str

    def restore(self) -> Any:
        return pkgutil.resolve_name(f"{self.module}:{self.name}")


@dataclass(frozen=True)
class _JittedFunction:
    """A jitted function and its attributes, which JAX does not pickle."""

    function: Any
    attributes: Mapping[str, Any]

    def restore(self) -> Any:
        for name, value in self.attributes.items():
            setattr(self.function, name, value)
        return self.function


def _make_sendable(function: Any) -> Any:
    """Replaces a jitted function by an object that every pickler can send without loss."""
    if not type(function).__module__.startswith(("jax.", "jaxlib.")):
        return function
    name = find_importable_name(function)
    if name is not None:
        return _NamedFunction(function.__module__, name)
    if isinstance(function, jax.stages.Wrapped):
        return _JittedFunction(function, dict(vars(function)))
    return function


@dataclass(frozen=True)
class SentJob:
    """The message that sends a job.

    Attributes:
      job: the job without its arguments' data, and with its function replaced by `_make_sendable`.
      structure: the pytree of its arguments.
      configuration: the JAX configuration of the sender.
      token: the token of the channel that returns the answer's objects.
      process: the id of the sending process.
    """

    job: ExportJob
    structure: TreeSpec
    configuration: Mapping[str, Any]
    token: bytes = field(repr=False)
    process: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class Answer:
    """Result of a job.

    Attributes:
      function: the portable function as the bytes of a .jaxfn file; b"" if the job failed.
      failure: the failure without the exception's parts; None if the job succeeded.
      objects: a message of the channel: the result's skeleton, or the exception's parts.
      not_sent: the reason why there is no skeleton.
    """

    function: bytes = b""
    failure: Failure | None = None
    objects: bytes = b""
    not_sent: str = ""


def run_job(sent: SentJob) -> Answer:
    """Exports a job in this process; exceptions become part of the answer."""
    channel = Channel(sent.token, end="worker")
    try:
        _check_precision(sent)
        with use_configuration(sent.configuration):
            portable, data = _export(sent)
    except BaseException as e:  # the user's function may even call sys.exit()
        failure = Failure.of(e)
        # Packed separately, so that the failure is readable without the exception's class.
        objects = channel.pack(failure.parts) if failure.parts else b""
        return Answer(failure=replace(failure, parts=None), objects=objects)
    try:
        skeleton = _make_skeleton(portable)
        return Answer(data, objects=b"" if skeleton is None else channel.pack(skeleton))
    except Exception as e:  # the user's pytree types may raise anything
        return Answer(data, not_sent=f"{type(e).__name__}: {e}")


def _check_precision(sent: SentJob) -> None:
    """Checks that unpickling did not truncate 64-bit arrays that the function captured.

    Raises:
      DTypeError: jax_enable_x64 is on in the sender and was off when the job was unpickled here.
    """
    x64_here = read_configuration()["jax_enable_x64"]
    if sent.configuration["jax_enable_x64"] and not x64_here and sent.process != os.getpid():
        raise DTypeError(
            "jax_enable_x64 is on in the process that sent the job, but off in the one that runs "
            "it, so arrays that its function captured may have become float32. Start the "
            "executor's processes with JAX_ENABLE_X64=1 in their environment."
        )


def _export(sent: SentJob) -> tuple[PortableFunction, bytes]:
    job, function = sent.job, cast("object", sent.job.function)
    if isinstance(function, (_NamedFunction, _JittedFunction)):
        job = replace(job, function=function.restore())
    _check_structure(job, sent.structure)
    portable = export(
        job.function,
        polymorphic_shapes=job.polymorphic_shapes,
        polymorphic_constraints=job.polymorphic_constraints,
        platforms=job.platforms,
        disabled_checks=job.disabled_checks,
        target=job.target,
        runtime_checks=job.runtime_checks,
    )(*job.args, **job.kwargs)
    return portable, serialize(portable, vjp_order=job.vjp_order)


class PendingJob:
    """The sender's side of a job."""

    def __init__(self, name: str, job: ExportJob) -> None:
        """Prepares a job for sending.

        Raises:
          FunctionError: the job's function is not callable.
          StructureError: JAX cannot sort the keys of a dict among the arguments.
        """
        self.name = name
        self._channel = Channel.with_new_token()
        self.job = _remove_data(job)
        self._structure = _make_argument_structure(job)
        sendable = replace(self.job, function=_make_sendable(job.function))
        self.message = SentJob(sendable, self._structure, read_configuration(), self._channel.token)

    def read_function(self, answer: Answer, output: str = "") -> PortableFunction:
        """Reads the portable function of an answer, with the pytree types of this process.

        Raises:
          JobError: the job failed; the exception is its cause.
          SerializationError: the function's result has a pytree type that cannot be sent back.
        """
        if answer.failure is not None:
            failure = replace(answer.failure, parts=self._read_exception_parts(answer))
            raise failure.make_job_error(self.name, output)
        portable = deserialize(answer.function, file=self.name)
        out_tree = portable.out_tree
        reason = answer.not_sent
        if answer.objects:
            try:
                out_tree = _copy_types(out_tree, tree_spec(self._channel.unpack(answer.objects)))
            except BridgeError:
                raise
            except Exception as e:  # the user's pytree types may raise anything
                reason = f"{type(e).__name__}: {e}"
        unknown_types = [node.name for node in _iter_typed_nodes(out_tree) if node.codec is None]
        if unknown_types:
            raise SerializationError(
                f"The result of {self.name!r} has a {unknown_types[0]}; its type did not come back "
                f"from the process that exported it{f' ({reason})' if reason else ''}. Register "
                "it for files, in a module that both processes import, with "
                "register_pytree_node_serialization or register_namedtuple_serialization."
            )
        in_tree = _copy_types(portable.in_tree, self._structure)
        return replace(portable, in_tree=in_tree, out_tree=out_tree)

    def _read_exception_parts(self, answer: Answer) -> ExceptionParts | None:
        if not answer.objects:
            return None
        try:
            parts: ExceptionParts = self._channel.unpack(answer.objects)
            parts.rebuild()
        except Exception:  # this process does not know the exception's class
            return None
        return parts


def _remove_data(job: ExportJob) -> ExportJob:
    """Replaces arrays by their shapes and dtypes; static arguments keep their values."""
    function = JaxCallable.of(job.function, caller="ExportJob")
    positions, static = function.static_positions(len(job.args)), function.static_argnames
    names = function.argument_names(len(job.args))
    args = tuple(
        arg if i in positions else _replace_arrays(arg, name)
        for i, (name, arg) in enumerate(zip(names, job.args, strict=True))
    )
    kwargs = {k: arg if k in static else _replace_arrays(arg, k) for k, arg in job.kwargs.items()}
    return replace(job, args=args, kwargs=kwargs)


def _replace_arrays(argument: Any, name: str) -> Any:
    def shape_of(leaf: Any) -> Any:
        if isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return leaf

    try:
        return jax.tree_util.tree_map(shape_of, argument)
    except ValueError:
        check_dict_keys(argument, f"The argument {name}")
        raise


def _make_argument_structure(job: ExportJob) -> TreeSpec:
    """Returns the pytree of (args, kwargs) without static arguments: the function's in_tree."""
    function = JaxCallable.of(job.function, caller="ExportJob")
    static_positions = function.static_positions(len(job.args))
    args = tuple(arg for i, arg in enumerate(job.args) if i not in static_positions)
    kwargs = {k: arg for k, arg in job.kwargs.items() if k not in function.static_argnames}
    return tree_spec((args, kwargs))


def _check_structure(job: ExportJob, sent: TreeSpec) -> None:
    """Checks that the arguments have the same pytree structure as in the sender.

    Raises:
      StructureError: a type is not registered with JAX here, or registered differently.
    """
    if _make_argument_structure(job) == sent:
        return
    names = ", ".join(dict.fromkeys(node.name for node in _iter_typed_nodes(sent)))
    raise StructureError(
        f"The arguments have another structure in the process that exports them, because not all "
        f"of {names} are registered as pytrees there. Classes of the script itself are sent "
        "without their registration with JAX. Define and register them in a module that the "
        "function's module imports, or register them in the workers: "
        "ExportWorkers(initializer=register)."
    )


def _iter_typed_nodes(spec: TreeSpec) -> Iterator[TreeSpec]:
    """Yields the nodes of the user's pytree types."""
    if spec.kind in ("namedtuple", "custom"):
        yield spec
    for child in spec.children:
        yield from _iter_typed_nodes(child)


def _make_skeleton(portable: PortableFunction) -> Any:
    """Builds the function's result with numbers for arrays; None without the user's types.

    The sender reads its own pytree types from this object.
    """
    if not any(_iter_typed_nodes(portable.out_tree)):
        return None
    return portable.out_tree.unflatten(iter(range(len(portable.out_avals))))


def _copy_types(read: TreeSpec, own: TreeSpec) -> TreeSpec:
    """Copies the pytree types of `own` to the equal nodes of `read`."""
    is_equal_node = (read.kind, read.name, read.keys) == (own.kind, own.name, own.keys)
    if not is_equal_node or len(read.children) != len(own.children):
        return read
    children = tuple(map(_copy_types, read.children, own.children))
    return replace(read, children=children, codec=own.codec or read.codec)
