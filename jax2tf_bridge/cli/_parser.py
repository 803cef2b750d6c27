"""The commands and their options."""

from __future__ import annotations

import argparse
import itertools
import platform
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, Protocol

import jax2tf_bridge
from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.cli._console import PROGRAM
from jax2tf_bridge.cli._usage_errors import UsageError
from jax2tf_bridge.cli.export import _command as _export
from jax2tf_bridge.cli.inspect import _command as _inspect
from jax2tf_bridge.cli.retarget import _command as _retarget
from jax2tf_bridge.cli.save import _command as _save
from jax2tf_bridge.cli.save import _options as _save_options
from jax2tf_bridge.cli.serve_check import _command as _serve_check
from jax2tf_bridge.cli.serve_check import _options as _serve_check_options
from jax2tf_bridge.cli.verify import _command as _verify
from jax2tf_bridge.cli.verify import _options as _verify_options

_DESCRIPTION = """\
JAX functions for TensorFlow: export where JAX is installed, save where TensorFlow is, inspect
anywhere. What stands between the two is a file."""

_EXIT_CODES = """\
exit codes: 0 all is well, 1 the bridge refused, 2 the command line is wrong"""

_EXPORT = """\
Writes a JAX function, at the shapes given, as a .jaxfn file. Needs JAX, and no TensorFlow."""

_EXPORT_EXAMPLES = """\
SPEC is one argument: a dtype and the sizes, as f32[3,28] or int32[b,t], where names are sizes that
stay open; a pytree of these, as '{"w": "f32[28,10]", "b": "f32[10]"}'; or @module:name for an array
or pytree of arrays (or a function that returns it). A tuple @module:name as the only SPEC is all
the arguments.

examples:
  jax2tf-bridge export model:predict --args @model:params 'f32[b,28]' -o predict.jaxfn
  jax2tf-bridge export model:predict --args @model:example_args --shapes None '(b, 28)' \\
      --constraints 'b >= 2' --tensorflow 2.17 -o predict.jaxfn"""

_SAVE = """\
Writes the function in a file as a SavedModel with one signature, serving_default, and its
gradient. Needs TensorFlow, and no JAX."""

_SAVE_EXAMPLES = """\
examples:
  jax2tf-bridge save predict.jaxfn -o predict/1
  jax2tf-bridge save predict.jaxfn -o predict/1 --buckets b=1,8,32
  jax2tf-bridge save predict.jaxfn -o predict/1 --params weights.msgpack
  jax2tf-bridge save text.jaxfn -o text/1 --buckets b=1,8 --buckets n=16,64 --pad-values ids=1"""

_PUBLISH = """\
Writes the function in a file as the next version below a folder that TensorFlow Serving watches.
Needs TensorFlow, and no JAX. Without FILE, the newest version once more, with other weights."""

_PUBLISH_EXAMPLES = """\
examples:
  jax2tf-bridge publish predict.jaxfn -o models/predict --buckets b=1,8,32 --keep 3
  jax2tf-bridge publish -o models/predict --params weights.msgpack"""

_INSPECT = """\
Says what is in a .jaxfn file, in one that jax.export wrote, or in a SavedModel: signatures, what
they need, which TensorFlow releases can run it, and what will go wrong. Lists the weights in a file
of msgpack or safetensors. Needs neither JAX nor TensorFlow."""

_INSPECT_EXAMPLES = """\
examples:
  jax2tf-bridge inspect predict.jaxfn
  jax2tf-bridge inspect predict.jaxfn --json | jq .tensorflow
  jax2tf-bridge inspect predict/1 --html predict.html
  jax2tf-bridge inspect weights.msgpack"""

_RETARGET = """\
Writes the function in a file, or a SavedModel, for another TensorFlow release. Needs JAX, and no
TensorFlow."""

_RETARGET_EXAMPLES = """\
examples:
  jax2tf-bridge retarget predict.jaxfn --tensorflow 2.16 -o predict-2.16.jaxfn
  jax2tf-bridge retarget predict/1 --tensorflow 2.16 -o predict/2"""


_READABLE = "what export or jax.export wrote, or the folder of a SavedModel"


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError and proposes what was probably meant."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: module:function"):
            message += ", which goes before --args"
        # argparse names the function that reads the value.
        message = re.sub(r": invalid \w+ value: (.*)\Z", r": expected a number. Got: \1", message)
        raise UsageError(f"{message} ({self.prog} --help says more)")

    def check_options(self, words: Iterable[str]) -> None:
        """Raises at the first option that there is none of, before others are found missing."""
        known = [o for action in self._actions for o in action.option_strings]
        for word in words:
            name = word.partition("=")[0]
            if re.match(r"--?[A-Za-z]", word) and name not in known and name[:2] not in known:
                self.error(f"no option {name}{did_you_mean(name, known)}")


