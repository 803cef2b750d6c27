"""Exceptions that the bridge raises on purpose, and the messages that they carry."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge._utils import ItemsByName


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
      name: its name.
      value: what to pass, or what was passed; `...` where the message only names the argument.
      code: the code that Python shows, if it is not "name=value".

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

    Python shows the text. The command line shows options in place of the arguments.

    >>> message = Message("Pass ", Argument("oversize", {"n": "as is"}), ".")
    >>> message
    "Pass oversize={'n': 'as is'}."
    >>> message.format_with(lambda argument: f"--{argument.name}")
    'Pass --oversize.'
    """

    parts: tuple[str | Argument, ...]

    def __new__(cls, *parts: object) -> Message:
        """Joins texts, arguments, other messages, and the messages of errors."""
        flat = [piece for part in parts for piece in _split_parts(part)]
        message = super().__new__(cls, "".join(map(str, flat)))
        message.parts = tuple(flat)
        return message

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, self.parts

    def format_with(self, write: Callable[[Argument], str]) -> str:
        """Returns the text with each argument formatted by `write`."""
        return "".join(write(p) if isinstance(p, Argument) else p for p in self.parts)


def _split_parts(part: object) -> tuple[str | Argument, ...]:
    if isinstance(part, BaseException) and part.args and str(part) == part.args[0]:
        part = part.args[0]
    if isinstance(part, Message):
        return part.parts
    return (part if isinstance(part, Argument) else str(part),)


class BridgeError(Exception):
    """Base of the bridge's own exception classes.

    docs/errors.md lists them: when each is raised, what to do, and which errors are Python's own.
    """

    # TensorFlow's AutoGraph replaces exceptions within a tf.function by its own, which
    # `except ValueError` does not catch, unless they have this attribute.
    ag_pass_through = True

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would pass the message alone to the class; most classes here need more.
        return _restore, (type(self), self.args, self.__dict__)


class MissingDependencyError(BridgeError, ImportError):
    """A package that this half of the bridge needs is not installed."""

    def __init__(
        self, package: str, extra: str, needed_for: str, *, command: str | None = None
    ) -> None:
        """`package` is missing, `extra` installs it, `needed_for` is the feature that needs it.

        If no extra of the bridge installs the package, `command` does, and `extra` is its name.
        """
        command = command or f"pip install 'jax2tf-bridge[{extra}]'"
        super().__init__(
            f"{needed_for} needs {package}, which is not installed here. Install it with: {command}"
        )
        self.package, self.extra = package, extra


_PACKAGES = {
    "apache_beam": ("Apache Beam", "beam"),
    "jax": ("JAX", "jax"),
    "onnx": ("onnx", "onnx"),
    "orbax": ("orbax-checkpoint", "orbax"),
    "orbax.checkpoint": ("orbax-checkpoint", "orbax"),
    "tensorflow": ("TensorFlow", "tensorflow-cpu"),
}
"""Packages that users choose to install: the name in messages and the extra, by the module."""


