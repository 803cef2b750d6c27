"""Exceptions of jobs: sent from another process, or raised for a process that died."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from signal import Signals
from typing import Any

from jax2tf_bridge.colocated._pickling import dumps, loads
from jax2tf_bridge.errors import JobError, NotPicklableError, WorkerDiedError
from jax2tf_bridge.from_jax.arguments._user_code import user_line

_MOST_SHOWN = 4096
"""Characters of what a process printed that are part of a message."""


@dataclass(frozen=True)
class ExceptionParts:
    """Type, args and attributes of an exception: many cannot be made anew by their __init__."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    attributes: dict[str, Any]

    @staticmethod
    def of(error: BaseException) -> ExceptionParts | None:
        """Takes an exception apart; None if another process would rebuild another one."""
        attributes = {name: v for name, v in vars(error).items() if _is_picklable(v)}
        parts = ExceptionParts(type(error), error.args, attributes)
        try:
            again = loads(dumps(parts)).rebuilt()
            kept = type(again).__name__ == type(error).__name__ and str(again) == str(error)
        except Exception:  # whatever the classes of the user's exceptions do
            return None
        return parts if kept else None

    def rebuilt(self) -> BaseException:
        """Makes the exception again, without its traceback and causes."""
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        for name, value in self.attributes.items():
            setattr(error, name, value)
        return error


@dataclass(frozen=True)
class Failure:
    """An exception that was raised in another process: as text, and as itself where it can be.

    Attributes:
      kind: the exception's type, by name.
      text: the exception's text.
      source: the user's line, as "file:line (function)", if one is known.
      trace: the traceback, as Python prints it.
      parts: what the exception is made of; None if it cannot be sent.
    """

    kind: str
    text: str
    source: str | None
    trace: str
    parts: ExceptionParts | None

    @staticmethod
    def of(error: BaseException) -> Failure:
        """Describes an exception that was caught."""
        trace = "".join(traceback.format_exception(error))
        parts = ExceptionParts.of(error)
        return Failure(type(error).__name__, _text(error), user_line(error), trace, parts)

    def job_error(
        self, name: str, output: str, cause: BaseException | None = None, *, action: str = ""
    ) -> JobError:
        """Makes the error of a job, with the exception itself as its cause if it was sent.

        Args:
          name: of the job.
          output: what its process printed.
          cause: the exception, if it was raised in this process.
          action: what failed, where that is not the export itself.
        """
        if cause is None and self.parts is not None:
            cause = self.parts.rebuilt()
        place = f" (at {self.source})" if self.source and self.source not in self.text else ""
        failed = action or f"The export of {name!r}"
        text = f"{failed} failed{place}: {self.kind}: {self.text}"
        if cause is None:
            # The traceback of a cause is a note of it, which Python shows.
            text = f"{text}\n\n{self.trace.rstrip()}"
        else:
            cause.add_note(f"\nWhere it was raised:\n{self.trace.rstrip()}")
        error = JobError(text, job=name, output=output)
        error.__cause__ = cause
        return error


def _is_picklable(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:  # whatever __reduce__ raises
        return False
    return True


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as e:  # the user's own __str__
        return f"(its text cannot be made: {type(e).__name__})"


def worker_died(
    name: str, exit_code: int | None, output: str, *, starting: bool
) -> WorkerDiedError:
    """Makes the error for a process that ended without an answer.

    Args:
      name: the job that it had.
      exit_code: of the process, negative for a signal.
      output: what it had printed.
      starting: whether it had not begun with the job yet.
    """
    how = "ended without an answer"
    if exit_code is not None and exit_code < 0:
        signal = Signals(-exit_code).name if -exit_code in set(Signals) else f"signal {-exit_code}"
        how = f"was ended by {signal}"
        if signal == "SIGKILL":
            how += ", as the system does where memory runs out"
    elif exit_code is not None:
        how = f"ended with exit code {exit_code}"
    when = (
        f"was to export {name!r} {how} while it started" if starting else f"exported {name!r} {how}"
    )
    return WorkerDiedError(
        f"The process that {when}.{_printed(output)}", job=name, output=output, exit_code=exit_code
    )


def out_of_time(name: str, timeout: float, output: str) -> JobError:
    """Makes the error for a process that was ended after `timeout` seconds."""
    return JobError(
        f"{name!r} took longer than {timeout:g} s, and its process was ended.{_printed(output)}",
        job=name,
        output=output,
    )


def _printed(output: str) -> str:
    shown = output.rstrip()
    if not shown:
        return " It printed nothing."
    return f" It had printed:\n{'...' if len(shown) > _MOST_SHOWN else ''}{shown[-_MOST_SHOWN:]}"


def executor_error(name: str, error: BaseException) -> JobError:
    """Makes the error for a job whose executor failed; the function itself raised nothing."""
    text = f"The executor failed with the export of {name!r}: {type(error).__name__}: {error}"
    found: JobError
    if isinstance(error, BrokenExecutor):
        found = WorkerDiedError(
            f"{text} It does not say which job ended its process, and takes no further jobs. Use "
            "the bridge's own workers (executor=None), which do both.",
            job=name,
        )
    else:
        found = JobError(text, job=name)
    found.__cause__ = error
    return found


def cannot_be_sent(name: str, parts: Sequence[object]) -> NotPicklableError | None:
    """Makes the error for a job that cannot be pickled; None if it can be.

    `parts` are tried in order: first those that are the likeliest to fail.
    """
    for part in parts:
        try:
            dumps(part)
        except NotPicklableError as e:
            return NotPicklableError(f"The export of {name!r}: {e}", culprit=e.culprit)
    return None


def cannot_be_named(name: str, function: Any, sent: object) -> NotPicklableError | None:
    """Makes the error for a function that plain pickle cannot send; None if it can.

    `sent` stands for the function in a message.
    """
    try:
        pickle.dumps(sent)
    except Exception as e:  # whatever __reduce__ raises
        culprit = str(getattr(function, "__qualname__", type(function).__qualname__))
        return NotPicklableError(
            f"The export of {name!r} needs {culprit}, which the executor cannot send: {e}. It uses "
            "pickle, which finds functions by their names at the top of modules. Define the "
            "function there, or use the bridge's own workers (executor=None), which take any.",
            culprit=culprit,
        )
    return None
