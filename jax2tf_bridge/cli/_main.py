"""Parses and runs a command line, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib import metadata
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NoReturn

import jax2tf_bridge
from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.cli import (
    _checks,
    _compile,
    _completion,
    _conversions,
    _export,
    _inspect,
    _retarget,
    _save,
    _versions,
)
from jax2tf_bridge.cli._commands import Command, UsageError, UserCodeError
from jax2tf_bridge.cli._console import (
    PROGRAM,
    Console,
    format_for_command_line,
    get_first_line,
    has_colour,
    paint_help,
    quiet_tensorflow,
)
from jax2tf_bridge.errors import BridgeError, TargetError, get_message

REFUSED, USAGE, PIPE_CLOSED = 1, 2, 141
"""Exit codes other than 0; shells use the last one for SIGPIPE."""

_MAX_SIBLINGS = 1000
"""Maximum number of files of a folder among which a similar name is looked for."""

_COMMANDS = (
    _export.COMMAND,
    _save.SAVE,
    _save.PUBLISH,
    _versions.VERSIONS,
    _versions.ROLLBACK,
    _versions.PROMOTE,
    _conversions.LITERT,
    _conversions.TFJS,
    _conversions.ONNX,
    _conversions.COREML,
    _compile.COMMAND,
    _conversions.WEIGHTS,
    _inspect.COMMAND,
    _retarget.COMMAND,
    _checks.VERIFY,
    _checks.SERVE_CHECK,
    _completion.COMMAND,
)

_DESCRIPTION = """\
JAX functions for TensorFlow: export where JAX is installed, save where TensorFlow is, inspect
anywhere. A file connects the two."""

_EPILOG = f"""\
examples:
  {PROGRAM} export model:predict --args @model:params 'f32[b,28]' -o predict.jaxfn
  {PROGRAM} save predict.jaxfn -o predict/1
  {PROGRAM} inspect predict/1

exit codes: 0 all is well, 1 the bridge refused, 2 the command line is wrong
{PROGRAM} COMMAND --help shows its options and examples"""


def run(argv: Sequence[str] | None) -> int:
    """Runs the command and returns its exit code.

    Raises:
      KeyboardInterrupt: after Ctrl-C.
    """
    options = argparse.Namespace(debug=False)
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    is_timed = not {"verify", "--load"}.isdisjoint(words)
    quiet_tensorflow(debug="--debug" in words, is_timed=is_timed)
    try:
        options = parse(words)
        options.run(options, Console(verbose=options.verbose))
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
        Console().error(_describe_error(e, options))
        is_usage = isinstance(e, (UsageError, TargetError)) or _is_missing_path(e, options)
        return USAGE if is_usage else REFUSED
    return 0


def _is_missing_path(error: Exception, options: argparse.Namespace) -> bool:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)) or not error.filename:
        return False
    # The output need not exist yet.
    values = [value for key, value in vars(options).items() if key != "output"]
    # [NAME=]PATH, once per signature.
    values += [pair for value in values if isinstance(value, list) for pair in value]
    values += [part for value in values if isinstance(value, tuple) for part in value]
    paths = {os.fspath(value) for value in values if isinstance(value, (str, os.PathLike))}
    name = os.fspath(error.filename)
    return name in paths and not os.path.exists(name)


def _suggest_path(name: str) -> str:
    """Suggests the nearest path beside a missing one, as the end of a message."""
    path = Path(name)
    if not path.parent.is_dir():
        return ""
    try:
        siblings = list(islice(path.parent.iterdir(), _MAX_SIBLINGS))
    except OSError:
        return ""
    # Names with the same suffix are similar anyway.
    near = [path.parent / f.name for f in siblings if did_you_mean(path.stem, [f.stem])]
    return did_you_mean(str(path), map(str, near))


def _describe_error(error: Exception, options: argparse.Namespace) -> str:
    if isinstance(error, UserCodeError | UsageError):
        return str(error)
    if isinstance(error, BridgeError):
        return format_for_command_line(get_message(error), options)
    if isinstance(error, OSError) and error.strerror:
        if not str(error).startswith("[Errno "):
            return format_for_command_line(
                get_message(error), options
            )  # the bridge wrote this sentence
        name = f"{error.filename}: " if error.filename else ""
        near = _suggest_path(error.filename) if _is_missing_path(error, options) else ""
        return f"{name}{error.strerror}{near}"
    return f"{type(error).__name__}: {get_first_line(error)} (--debug shows all of it)"


class _Parser(argparse.ArgumentParser):
    """ArgumentParser that raises UsageError and suggests what was probably meant."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: module:function"):
            message += ", which goes before --args"
        if message.endswith("required: -o/--output"):
            message += ", which names what to write"
        # argparse names the Python function that reads the value, which users do not know.
        message = re.sub(r": invalid \w+ value: (.*)\Z", r": expected a number. Got: \1", message)
        raise UsageError(f"{message} ({self.prog} --help says more)")

    def print_help(self, file: Any = None) -> None:
        stream = file or sys.stdout
        text = self.format_help()
        print(paint_help(text) if has_colour(stream) else text, end="", file=stream)

    def list_actions(self) -> list[argparse.Action]:
        return list(self._actions)

    def check_options(self, words: Iterable[str]) -> None:
        """Reports an unknown option before missing required ones."""
        known = [o for action in self._actions for o in action.option_strings]
        for word in takewhile(lambda word: word != "--", words):
            option = re.match(r"--?[A-Za-z][\w-]*(?==|\Z)", word)
            if option is None or option[0] in known:
                continue
            name = option[0]
            # -oFILE is -o FILE, but -output is a misspelt --output.
            if name[:2] not in known or f"-{name}" in known:
                self.error(f"no option {name}{_suggest_option(name, known)}")


