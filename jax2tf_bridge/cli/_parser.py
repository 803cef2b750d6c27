"""Parses the command line."""

from __future__ import annotations

import argparse
import itertools
import platform
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any, NoReturn, Protocol

import jax2tf_bridge
from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.cli._commands import Command, UsageError
from jax2tf_bridge.cli._console import PROGRAM
from jax2tf_bridge.cli._litert import COMMAND as LITERT
from jax2tf_bridge.cli._retarget import COMMAND as RETARGET
from jax2tf_bridge.cli._serve_check import COMMAND as SERVE_CHECK
from jax2tf_bridge.cli._weights import COMMAND as WEIGHTS
from jax2tf_bridge.cli.export import COMMAND as EXPORT
from jax2tf_bridge.cli.inspect import COMMAND as INSPECT
from jax2tf_bridge.cli.save import PUBLISH, SAVE
from jax2tf_bridge.cli.verify import COMMAND as VERIFY

_COMMANDS = (
    EXPORT,
    SAVE,
    PUBLISH,
    LITERT,
    WEIGHTS,
    INSPECT,
    RETARGET,
    VERIFY,
    SERVE_CHECK,
)

_DESCRIPTION = """\
JAX functions for TensorFlow: export where JAX is installed, save where TensorFlow is, inspect
anywhere. What stands between the two is a file."""

_EXIT_CODES = """\
exit codes: 0 all is well, 1 the bridge refused, 2 the command line is wrong"""


class _Parser(argparse.ArgumentParser):
    """ArgumentParser that raises UsageError and suggests what was probably meant."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: module:function"):
            message += ", which goes before --args"
        if message.endswith("required: -o/--output"):
            message += ", which names what to write"
        # argparse's text has the name of the function that reads the value.
        message = re.sub(r": invalid \w+ value: (.*)\Z", r": expected a number. Got: \1", message)
        raise UsageError(f"{message} ({self.prog} --help says more)")

    def check_options(self, words: Iterable[str]) -> None:
        """Reports an unknown option before missing required ones."""
        known = [o for action in self._actions for o in action.option_strings]
        for word in words:
            name = word.partition("=")[0]
            if re.match(r"--?[A-Za-z]", word) and name not in known and name[:2] not in known:
                self.error(f"no option {name}{did_you_mean(name, known)}")


class _Subparsers(Protocol):
    """Type of argparse's object for commands, which is private there."""

    def add_parser(self, name: str, **options: Any) -> _Parser:
        """Adds a command."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `run` of the result runs the command.

    Raises:
      UsageError: it is wrong.
      SystemExit: after --help and --version.
    """
    parser = _Parser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        epilog=f"{_EXIT_CODES}\n{PROGRAM} COMMAND --help shows its options and examples",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_versions())
    _add_common(parser, default=False)
    adder = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", parser_class=_Parser
    )
    commands = {command.name: _add_parser(adder, command) for command in _COMMANDS}
    before = list(itertools.takewhile(lambda word: word.startswith("-"), argv))
    parser.check_options(before)
    if len(before) < len(argv):
        command = argv[len(before)]
        if command not in commands:
            near = did_you_mean(command, commands)
            parser.error(f"no command {command}{near or _one_of(commands)}")
        commands[command].check_options(argv[len(before) + 1 :])
    options = parser.parse_args(argv)
    if options.command is None:
        parser.error(f"a command is missing: one of {', '.join(commands)}")
    return options


def _one_of(commands: Iterable[str]) -> str:
    return f": there are {', '.join(commands)}"


def _versions() -> str:
    packages = []
    for name, distributions in (
        ("JAX", ("jax",)),
        ("TensorFlow", ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly")),
    ):
        versions = [v for d in distributions if (v := _installed_version(d))]
        packages.append(f"{name} {versions[0]}" if versions else f"no {name}")
    python = f"Python {platform.python_version()}"
    return ", ".join([f"{PROGRAM} {jax2tf_bridge.__version__}", python, *packages])


def _installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _add_common(parser: argparse.ArgumentParser, *, default: Any) -> None:
    parser.add_argument(
        "--verbose", action="store_true", default=default, help="say what takes how long"
    )
    parser.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of an error"
    )


def _add_parser(commands: _Subparsers, command: Command) -> _Parser:
    parser = commands.add_parser(
        command.name,
        help=re.split(r"\.\s|\.\Z", command.description)[0],
        description=command.description,
        epilog=command.examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # Options before the command count as well.
    _add_common(parser, default=argparse.SUPPRESS)
    command.add_options(parser)
    parser.set_defaults(run=command.run)
    return parser
