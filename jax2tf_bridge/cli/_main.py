"""Runs a command line, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence

from jax2tf_bridge.cli._commands import UsageError
from jax2tf_bridge.cli._console import Console, first_line, for_command_line
from jax2tf_bridge.cli._packages import quiet_tensorflow
from jax2tf_bridge.cli._parser import parse
from jax2tf_bridge.cli._references import UserCodeError
from jax2tf_bridge.errors import BridgeError, TargetError, get_message

REFUSED, USAGE, PIPE_CLOSED = 1, 2, 141
"""Exit codes other than 0; the last is that of shells for SIGPIPE."""


def run(argv: Sequence[str] | None) -> int:
    """Runs the command and returns its exit code.

    Raises:
      KeyboardInterrupt: after Ctrl-C.
    """
    options = argparse.Namespace(debug=False)
    words = sys.argv[1:] if argv is None else argv
    quiet_tensorflow(debug="--debug" in words, is_timed="verify" in words[:1])
    try:
        options = parse(words)
        options.run(options)
        sys.stdout.flush()
    except SystemExit as e:  # --help and --version
        return int(e.code or 0)
    except BrokenPipeError:
        # Python flushes stdout when it exits, which would fail again.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as e:
        if options.debug:
            traceback.print_exc()
        Console().error(_text(e, options))
        is_usage = isinstance(e, (UsageError, TargetError)) or _is_missing_path(e, options)
        return USAGE if is_usage else REFUSED
    return 0


def _is_missing_path(error: Exception, options: argparse.Namespace) -> bool:
    """Returns whether the error is that a path on the command line does not exist."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)) or not error.filename:
        return False
    # The output need not exist yet.
    read = [value for key, value in vars(options).items() if key != "output"]
    # [NAME=]PATH, once per signature.
    read += [path for value in read if isinstance(value, list) for path in value]
    read += [path for value in read if isinstance(value, tuple) for path in value]
    named = {os.fspath(value) for value in read if isinstance(value, (str, os.PathLike))}
    name = os.fspath(error.filename)
    return name in named and not os.path.exists(name)


def _text(error: Exception, options: argparse.Namespace) -> str:
    if isinstance(error, UserCodeError | UsageError):
        return str(error)
    if isinstance(error, BridgeError):
        return for_command_line(get_message(error), options)
    if isinstance(error, OSError) and error.strerror:
        if not str(error).startswith("[Errno "):
            return for_command_line(get_message(error), options)  # a sentence of the bridge's
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror}"
    return f"{type(error).__name__}: {first_line(error)} (--debug shows all of it)"
