"""Parts of all commands: their description, options, and usage errors."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.storage import AnyPath, StoragePath, as_path
from jax2tf_bridge.targets import Target

READABLE = "what export or jax.export wrote, or the folder of a SavedModel"


class UsageError(Exception):
    """Error for a wrong command line; its text is one line."""


def check_output(file: AnyPath, option: str = "--output") -> None:
    """Raises, before any work, if the file that an option names cannot be written."""
    if file.is_dir():
        raise UsageError(f"{option}: {file} is a folder; name the file to write")
    if not isinstance(file, StoragePath) and not file.absolute().parent.is_dir():
        raise UsageError(f"{option}: there is no folder {file.parent}")


_NO_XLA_HELP = "make TensorFlow's own operations, for what has no XLA, as Node and TF.js"
_FOR_CONVERTERS_HELP = "the same of those that tf2onnx and OpenVINO know"


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes:
      name: its name.
      description: its description; the list of commands shows the first sentence.
      examples: the end of its --help.
      add_options: adds its options to a parser.
      run: runs it.
    """

    name: str
    description: str
    examples: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def exported_path(text: str) -> AnyPath:
    """Reads the path of a file or model that export, save or jax.export wrote.

    Raises:
      argparse.ArgumentTypeError: it is a function, or the Python file of one.
    """
    path = as_path(text)
    if isinstance(path, StoragePath):
        return path
    module, colon, name = text.partition(":")
    if path.is_dir() or (colon and path.exists()):
        return path
    if path.suffix == ".py":
        problem, module, name = "is Python source", path.stem, "FUNCTION"
    elif colon and all(map(str.isidentifier, (*module.split("."), *name.split(".")))):
        problem = "names a function"
    else:
        return path
    raise argparse.ArgumentTypeError(
        f"{text} {problem}; this command reads exported functions. Export it first: "
        f"jax2tf-bridge export {module}:{name} --args ... -o {name.rpartition('.')[2]}.jaxfn"
    )


def add_output(parser: argparse.ArgumentParser, metavar: str, text: str, **more: Any) -> None:
    """Adds --output."""
    parser.add_argument("-o", "--output", type=as_path, metavar=metavar, help=text, **more)


def add_target(parser: argparse.ArgumentParser, release: str, **more: Any) -> None:
    """Adds --tensorflow, with the help `release`, and --no-xla."""
    parser.add_argument("--tensorflow", metavar="RELEASE", help=release, **more)
    add_no_xla(parser)


def add_no_xla(parser: argparse.ArgumentParser) -> None:
    """Adds --no-xla."""
    parser.add_argument("--no-xla", action="store_true", help=_NO_XLA_HELP)


def add_for_converters(parser: argparse.ArgumentParser) -> None:
    """Adds --for-converters, for commands that write a graph; .jaxfn files do not store it."""
    parser.add_argument("--for-converters", action="store_true", help=_FOR_CONVERTERS_HELP)


def target_of(options: argparse.Namespace) -> Target | None:
    """Returns the target that --tensorflow and --no-xla name; None without them.

    Raises:
      TargetError: there is no such release.
    """
    xla = not options.no_xla
    if options.tensorflow is not None:
        return Target.tensorflow(options.tensorflow, xla=xla)
    return None if xla else Target.widest(xla=False)


def at_least(smallest: int) -> Callable[[str], int]:
    """Returns the type of an option that is a whole number.

    >>> at_least(1)("3")
    3
    """

    def number(text: str) -> int:
        number = int(text)
        if number < smallest:
            raise argparse.ArgumentTypeError(f"expected a number from {smallest} on. Got: {text}")
        return number

    return number


NOT_NEGATIVE, POSITIVE = at_least(0), at_least(1)
