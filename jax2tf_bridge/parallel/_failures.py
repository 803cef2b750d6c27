"""Sends the exceptions of jobs from one process to another."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.colocated import dumps, loads
from jax2tf_bridge.errors import JobError
from jax2tf_bridge.from_jax.source_lines import user_line


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
        subject = action or f"The export of {name!r}"
        text = f"{subject} failed{place}: {self.kind}: {self.text}"
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