@contextlib.contextmanager
def name_missing_package(needed_for: str) -> Iterator[None]:
    """Makes imports in a `with` block say how to install a package that is missing.

    Args:
      needed_for: the feature that needs the package, for the message.

    Raises:
      MissingDependencyError: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        if e.name not in _PACKAGES:
            raise
        raise MissingDependencyError(*_PACKAGES[e.name], needed_for) from e


class TargetError(BridgeError, ValueError):
    """A target or platform that does not exist."""


class FunctionError(BridgeError, TypeError, ValueError):
    """An object that is not a function, or a function that cannot be exported.

    A TypeError like jax.jit's, and a ValueError like jax.export's.
    """


class ExportError(BridgeError, ValueError):
    """A JAX function that cannot be exported as requested."""


class NotExportableError(ExportError, NotImplementedError):
    """Function with a part that no export can contain, such as a host callback."""


class UnsupportedByTargetError(ExportError, NotImplementedError):
    """Module with an op or custom call that the target cannot run.

    Attributes:
      operation: the op or the custom call's name.
      source: the user's source line, as "file:line", where it is known.
    """

    def __init__(
        self, message: str, *, operation: str, source: str | None, reason: str = ""
    ) -> None:
        """`message` is the whole text; `reason` is its part that does not name the platform."""
        super().__init__(message)
        self.operation, self.source = operation, source
        self.reason = reason or message


class PlatformError(ExportError):
    """Function that cannot be lowered for the requested platforms.

    Attributes:
      reasons: the reason of the failure, by platform.
    """

    def __init__(self, message: str, *, reasons: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)


class ShapeError(BridgeError, ValueError):
    """A shape that does not match the specification or the portable function."""


class InconclusiveShapeError(ShapeError, TypeError):
    """A comparison of symbolic sizes that tracing cannot decide.

    A TypeError like JAX's for shapes that do not fit each other, and a ValueError like every
    ShapeError.

    Attributes:
      comparison: the comparison, as "b >= 5".
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
      sizes: the sizes at which it changed, by variable.
      bucket: the sizes that they were padded to, by variable.
      difference: the largest change.
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

    jax.jit raises a TypeError for arguments; jax2tf raises a ValueError for results that are not
    as declared. This error is always both, so that callers need not know which.
    """


class StructureError(BridgeError, TypeError, ValueError):
    """A pytree whose structure differs from the expected one.

    A TypeError like TensorFlow's, and a ValueError like JAX's.
    """


class ArgumentsError(ShapeError, DTypeError):
    """Arguments that differ from the portable function's, some by shape and some by dtype."""


class GradientError(BridgeError, LookupError, TypeError, ValueError):
    """A requested gradient does not exist; the text says why.

    A LookupError like TensorFlow's, a ValueError like JAX's for loops, and a TypeError like JAX's
    for functions without forward mode.
    """


class ModuleError(BridgeError, ValueError):
    """StableHLO module that is unreadable, too new, or unlike the function around it."""


