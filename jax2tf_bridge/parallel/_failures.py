"""Exceptions of jobs, sent from another process or made for a process that died."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from signal import Signals
from typing import Any

from jax2tf_bridge.colocated import dumps, loads
from jax2tf_bridge.errors import JobError, NotPicklableError, WorkerDiedError
from jax2tf_bridge.from_jax.source_lines import user_line

_MAX_OUTPUT_CHARACTERS = 4096
"""Maximum number of characters of a process's output in an error message."""


@dataclass(frozen=True)
class ExceptionParts:
    """Type, args and attributes of an exception.

    Exceptions are rebuilt without __init__, because many cannot be made from their args.
    """

    kind: type[BaseException]
    args: tuple[Any, ...]
    attributes: dict[str, Any]

    @staticmethod
    def of(error: BaseException) -> ExceptionParts | None:
        """Splits an exception into its parts; None if they rebuild a different exception."""
        attributes = {name: v for name, v in vars(error).items() if _is_picklable(v)}
        parts = ExceptionParts(type(error), error.args, attributes)
        try:
            copy = loads(dumps(parts)).rebuild()
            is_same = type(copy).__name__ == type(error).__name__ and str(copy) == str(error)
        except Exception:  # the user's exception classes may raise anything
            return None
        return parts if is_same else None

    def rebuild(self) -> BaseException:
        """Rebuilds the exception, without its traceback and causes."""
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        for name, value in self.attributes.items():
            setattr(error, name, value)
        return error


@dataclass(frozen=True)
class Failure:
    """An exception from another process: its texts and, if they can be sent, its parts.

    Attributes:
      kind: the exception's type, by name.
      text: the exception's text.
      source: the user's line, as "file:line (function)", if one is known.
      trace: the traceback, as Python prints it.
      parts: the parts of the exception; None if they cannot be sent.
    """

    kind: str
    text: str
    source: str | None
    trace: str
    parts: ExceptionParts | None

    @staticmethod
    def of(error: BaseException) -> Failure:
        """Makes the failure of a caught exception."""
        trace = "".join(traceback.format_exception(error))
        parts = ExceptionParts.of(error)
        return Failure(type(error).__name__, _get_text(error), user_line(error), trace, parts)

    def make_job_error(
        self, name: str, output: str, cause: BaseException | None = None, *, action: str = ""
    ) -> JobError:
        """Makes the error of a job, with the exception as its cause if it was sent.

        Args:
          name: the name of the job.
          output: the output of its process.
          cause: the exception, if it was raised in this process.
          action: the action that failed, if that is not the export itself.
        """
        if cause is None and self.parts is not None:
            cause = self.parts.rebuild()
        place = f" (at {self.source})" if self.source and self.source not in self.text else ""
        failed = action or f"The export of {name!r}"
        text = f"{failed} failed{place}: {self.kind}: {self.text}"
        if cause is None:
            # Without a cause, the text must contain the traceback; a cause shows it as a note.
            text = f"{text}\n\n{self.trace.rstrip()}"
        else:
            cause.add_note(f"\nWhere it was raised:\n{self.trace.rstrip()}")
        error = JobError(text, job=name, output=output)
        error.__cause__ = cause
        return error


def _is_picklable(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:  # __reduce__ may raise anything
        return False
    return True


def _get_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as e:  # the user's own __str__
        return f"(its text is not available: {type(e).__name__})"


def make_worker_died_error(
    name: str, exit_code: int | None, output: str, *, starting: bool
) -> WorkerDiedError:
    """Makes the error for a process that ended without an answer.

    Args:
      name: the name of its job.
      exit_code: the exit code of the process, negative for a signal.
      output: the output of the process.
      starting: whether the process ended before it began the job.
    """
    how = "ended without an answer"
    if exit_code is not None and exit_code < 0:
        signal = Signals(-exit_code).name if -exit_code in set(Signals) else f"signal {-exit_code}"
        how = f"was ended by {signal}"
        if signal == "SIGKILL":
            how += ", as the system does if memory runs out"
    elif exit_code is not None:
        how = f"ended with exit code {exit_code}"
    when = (
        f"was to export {name!r} {how} while it started" if starting else f"exported {name!r} {how}"
    )
    return WorkerDiedError(
        f"The process that {when}.{_format_output(output)}",
        job=name,
        output=output,
        exit_code=exit_code,
    )


def make_timeout_error(name: str, timeout: float, output: str) -> JobError:
    """Makes the error for a process that was killed after `timeout` seconds."""
    return JobError(
        f"{name!r} took longer than {timeout:g} s, and its process was ended."
        f"{_format_output(output)}",
        job=name,
        output=output,
    )


def _format_output(output: str) -> str:
    shown = output.rstrip()
    if not shown:
        return " It printed nothing."
    start = "..." if len(shown) > _MAX_OUTPUT_CHARACTERS else ""
    return f" It had printed:\n{start}{shown[-_MAX_OUTPUT_CHARACTERS:]}"


def make_executor_error(name: str, error: BaseException) -> JobError:
    """Makes the error for a job whose executor failed; the function itself did not raise."""
    text = f"The executor failed with the export of {name!r}: {type(error).__name__}: {error}"
    job_error: JobError
    if isinstance(error, BrokenExecutor):
        job_error = WorkerDiedError(
            f"{text} It does not say which job ended its process, and accepts no further jobs. The "
            "bridge's own workers (executor=None) name the job, and accept others.",
            job=name,
        )
    else:
        job_error = JobError(text, job=name)
    job_error.__cause__ = error
    return job_error


def find_pickle_error(name: str, parts: Sequence[object]) -> NotPicklableError | None:
    """Makes the error for a job that cannot be pickled; None if it can be.

    Tries `parts` in order; the parts that are most likely to fail come first.
    """
    for part in parts:
        try:
            dumps(part)
        except NotPicklableError as e:
            return NotPicklableError(f"The export of {name!r}: {e}", culprit=e.culprit)
    return None


def find_plain_pickle_error(name: str, function: Any, sent: object) -> NotPicklableError | None:
    """Makes the error for a function that plain pickle cannot send; None if it can.

    `sent` replaces the function in a job, and is pickled here.
    """
    try:
        pickle.dumps(sent)
    except Exception as e:  # __reduce__ may raise anything
        culprit = str(getattr(function, "__qualname__", type(function).__qualname__))
        return NotPicklableError(
            f"The export of {name!r} needs {culprit}, which the executor cannot send: {e}. It uses "
            "pickle, which finds only functions at the top of modules. Define the function there, "
            "or use the bridge's own workers (executor=None), which accept any function.",
            culprit=culprit,
        )
    return None