def make_parsers() -> tuple[_Parser, dict[Command, _Parser]]:
    """Makes the parser of the command line, and those of its commands."""
    parser = _Parser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_describe_versions())
    _add_common(parser, default=False)
    adder = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", parser_class=_Parser
    )
    return parser, {command: _add_parser(adder, command) for command in _COMMANDS}


def _suggest_option(name: str, known: Sequence[str]) -> str:
    """Suggests the options that the name begins, or else those that it resembles.

    >>> _suggest_option("-v", ["--verbose", "--version", "--debug"])
    ': did you mean --verbose or --version?'
    """
    longer = [option for option in known if option.startswith(f"--{name.lstrip('-')}")]
    return f": did you mean {' or '.join(longer)}?" if longer else did_you_mean(name, known)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `run` of the result runs the command.

    Raises:
      UsageError: it is wrong.
      SystemExit: after --help and --version.
    """
    parser, parsers = make_parsers()
    commands = {command.name: command_parser for command, command_parser in parsers.items()}
    names = ", ".join(commands)
    first_options = list(takewhile(lambda word: word.startswith("-"), argv))
    has_command = len(first_options) < len(argv)
    name = argv[len(first_options)] if has_command else ""
    if name in commands:
        _check_order(parser, commands[name], name, first_options)
    parser.check_options(first_options)
    if has_command:
        if name not in commands:
            near = did_you_mean(name, commands)
            parser.error(f"no command {name}{near or f': there are {names}'}")
        commands[name].check_options(argv[len(first_options) + 1 :])
    options = parser.parse_args(argv)
    if options.command is None:
        if not argv:
            parser.print_help(sys.stderr)
        parser.error(f"a command is missing: one of {names}")
    return options


def _check_order(
    parser: _Parser, command_parser: _Parser, command: str, first_options: Sequence[str]
) -> None:
    """Reports options of a command that precede it."""
    general, own = (
        {name for action in each.list_actions() for name in action.option_strings}
        for each in (parser, command_parser)
    )
    for word in first_options:
        name = word.partition("=")[0]
        if name in own - general:
            parser.error(f"{name} is an option of {command}: write it after {command}")


def _describe_versions() -> str:
    jax = _find_version("jax")
    tensorflow = _find_version("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly")
    return (
        f"{PROGRAM} {jax2tf_bridge.__version__}, Python {platform.python_version()}, "
        f"{f'JAX {jax}' if jax else 'no JAX'}, "
        f"{f'TensorFlow {tensorflow}' if tensorflow else 'no TensorFlow'}"
    )


def _find_version(*distributions: str) -> str | None:
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def _add_common(parser: argparse.ArgumentParser, *, default: Any) -> None:
    parser.add_argument(
        "--verbose",
        action="store_true",
        default=default,
        help="show the steps and how long they take",
    )
    parser.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of an error"
    )


def _add_parser(commands: Any, command: Command) -> _Parser:
    parser: _Parser = commands.add_parser(
        command.name,
        help=command.summary,
        description=command.description,
        epilog=command.examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # These options may also stand before the command.
    _add_common(parser, default=argparse.SUPPRESS)
    command.add_options(parser)
    parser.set_defaults(run=command.run)
    return parser