class StateDictError(StructureError):
    """A tree without a state dict, or a state dict that does not fit what it is restored into.

    Attributes:
      path: the path of the part, as "params/layers_0/kernel"; "" for the whole.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class FileFormatError(BridgeError, ValueError):
    """Bytes that are not in the format that they claim, or in a newer version of it.

    Attributes:
      file: the file that they were read from; None if they were passed as bytes.
    """

    def __init__(self, message: str, *, file: str | None = None) -> None:
        super().__init__(message)
        self.file = file


class SerializationError(BridgeError, TypeError, ValueError):
    """An object that a file format cannot hold; nothing is written.

    A ValueError like jax.export's, and a TypeError like that of flax.serialization.
    """


class SavingError(BridgeError, ValueError):
    """A SavedModel that cannot be written as requested; its path is left unchanged."""


class LayerError(BridgeError, ValueError):
    """A Keras layer that cannot be built, called or saved as requested."""


class ShardingError(BridgeError, ValueError):
    """A function over several devices that TensorFlow cannot run on one, or not in eager mode."""


class DeviceError(BridgeError, ValueError):
    """Devices that this process does not have, or that cannot be told apart."""


class NotPicklableError(BridgeError, TypeError):
    """An object that cannot be sent to another process.

    Attributes:
      culprit: the name of the part that is the cause, as "train_step.<locals>.lock"; "" if unknown.
    """

    def __init__(self, message: str, *, culprit: str = "") -> None:
        super().__init__(message)
        self.culprit = culprit


class UntrustedMessageError(BridgeError, ValueError):
    """Bytes that did not come over a channel of this process; they were not unpickled."""


class CallTfError(BridgeError, RuntimeError):
    """A TensorFlow function that JAX called has failed; `__cause__` is its exception.

    Attributes:
      function: its name.
      operation: the TensorFlow operation that failed; None if unknown.
    """

    def __init__(self, message: str, *, function: str, operation: str | None = None) -> None:
        super().__init__(message)
        self.function, self.operation = function, operation


class JobError(BridgeError, RuntimeError):
    """An export in another process that failed.

    Attributes:
      job: its name.
      output: the output of the process; "" if unknown.
    """

    def __init__(self, message: str, *, job: str, output: str = "") -> None:
        super().__init__(message)
        self.job, self.output = job, output


class WorkerDiedError(JobError):
    """Exporting process that ended before it answered.

    Attributes:
      exit_code: its exit code, negative for a signal; None if unknown.
    """

    def __init__(
        self, message: str, *, job: str, output: str = "", exit_code: int | None = None
    ) -> None:
        super().__init__(message, job=job, output=output)
        self.exit_code = exit_code


class ExportManyError(BridgeError, ExceptionGroup[BridgeError]):
    """Some of many exports failed; the others are done.

    It is an exception group, so that `except*` catches the kinds of its errors.

    Attributes:
      results: the portable functions of the jobs that succeeded, by name.
      errors: the error of each job that failed, by name: a JobError, whose cause is the exception
        that the job raised, or the error that kept the job from being sent.
    """

    results: Mapping[str, Any]
    errors: Mapping[str, BridgeError]

    @staticmethod
    def of(results: Mapping[str, Any], errors: Mapping[str, BridgeError]) -> ExportManyError:
        """Makes the error for the results and errors of all jobs."""
        count = len(results) + len(errors)
        lines = format_bullets([str(error).partition("\n")[0] for error in errors.values()])
        error = ExportManyError(
            f"{len(errors)} of {count} exports failed:{lines}\n", [*errors.values()]
        )
        error.results = ItemsByName("finished job", results)
        error.errors = ItemsByName("failed job", errors)
        return error

    def derive(self, excs: Sequence[BridgeError], /) -> ExportManyError:  # type: ignore[override]
        """Makes a subgroup that keeps all results."""
        error = ExportManyError(self.message, excs)
        error.results = self.results
        remaining = {name: e for name, e in self.errors.items() if e in excs}
        error.errors = ItemsByName("failed job", remaining)
        return error


class _PathText(OSError):
    """An OSError whose text is its path and then its strerror."""

    def __str__(self) -> str:
        return str(get_message(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return make_path_error, (self.errno, self.strerror, self.filename)


def make_path_error(code: int, text: str, path: str | os.PathLike[str]) -> OSError:
    """Makes an OSError whose text starts with a path.

    Args:
      code: its errno, which determines its class: errno.EEXIST makes a FileExistsError.
      text: the problem, as it follows the path: "already exists".
      path: the file or folder.

    >>> make_path_error(17, "already exists", "model")
    FileExistsError(17, 'already exists')
    >>> print(make_path_error(17, "already exists", "model"))
    model already exists
    """
    kind = type(OSError(code, ""))
    named: type[OSError] = type(kind.__name__, (_PathText, kind), {"__module__": kind.__module__})
    return named(code, text, os.fspath(path))


def get_message(error: BaseException) -> Message:
    """Returns the message of an error, with its arguments if it has any.

    >>> get_message(ShapeError(Message("Give ", Argument("mask"), "."))).parts
    ('Give ', Argument(name='mask', value=Ellipsis, code=''), '.')
    """
    if isinstance(error, _PathText):
        return Message(error.filename, " ", error.strerror)
    return Message(error)


def _restore(
    kind: type[BridgeError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> BridgeError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def make_mismatch_error(
    text: str, shapes: Sequence[str], dtypes: Sequence[str], advice: str
) -> ShapeError | DTypeError:
    """Makes the error for arrays that differ from what is expected.

    Args:
      text: the first sentence, as "The arguments of f do not fit".
      shapes: a line for each array of another shape.
      dtypes: a line for each array of another dtype.
      advice: what to do, on a new line.

    >>> shapes = ["w: expected shape (3,), got (4,)"]
    >>> type(make_mismatch_error("The weights do not fit", shapes, [], ""))
    <class 'jax2tf_bridge.errors.ShapeError'>
    """
    kind = ArgumentsError if shapes and dtypes else ShapeError if shapes else DTypeError
    return kind(f"{text}:{format_bullets([*shapes, *dtypes])}\n{advice}".rstrip())


def format_bullets(lines: Sequence[str], most: int | None = None) -> Message:
    """Formats lines, or the first of them, as a bulleted list for the end of a message."""
    if most is not None and len(lines) > most:
        lines = [*lines[:most], f"and {len(lines) - most} more"]
    return Message(*(part for line in lines for part in ("\n  - ", line)))
