"""One job, in whatever process it came to: run_job gives an answer and raises nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jax2tf_bridge.colocated import Channel
from jax2tf_bridge.errors import BridgeError, DTypeError, SerializationError
from jax2tf_bridge.from_jax._export import export
from jax2tf_bridge.from_jax.trees._tree_specs import tree_spec
from jax2tf_bridge.parallel._configuration import configuration, configured
from jax2tf_bridge.parallel._failures import Carried, Failure, carried
from jax2tf_bridge.parallel._functions import received, sendable
from jax2tf_bridge.parallel._jobs import ExportJob
from jax2tf_bridge.parallel._structures import (
    argument_structure,
    check_arrived,
    skeleton,
    typed_nodes,
    with_types_of,
    without_data,
)
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._tree_spec import TreeSpec
from jax2tf_bridge.serialization import deserialize, serialize


@dataclass(frozen=True)
class SentJob:
    """A job on its way.

    Attributes:
      job: without the data of its arguments, and with its function as `sendable` gives it.
      structure: of its arguments.
      configuration: of JAX, where the job was made.
      token: of the channel that the answer's objects come back through.
      process: that it was sent from.
    """

    job: ExportJob
    structure: TreeSpec
    configuration: Mapping[str, Any]
    token: bytes = field(repr=False)
    process: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class Answer:
    """What became of a job.

    Attributes:
      record: the bytes of a .jaxfn file; none if it failed.
      failure: why it failed.
      objects: a message of the channel: the result's skeleton, or the exception.
      not_sent: why there is no skeleton.
    """

    record: bytes = b""
    failure: Failure | None = None
    objects: bytes = b""
    not_sent: str = ""


def run_job(sent: SentJob) -> Answer:
    """Exports a job here."""
    channel = Channel(sent.token, end="worker")
    try:
        _check_precision(sent)
        with configured(sent.configuration):
            record, data = _export(sent)
    except BaseException as e:  # of the user's function, sys.exit() among them
        parts = carried(e)
        return Answer(failure=Failure.of(e), objects=channel.pack(parts) if parts else b"")
    try:
        result = skeleton(record)
        return Answer(data, objects=b"" if result is None else channel.pack(result))
    except Exception as e:  # of the user's types
        return Answer(data, not_sent=f"{type(e).__name__}: {e}")


def _check_precision(sent: SentJob) -> None:
    """Raises where arrays that the function captured have lost half of their bits on the way.

    Raises:
      DTypeError: JAX took 64 bits where the job was made, and 32 when it was unpickled here.
    """
    here = configuration()["jax_enable_x64"]
    if sent.configuration["jax_enable_x64"] and not here and sent.process != os.getpid():
        raise DTypeError(
            "jax_enable_x64 is on where the job was made, and off in the process that it came to: "
            "arrays that its function captured may have become float32 on the way. Start the "
            "executor's processes with JAX_ENABLE_X64=1 in their environment."
        )


def _export(sent: SentJob) -> tuple[PortableFunction, bytes]:
    job = replace(sent.job, function=received(sent.job.function))
    check_arrived(job, sent.structure)
    record = export(
        job.function,
        polymorphic_shapes=job.polymorphic_shapes,
        polymorphic_constraints=job.polymorphic_constraints,
        platforms=job.platforms,
        disabled_checks=job.disabled_checks,
        target=job.target,
    )(*job.args, **job.kwargs)
    return record, serialize(record, vjp_order=job.vjp_order)


class Pending:
    """A job that was sent, in the process that sent it."""

    def __init__(self, name: str, job: ExportJob) -> None:
        """Prepares a job for sending.

        Raises:
          FunctionError: its function is none.
        """
        self.name = name
        self._channel = Channel.with_new_token()
        self._structure = argument_structure(job)
        self.job = without_data(job)
        sent = replace(self.job, function=sendable(job.function))
        self.sent = SentJob(sent, self._structure, configuration(), self._channel.token)

    def record(self, answer: Answer, output: str = "") -> PortableFunction:
        """The record of an answer, with the types of this process.

        Raises:
          JobError: the job failed; what was raised is the cause.
          SerializationError: the function's result is of a type that cannot come back.
        """
        if answer.failure is not None:
            raise answer.failure.job_error(self.name, output, self._cause(answer))
        record = deserialize(answer.record, file=self.name)
        out_tree = record.out_tree
        reason = answer.not_sent
        if answer.objects:
            try:
                out_tree = with_types_of(out_tree, tree_spec(self._channel.unpack(answer.objects)))
            except BridgeError:
                raise
            except Exception as e:  # of the user's types
                reason = f"{type(e).__name__}: {e}"
        unknown = [node.name for node in typed_nodes(out_tree) if node.codec is None]
        if unknown:
            raise SerializationError(
                f"The result of {self.name!r} has a {unknown[0]}, which did not come back from the "
                f"process that exported it{f' ({reason})' if reason else ''}. Register the type "
                "for files, in a module that both processes import, with "
                "register_pytree_node_serialization or register_namedtuple_serialization."
            )
        in_tree = with_types_of(record.in_tree, self._structure)
        return replace(record, in_tree=in_tree, out_tree=out_tree)

    def _cause(self, answer: Answer) -> BaseException | None:
        if not answer.objects:
            return None
        try:
            parts: Carried = self._channel.unpack(answer.objects)
            return parts.rebuilt()
        except Exception:  # its class is not known here
            return None
