"""Exceptions that the bridge raises on purpose, and the messages that they carry."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class Blank(str):
    """A value that the reader fills in, as code shows it.

    >>> str(Argument("buckets", Blank("{...}")))
    'buckets={...}'
    """

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Argument:
    """An argument of a public function, as a part of a Message.

    Attributes:
      name: of the argument.
      value: what to pass, or what was passed; `...` where the message only names the argument.
      code: what Python shows, where that is not "name=value".

    >>> str(Argument("mask")), str(Argument("oversize", {"n": "as is"}))
    ('mask', "oversize={'n': 'as is'}")
    >>> str(Argument("target", "2.17", code="Target.tensorflow('2.17')"))
    "Target.tensorflow('2.17')"
    """

    name: str
    value: Any = ...
    code: str = ""

    def __str__(self) -> str:
        return self.code or (self.name if self.value is ... else f"{self.name}={self.value!r}")


class Message(str):
    """Text of an error or a note, with the arguments that it names as parts.

    It is what Python shows. The command line writes the same parts with options in place of the
    arguments.

    >>> message = Message("Pass ", Argument("oversize", {"n": "as is"}), ".")
    >>> message
    "Pass oversize={'n': 'as is'}."
    >>> message.written(lambda argument: f"--{argument.name}")
    'Pass --oversize.'
    """

    parts: tuple[str | Argument, ...]

    def __new__(cls, *parts: object) -> Message:
        """Joins texts, arguments, other messages, and errors, which stand for their messages."""
        flat = [piece for part in parts for piece in _pieces(part)]
        message = super().__new__(cls, "".join(map(str, flat)))
        message.parts = tuple(flat)
        return message

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, self.parts

    def written(self, write: Callable[[Argument], str]) -> str:
        """Returns the text with each argument as `write` writes it."""
        return "".join(write(p) if isinstance(p, Argument) else p for p in self.parts)


def _pieces(part: object) -> tuple[str | Argument, ...]:
    if isinstance(part, BaseException) and part.args and str(part) == part.args[0]:
        part = part.args[0]
    if isinstance(part, Message):
        return part.parts
    return (part if isinstance(part, Argument) else str(part),)


class BridgeError(Exception):
    """Base of all exceptions that the bridge raises on purpose."""

    # TensorFlow's AutoGraph replaces what is raised within a tf.function by an exception of its
    # own, which no `except ValueError` catches, unless it has an attribute of this name.
    ag_pass_through = True

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would call the class with the message alone, and most of ours take more.
        return _restored, (type(self), self.args, self.__dict__)


class MissingDependencyError(BridgeError, ImportError):
    """A package that this half of the bridge needs is not installed."""

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        """`package` is missing, `extra` brings it, `needed_for` says who asked."""
        super().__init__(
            f"{needed_for} needs {package}, which is not installed here. "
            f"Install it with: pip install 'jax2tf-bridge[{extra}]'"
        )
        self.package, self.extra = package, extra


class TargetError(BridgeError, ValueError):
    """A target or platform that does not exist."""


class FunctionError(BridgeError, TypeError, ValueError):
    """Something that is no function, or none that can be exported.

    A TypeError as jax.jit's, and a ValueError as jax.export's.
    """


class ExportError(BridgeError, ValueError):
    """A JAX function that cannot be exported as asked."""


class NotExportableError(ExportError, NotImplementedError):
    """Function with something that no export can carry, such as a host callback."""


class UnsupportedByTargetError(ExportError, NotImplementedError):
    """Module with an op or custom call that the target cannot run.

    Attributes:
      operation: the op or the custom call's name.
      source: the user's source line, as "file:line", where it is known.
    """

    def __init__(
        self, message: str, *, operation: str, source: str | None, reason: str = ""
    ) -> None:
        """`message` is the whole text; `reason` its part that does not name the platform."""
        super().__init__(message)
        self.operation, self.source = operation, source
        self.reason = reason or message


class PlatformError(ExportError):
    """Function that cannot be lowered for the platforms asked for.

    Attributes:
      reasons: for each platform that failed, why.
    """

    def __init__(self, message: str, *, reasons: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)


class ShapeError(BridgeError, ValueError):
    """A shape that does not match the specification or the portable function."""


class InconclusiveShapeError(ShapeError, TypeError):
    """Tracing asked something about the sizes that has no single answer.

    A TypeError as JAX's where shapes do not fit each other, a ValueError as every ShapeError.

    Attributes:
      comparison: what was asked, as "b >= 5".
      counterexample: sizes for which it does not hold, by variable; None if none is known.
      requirements: the constraints under which the function can be exported; empty if there are
        none.
      source: the user's source line, as "file:line (function)", where it is known.
    """

    def __init__(
        self,
        message: str,
        *,
        comparison: str,
        counterexample: Mapping[str, int] | None = None,
        requirements: Sequence[str] = (),
        source: str | None = None,
    ) -> None:
        super().__init__(message)
        self.comparison, self.source = comparison, source
        self.counterexample = None if counterexample is None else dict(counterexample)
        self.requirements = tuple(requirements)


class UnsoundBucketsError(ShapeError):
    """Padding to buckets, or running in pieces, would change results.

    Attributes:
      output: the name of a result that changes.
      sizes: the sizes at which it was seen, by variable.
      bucket: to what they were padded, by variable.
      difference: by how much it changed, at most.
    """

    def __init__(
        self,
        message: str,
        *,
        output: str,
        sizes: Mapping[str, int],
        bucket: Mapping[str, int],
        difference: float,
    ) -> None:
        super().__init__(message)
        self.output, self.sizes, self.bucket = output, dict(sizes), dict(bucket)
        self.difference = difference


class DTypeError(BridgeError, TypeError, ValueError):
    """A dtype that TensorFlow or JAX lacks, or that differs from the expected one.

    A TypeError for arguments, as jax.jit's, and a ValueError for results that are not as declared,
    as jax2tf's. It is both wherever it is raised, so that callers need not know which.
    """


class StructureError(BridgeError, TypeError, ValueError):
    """A pytree whose structure differs from the expected one.

    A TypeError as TensorFlow's, and a ValueError as JAX's.
    """


class ArgumentsError(ShapeError, DTypeError):
    """Arguments that differ from the portable function's, some by shape and some by dtype."""


