"""Exceptions from another process: as what they were where that can be, and as text always."""

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
class Failure:
    """What was raised in another process, as text.

    Attributes:
      kind: the exception's type, by name.
      text: the exception's text.
      source: the user's line, as "file:line (function)", if one is known.
      trace: the traceback, as Python prints it.
    """

    kind: str
    text: str
    source: str | None
    trace: str

    @staticmethod
    def of(error: BaseException) -> Failure:
        """The texts of an exception that was caught."""
        text = _text(error)
        trace = "".join(traceback.format_exception(error))
        return Failure(type(error).__name__, text, user_line(error), trace)

    def job_error(
        self, name: str, output: str, cause: BaseException | None, *, what: str = ""
    ) -> JobError:
        """The error of a job, with the exception itself as its cause if there is one.

        `what` is what failed, where that is not the export itself.
        """
        place = f" (at {self.source})" if self.source and self.source not in self.text else ""
        failed = what or f"The export of {name!r}"
        text = f"{failed} failed{place}: {self.kind}: {self.text}"
        if cause is None:
            # The traceback of a cause is a note of it, which Python shows.
            text = f"{text}\n\n{self.trace.rstrip()}"
        else:
            cause.add_note(f"\nWhere it was raised:\n{self.trace.rstrip()}")
        error = JobError(text, job=name, output=output)
        error.__cause__ = cause
        return error


@dataclass(frozen=True)
class Carried:
    """An exception's parts, since many cannot be made anew by their __init__."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    attributes: dict[str, Any]

    def rebuilt(self) -> BaseException:
        """The exception, without its traceback and causes."""
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        for name, value in self.attributes.items():
            setattr(error, name, value)
        return error


def carried(error: BaseException) -> Carried | None:
    """What another process can make the exception of; None where that would be another one."""
    attributes = {name: v for name, v in vars(error).items() if _is_picklable(v)}
    parts = Carried(type(error), error.args, attributes)
    try:
        again = loads(dumps(parts)).rebuilt()
        kept = type(again).__name__ == type(error).__name__ and str(again) == str(error)
    except Exception:  # whatever the classes of the user's exceptions do
        return None
    return parts if kept else None


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
    """The error for a process that ended in the middle.

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
    """The error for a process that was ended, since it took longer than `timeout` seconds."""
    return JobError(
        f"{name!r} took longer than {timeout:g} s, and its process was ended.{_printed(output)}",
        job=name,
        output=output,
    )


def _printed(output: str) -> str:
    return f" It had printed:\n{_shortened(output)}" if output.strip() else " It printed nothing."


def executor_error(name: str, error: BaseException) -> JobError:
    """The error for a job whose executor failed: the function raised nothing."""
    text = f"The executor failed with the export of {name!r}: {type(error).__name__}: {error}"
    found: JobError
    if isinstance(error, BrokenExecutor):
        found = WorkerDiedError(
            f"{text} It does not say which job ended its process, and takes no further ones. The "
            "bridge's own workers (executor=None) do.",
            job=name,
        )
    else:
        found = JobError(text, job=name)
    found.__cause__ = error
    return found


def cannot_be_sent(name: str, parts: Sequence[object]) -> NotPicklableError | None:
    """The error for a job that cannot be pickled at all; None if it can be.

    Args:
      name: the job.
      parts: of it, the likeliest to fail first.
    """
    for part in parts:
        try:
            dumps(part)
        except NotPicklableError as e:
            return NotPicklableError(f"The export of {name!r}: {e}", culprit=e.culprit)
    return None


def cannot_be_named(name: str, function: Any, sent: object) -> NotPicklableError | None:
    """The error for a function that plain pickle cannot send; None if it can.

    Args:
      name: the job.
      function: the user's.
      sent: what stands for it in a message.
    """
    try:
        pickle.dumps(sent)
    except Exception as e:  # whatever __reduce__ raises
        culprit = str(getattr(function, "__qualname__", type(function).__qualname__))
        return NotPicklableError(
            f"The export of {name!r}: pickle, by which the executor sends functions, cannot send "
            f"{culprit}: {e}. It finds functions by their names at the top of modules. Define it "
            "there, or export with the bridge's own workers (executor=None), which take any.",
            culprit=culprit,
        )
    return None


def _shortened(output: str) -> str:
    """The last of what was printed."""
    output = output.rstrip()
    if len(output) <= _MOST_SHOWN:
        return output
    return "..." + output[-_MOST_SHOWN:]
