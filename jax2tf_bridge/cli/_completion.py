"""`jax2tf-bridge completion`: prints a script with which a shell completes the command.

The script lists all commands and options, so pressing Tab starts no Python.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from jax2tf_bridge.cli._commands import (
    NAMED_PATH,
    Command,
    UsageError,
    read_exported_path,
    read_named_path,
)
from jax2tf_bridge.cli._console import PROGRAM, Console
from jax2tf_bridge.storage import as_path
from jax2tf_bridge.targets import TENSORFLOW_RELEASES

_DESCRIPTION = """\
Prints a script that completes commands, options and files in a shell. Needs neither JAX nor
TensorFlow."""

_EXAMPLES = f"""\
write the script once, into the folder that the shell searches, and start a new shell:
  mkdir -p ~/.local/share/bash-completion/completions
  {PROGRAM} completion bash > ~/.local/share/bash-completion/completions/{PROGRAM}
  {PROGRAM} completion fish > ~/.config/fish/completions/{PROGRAM}.fish

zsh searches the folders in fpath; one of them may be ~/.zfunc:
  {PROGRAM} completion zsh > ~/.zfunc/_{PROGRAM}

bash reads that folder if the package bash-completion is installed. Otherwise, load the script in
~/.bashrc."""

_PATH_TYPES = (as_path, Path, read_exported_path, read_named_path)
_PATH_METAVARS = frozenset({"PATH", "FILE", "DIR"})
_MAX_HELP_CHARACTERS = 70


@dataclass(frozen=True)
class _Value:
    """Value of an option, or an argument without an option.

    Attributes:
      name: its name in the help.
      words: its possible values; empty for others.
      is_path: whether it is a file or a folder.
    """

    name: str
    words: Sequence[str] = ()
    is_path: bool = False


@dataclass(frozen=True)
class _Option:
    """Option of a command; `value` is None for a switch."""

    names: Sequence[str]
    help: str
    value: _Value | None


@dataclass(frozen=True)
class _CommandLine:
    """Words that may follow the name of a command; "" is the name of the program itself."""

    name: str
    help: str
    options: Sequence[_Option]
    argument: _Value | None


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        nargs="?",
        choices=[*_SCRIPTS],
        metavar="SHELL",
        help="bash, zsh or fish; by default the shell in the variable SHELL",
    )


def _run(options: argparse.Namespace, console: Console) -> None:
    shell = options.shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _SCRIPTS:
        raise UsageError(f"name the shell to complete in: {PROGRAM} completion bash, zsh or fish")
    # Imported late: that module lists this command.
    from jax2tf_bridge.cli._main import make_parsers

    parser, commands = make_parsers()
    lines = [_describe(parser.list_actions(), "", "")]
    lines += [
        _describe(command_parser.list_actions(), command.name, command.summary)
        for command, command_parser in commands.items()
    ]
    print("\n".join(_SCRIPTS[shell](lines)))


def _describe(actions: Sequence[argparse.Action], name: str, text: str) -> _CommandLine:
    options, arguments = [], []
    for action in actions:
        if action.option_strings:
            value = None if action.nargs == 0 else _describe_value(action)
            options.append(_Option(action.option_strings, _shorten(action.help or ""), value))
        elif name:
            arguments.append(_describe_value(action))
    return _CommandLine(name, text, options, arguments[0] if arguments else None)


def _describe_value(action: argparse.Action) -> _Value:
    name = str(action.metavar or action.dest)
    words = [str(choice) for choice in action.choices or ()]
    if "--tensorflow" in action.option_strings:
        words = [*TENSORFLOW_RELEASES]
    return _Value(name, words, action.type in _PATH_TYPES or name in _PATH_METAVARS)


def _shorten(text: str) -> str:
    """Returns the first clause of a help text."""
    clause = re.split(r"[;:(] |, ", text.replace("%%", "%"))[0].strip()
    if len(clause) <= _MAX_HELP_CHARACTERS:
        return clause
    return f"{clause[:_MAX_HELP_CHARACTERS].rpartition(' ')[0]} ..."


def _write_bash(lines: Sequence[_CommandLine]) -> Iterator[str]:
    yield _BASH_HEAD
    yield '  case "$command $option" in'
    files: list[str] = []
    others: list[str] = []
    for line in lines:
        for option in line.options:
            if option.value is None:
                continue
            patterns = [shlex.quote(f"{line.name} {name}") for name in option.names]
            if option.value.words:
                choices = shlex.quote(" ".join(option.value.words))
                yield f"    {'|'.join(patterns)}) _jax2tf_bridge_words {choices}; return ;;"
            elif option.value.is_path:
                files += patterns
            else:
                others += patterns
    yield f"    {'|'.join(files)}) return ;;"
    yield f"    {'|'.join(others)}) _jax2tf_bridge_words ''; return ;;"
    yield "  esac"
    yield '  case "$command" in'
    for line in lines:
        names = shlex.quote(" ".join(name for option in line.options for name in option.names))
        words = [other.name for other in lines if other.name] if not line.name else []
        argument = line.argument
        if argument is not None:
            words = [*argument.words]
        yield f"    {shlex.quote(line.name)})"
        yield f'      if [[ "$word" == -* ]]; then _jax2tf_bridge_words {names}'
        if words or argument is None or not argument.is_path:
            yield f"      else _jax2tf_bridge_words {shlex.quote(' '.join(words))}"
        yield "      fi ;;"
    yield "  esac"
    yield "}"
    yield f"complete -o bashdefault -o default -F _jax2tf_bridge {PROGRAM}"


_BASH_HEAD = """\
# With no words, bash completes files, unless the option is off; bash 3 cannot switch it off.
_jax2tf_bridge_words() {
  compopt +o default +o bashdefault 2>/dev/null
  COMPREPLY=($(compgen -W "$1" -- "$word"))
}
_jax2tf_bridge() {
  local word="${COMP_WORDS[COMP_CWORD]}" option="${COMP_WORDS[COMP_CWORD-1]}" command="" i
  # bash takes --option=value for three words.
  if [[ "$word" == "=" ]]; then
    word=""
  elif [[ "$option" == "=" ]]; then
    option="${COMP_WORDS[COMP_CWORD-2]}"
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ "${COMP_WORDS[i]}" != -* ]]; then
      command="${COMP_WORDS[i]}"
      break
    fi
  done
  COMPREPLY=()"""


def _write_zsh(lines: Sequence[_CommandLine]) -> Iterator[str]:
    program, *commands = lines
    yield f"#compdef {PROGRAM}"
    yield "_jax2tf_bridge_named_files() { compset -P '*='; _files }"
    yield "_jax2tf_bridge() {"
    yield '  local curcontext="$curcontext" state line'
    yield "  typeset -A opt_args"
    yield "  local -a commands"
    yield "  commands=("
    for command in commands:
        yield f"    {shlex.quote(f'{command.name}:{command.help}')}"
    yield "  )"
    specs = [*map(_format_zsh_option, program.options), "'1: :->command'", "'*:: :->arguments'"]
    yield f"  _arguments -C {' '.join(specs)}"
    yield '  case "$state" in'
    yield "    command) _describe -t commands command commands ;;"
    yield "    arguments)"
    yield '      case "${line[1]}" in'
    for command in commands:
        specs = [*map(_format_zsh_option, command.options)]
        if command.argument is not None:
            specs.append(shlex.quote(f"*:{_format_zsh_value(command.argument)}"))
        yield f"        {command.name}) _arguments {' '.join(specs)} ;;"
    yield "      esac ;;"
    yield "  esac"
    yield "}"
    yield "# The file may be loaded by compinit, or read as a script."
    yield 'if [[ "${funcstack[1]}" == "_jax2tf_bridge" || "${funcstack[1]}" == "_jax2tf-bridge" ]]'
    yield 'then _jax2tf_bridge "$@"'
    yield f"else compdef _jax2tf_bridge {PROGRAM}"
    yield "fi"


def _format_zsh_option(option: _Option) -> str:
    text, names = f"[{_escape_zsh(option.help)}]", [*option.names]
    if option.value is not None:
        text += f":{_format_zsh_value(option.value)}"
        # The value may be the next word, or follow "=".
        names = [f"{name}=" if name.startswith("--") else f"{name}+" for name in names]
    if len(names) == 1:
        return shlex.quote(f"*{names[0]}{text}")
    exclusive = f"({' '.join(option.names)})"
    return f"{shlex.quote(exclusive)}{{{','.join(names)}}}{shlex.quote(text)}"


def _format_zsh_value(value: _Value) -> str:
    action = f"({' '.join(value.words)})" if value.words else ""
    if value.is_path:
        action = "_jax2tf_bridge_named_files" if value.name == NAMED_PATH else "_files"
    return f"{_escape_zsh(value.name)}:{action}"


def _escape_zsh(text: str) -> str:
    r"""Escapes the characters that have a meaning in a specification of `_arguments`.

    >>> print(_escape_zsh("[NAME=]PATH: a file"))
    \[NAME=\]PATH\: a file
    """
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def _write_fish(lines: Sequence[_CommandLine]) -> Iterator[str]:
    complete = f"complete -c {PROGRAM}"
    yield f"{complete} -f"
    for line in lines:
        test = f"__fish_seen_subcommand_from {line.name}" if line.name else "__fish_use_subcommand"
        only = f"{complete} -n {shlex.quote(test)}"
        if line.name:
            yield (
                f"{complete} -n __fish_use_subcommand -a {line.name} -d {_quote_fish(line.help)}"
            )
        for option in line.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            value = "" if option.value is None else f" {_format_fish_value(option.value)}"
            yield f"{only} {names}{value} -d {_quote_fish(option.help)}"
        if line.argument is not None and line.argument.is_path:
            yield f"{only} -F"
        elif line.argument is not None and line.argument.words:
            yield f"{only} -a {_quote_fish(' '.join(line.argument.words))}"


def _format_fish_value(value: _Value) -> str:
    if value.words:
        return f"-x -a {_quote_fish(' '.join(value.words))}"
    return "-r -F" if value.is_path else "-x"


def _quote_fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_SCRIPTS: Mapping[str, Callable[[Sequence[_CommandLine]], Iterator[str]]] = MappingProxyType(
    {"bash": _write_bash, "zsh": _write_zsh, "fish": _write_fish}
)

COMMAND = Command(
    "completion",
    "print a script that completes commands in a shell",
    _DESCRIPTION,
    _EXAMPLES,
    _add_options,
    _run,
)