class GradientError(BridgeError, LookupError, TypeError, ValueError):
    """A gradient was asked for that does not exist; the text says why.

    A LookupError as TensorFlow's, a ValueError as JAX's of loops, and a TypeError as JAX's where
    there is no forward mode.
    """


class ModuleError(BridgeError, ValueError):
    """StableHLO module that is unreadable, too new, or unlike the function around it."""


class StateDictError(StructureError):
    """A tree without a state dict, or a state dict that does not fit what it is restored into.

    Attributes:
      path: where, as "params/layers_0/kernel"; "" for the whole.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class FileFormatError(BridgeError, ValueError):
    """Bytes that are not of the format they claim to be, or of a newer version of it.

    Attributes:
      file: where they were read from; None if they were given as bytes.
    """

    def __init__(self, message: str, *, file: str | None = None) -> None:
        super().__init__(message)
        self.file = file


class SerializationError(BridgeError, TypeError, ValueError):
    """Something that a file format cannot hold; nothing is written.

    A ValueError as jax.export's, and a TypeError as that of flax.serialization.
    """


class SavingError(BridgeError, ValueError):
    """A SavedModel that cannot be written as asked; what was at its path is still there."""


class LayerError(BridgeError, ValueError):
    """A Keras layer that cannot be made, called or saved as asked."""


class ShardingError(BridgeError, ValueError):
    """A function over several devices that TensorFlow cannot run on one, or not in eager mode."""


class DeviceError(BridgeError, ValueError):
    """Devices that this process does not have, or that cannot be told apart."""


class NotPicklableError(BridgeError, TypeError):
    """Something that cannot be sent to another process.

    Attributes:
      culprit: the name of what is to blame, as "train_step.<locals>.lock"; "" if unknown.
    """

    def __init__(self, message: str, *, culprit: str = "") -> None:
        super().__init__(message)
        self.culprit = culprit


class UntrustedMessageError(BridgeError, ValueError):
    """Bytes that did not come over a channel of this process; nothing of them was unpickled."""


class CallTfError(BridgeError, RuntimeError):
    """A TensorFlow function that JAX called has failed; its cause is what it raised.

    Attributes:
      function: its name.
      operation: the TensorFlow operation that failed, as far as that is known.
    """

    def __init__(self, message: str, *, function: str, operation: str | None = None) -> None:
        super().__init__(message)
        self.function, self.operation = function, operation


class JobError(BridgeError, RuntimeError):
    """An export in another process that failed.

    Attributes:
      job: its name.
      output: what the process had printed, as far as that is known.
    """

    def __init__(self, message: str, *, job: str, output: str = "") -> None:
        super().__init__(message)
        self.job, self.output = job, output


class WorkerDiedError(JobError):
    """Exporting process that ended before it answered.

    Attributes:
      exit_code: of the process, negative for a signal; None if it is not known.
    """

    def __init__(
        self, message: str, *, job: str, output: str = "", exit_code: int | None = None
    ) -> None:
        super().__init__(message, job=job, output=output)
        self.exit_code = exit_code


class ExportManyError(BridgeError, ExceptionGroup[BridgeError]):
    """Some of many exports failed; the others are done.

    It is a group of exceptions, so that `except*` finds the kinds that are in it.

    Attributes:
      results: the portable functions of the jobs that went well, by name.
      errors: for each of the others why not: a JobError whose cause is what was raised, or what
        kept it from being sent.
    """

    results: Mapping[str, Any]
    errors: Mapping[str, BridgeError]

    @staticmethod
    def of(results: Mapping[str, Any], errors: Mapping[str, BridgeError]) -> ExportManyError:
        """Makes the error for the results and errors of all jobs."""
        count = len(results) + len(errors)
        lines = bullet_list([str(error).partition("\n")[0] for error in errors.values()])
        error = ExportManyError(
            f"{len(errors)} of {count} exports failed:{lines}\n", [*errors.values()]
        )
        error.results, error.errors = dict(results), dict(errors)
        return error

    def derive(self, excs: Sequence[BridgeError], /) -> ExportManyError:  # type: ignore[override]
        """A part of the group, with all of its results."""
        error = ExportManyError(self.message, excs)
        error.results = self.results
        error.errors = {name: e for name, e in self.errors.items() if e in excs}
        return error


class _PathText(OSError):
    """An OSError whose text begins with its path, and whose strerror goes on from there."""

    def __str__(self) -> str:
        return str(message_of(self))

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self).__mro__[2]  # the type of Python's; ours has no name to be found by
        return path_error, (kind, self.errno, self.strerror, self.filename)


def path_error(kind: type[OSError], code: int, text: str, path: str | os.PathLike[str]) -> OSError:
    """An error of the system's kinds about a path, to be raised.

    Args:
      kind: of the error, as FileExistsError.
      code: of `errno`.
      text: what is the matter, as it goes on behind the path: "is there already".
      path: the file or folder.

    >>> path_error(FileExistsError, 17, "is there already", "model")
    FileExistsError(17, 'is there already')
    >>> print(path_error(FileExistsError, 17, "is there already", "model"))
    model is there already
    """
    named: type[OSError] = type(kind.__name__, (_PathText, kind), {"__module__": kind.__module__})
    return named(code, text, os.fspath(path))


def message_of(error: BaseException) -> Message:
    """Returns the text of an error with its arguments, where it has them.

    >>> message_of(ShapeError(Message("Give ", Argument("mask"), "."))).parts
    ('Give ', Argument(name='mask', value=Ellipsis, code=''), '.')
    """
    if isinstance(error, _PathText):
        return Message(error.filename, " ", error.strerror)
    return Message(error)


def _restored(
    kind: type[BridgeError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> BridgeError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def mismatch(
    text: str, shapes: Sequence[str], dtypes: Sequence[str], advice: str
) -> ShapeError | DTypeError:
    """Makes the error for arrays that differ from what is expected.

    Args:
      text: what does not fit: "The arguments of f do not fit".
      shapes: a line for each array of another shape.
      dtypes: a line for each array of another dtype.
      advice: what to do, on lines of its own.

    >>> type(mismatch("The weights do not fit", ["w: expected shape (3,), got (4,)"], [], ""))
    <class 'jax2tf_bridge.errors.ShapeError'>
    """
    kind = ArgumentsError if shapes and dtypes else ShapeError if shapes else DTypeError
    return kind(f"{text}:{bullet_list([*shapes, *dtypes])}\n{advice}".rstrip())


def bullet_list(lines: Sequence[str]) -> Message:
    """Writes `lines` one below the other, each with a dash, for the end of a message."""
    return Message(*(part for line in lines for part in ("\n  - ", line)))