class _Commands(Protocol):
    """What argparse adds commands to."""

    def add_parser(self, name: str, **options: Any) -> _Parser:
        """The parser of a new command."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of the command line; `run` of them runs the command.

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
    commands = {
        name: add(adder)
        for name, add in (
            ("export", _add_export),
            ("save", _add_save),
            ("publish", _add_publish),
            ("inspect", _add_inspect),
            ("retarget", _add_retarget),
            ("verify", _add_verify),
            ("serve-check", _add_serve_check),
        )
    }
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
    found = []
    for name, distributions in (
        ("JAX", ("jax",)),
        ("TensorFlow", ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly")),
    ):
        versions = [v for d in distributions if (v := _installed_version(d))]
        found.append(f"{name} {versions[0]}" if versions else f"no {name}")
    python = f"Python {platform.python_version()}"
    return ", ".join([f"{PROGRAM} {jax2tf_bridge.__version__}", python, *found])


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


def _add(commands: _Commands, name: str, description: str, examples: str) -> _Parser:
    parser = commands.add_parser(
        name,
        help=re.split(r"\.\s|\.\Z", description)[0],
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # What stands before the command counts as well.
    _add_common(parser, default=argparse.SUPPRESS)
    return parser


def _add_output(parser: argparse.ArgumentParser, metavar: str, text: str, **more: Any) -> None:
    parser.add_argument("-o", "--output", type=Path, metavar=metavar, help=text, **more)


def _add_export(commands: _Commands) -> _Parser:
    parser = _add(commands, "export", _EXPORT, _EXPORT_EXAMPLES)
    parser.add_argument(
        "function",
        metavar="module:function",
        help="what to export, imported from the current folder or what is installed",
    )
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    parser.add_argument("--args", metavar="SPEC", help="its arguments", **several)
    parser.add_argument("--kwargs", metavar="NAME=SPEC", help="those by keyword", **several)
    parser.add_argument(
        "--shapes",
        metavar="SHAPE",
        help="polymorphic_shapes: one for all or for each of --args: '(b, 28)', None to keep its "
        "sizes, auto, or a pytree of these",
        **several,
    )
    parser.add_argument(
        "--constraints",
        metavar="CONSTRAINT",
        help="what holds for open sizes, as 'b >= 2'; or infer, to add what the function needs",
        **several,
    )
    parser.add_argument(
        "--platforms", metavar="NAME,NAME", help="cpu, cuda, rocm, tpu, gpu; by default all"
    )
    parser.add_argument(
        "--tensorflow",
        metavar="RELEASE",
        help="the release to write it for, as 2.17; by default what most releases can run",
    )
    parser.add_argument(
        "--vjp-order",
        type=_save_options.order,
        metavar="N",
        help="how many orders of gradients to store; by default 1, or 0 if it has no gradient",
    )
    parser.add_argument("--x64", action="store_true", help="let JAX use 64 bits")
    _add_output(parser, "FILE", "the file to write", required=True)
    parser.set_defaults(run=_export.run)
    return parser


def _add_save(commands: _Commands) -> _Parser:
    parser = _add(commands, "save", _SAVE, _SAVE_EXAMPLES)
    parser.add_argument("file", type=Path, metavar="FILE", help="what export wrote")
    _add_output(parser, "DIR", "the folder to write, complete or not at all", required=True)
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the SavedModel that is there"
    )
    _save_options.add_options(parser)
    parser.set_defaults(run=_save.run)
    return parser


def _add_publish(commands: _Commands) -> _Parser:
    parser = _add(commands, "publish", _PUBLISH, _PUBLISH_EXAMPLES)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="what export wrote")
    _add_output(parser, "ROOT", "the folder of all versions", required=True)
    parser.add_argument(
        "--keep", type=_kept, metavar="N", help="remove all but the newest N versions afterwards"
    )
    _save_options.add_options(parser)
    parser.set_defaults(run=_save.run_publish)
    return parser


def _kept(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(
            f"the newest version always stays, so that N is 1 or more. Got: {number}"
        )
    return number


def _add_inspect(commands: _Commands) -> _Parser:
    parser = _add(commands, "inspect", _INSPECT, _INSPECT_EXAMPLES)
    readable = f"{_READABLE}, or a file of weights"
    parser.add_argument("file", type=Path, metavar="PATH", help=readable)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="all of it as JSON; docs/command-line.md has the schema"
    )
    form.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument(
        "--ops",
        type=_save_options.order,
        default=10,
        metavar="N",
        help="show the N commonest ops (default 10)",
    )
    parser.set_defaults(run=_inspect.run)
    return parser


def _add_retarget(commands: _Commands) -> _Parser:
    parser = _add(commands, "retarget", _RETARGET, _RETARGET_EXAMPLES)
    parser.add_argument("file", type=Path, metavar="PATH", help=_READABLE)
    parser.add_argument(
        "--tensorflow", metavar="RELEASE", required=True, help="the release, as 2.16"
    )
    _add_output(parser, "PATH", "what to write; by default beside the other, NAME-tf2.16")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the SavedModel that is there; without --output the one that is read",
    )
    parser.set_defaults(run=_retarget.run)
    return parser


def _add_verify(commands: _Commands) -> _Parser:
    parser = _add(commands, "verify", _verify_options.DESCRIPTION, _verify_options.EXAMPLES)
    _verify_options.add_options(parser)
    parser.set_defaults(run=_verify.run)
    return parser


def _add_serve_check(commands: _Commands) -> _Parser:
    described = (_serve_check_options.DESCRIPTION, _serve_check_options.EXAMPLES)
    parser = _add(commands, "serve-check", *described)
    _serve_check_options.add_options(parser)
    parser.set_defaults(run=_serve_check.run)
    return parser
