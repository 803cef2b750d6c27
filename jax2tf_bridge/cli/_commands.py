"""Parts of all commands: options, references to functions and files, and usage errors."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import pkgutil
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge._utils import did_you_mean, printable
from jax2tf_bridge.cli._console import Console, get_first_line, get_option_name
from jax2tf_bridge.errors import BridgeError, FileFormatError
from jax2tf_bridge.inspecting import inspect
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.saved_model import SERVING_DEFAULT
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.storage import AnyPath, StoragePath, as_path
from jax2tf_bridge.targets import Target


class UsageError(Exception):
    """Error for a wrong command line; its text is one line."""


class UserCodeError(BridgeError):
    """Error for user code that failed; its `__cause__` is the exception of that code."""

    def __init__(self, what: str, cause: BaseException, place: str | None = None) -> None:
        """`what` is the action that failed; `place` is the user's line, if known."""
        first = get_first_line(cause)
        at = f" at {place}" if place else ""
        text = f"{what} failed{at}: {type(cause).__name__}" + (f": {first}" if first else "")
        super().__init__(f"{text} (--debug shows all of it)")


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes:
      name: its name.
      summary: what it does, for the list of commands.
      description: its description.
      examples: the end of its --help.
      add_options: adds its options to a parser.
      run: runs it.
    """

    name: str
    summary: str
    description: str
    examples: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], None]


def check_output(file: AnyPath, option: str = "--output") -> None:
    """Raises, before any work, if the file that an option names cannot be written."""
    if file.is_dir():
        raise UsageError(f"{option}: {file} is a folder; name the file to write")
    if not isinstance(file, StoragePath) and not file.absolute().parent.is_dir():
        raise UsageError(f"{option}: there is no folder {file.parent}")


def add_output(
    parser: argparse.ArgumentParser, metavar: str, text: str, *, required: bool = True
) -> None:
    """Adds --output."""
    parser.add_argument(
        "-o", "--output", type=as_path, metavar=metavar, help=text, required=required
    )


def add_functions(
    parser: argparse.ArgumentParser, *, nargs: str = "+", takes_model: bool = False
) -> None:
    """Adds the files of functions by signature; `takes_model` for the folder of a SavedModel."""
    text = "a file that export wrote; with several files, each needs the name of its signature"
    parser.add_argument(
        "file",
        nargs=nargs,
        type=read_named_path,
        metavar=NAMED_PATH,
        help=f"{text}; or the folder of a SavedModel" if takes_model else text,
    )


def add_params(parser: argparse.ArgumentParser) -> None:
    """Adds --params."""
    parser.add_argument(
        "--params",
        type=as_path,
        metavar="WEIGHTS",
        help="the functions' first argument, shared by all of them: a msgpack or safetensors file, "
        "or a checkpoint of Orbax",
    )


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Adds --overwrite, for commands that write a model."""
    parser.add_argument("--overwrite", action="store_true", help="replace the model that is there")


_JSON_OF_OUTPUT = "print JSON about what was written, as inspect --json does"


def add_json(parser: argparse.ArgumentParser, text: str = _JSON_OF_OUTPUT) -> None:
    """Adds --json."""
    parser.add_argument("--json", action="store_true", help=text)


def print_json(value: Any) -> None:
    """Prints a value as JSON."""
    print(printable(json.dumps(value, indent=2)))


def print_result(options: argparse.Namespace, result: Any) -> None:
    """Prints the text of a result of the bridge, or with --json its JSON."""
    if options.json:
        print_json(result.as_json())
    else:
        print(printable(str(result)))


def report_output(options: argparse.Namespace, output: AnyPath, lines: Iterable[str]) -> None:
    """Prints the lines; with --json, what `inspect --json` prints about the output."""
    if options.json:
        print_json(inspect(output).as_json())
        return
    for line in lines:
        print(printable(line))


def add_target(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds --tensorflow, with the help `text`, and --no-xla."""
    parser.add_argument("--tensorflow", metavar="RELEASE", help=text)
    add_no_xla(parser)


def add_no_xla(parser: argparse.ArgumentParser) -> None:
    """Adds --no-xla."""
    text = "use TensorFlow's own operations, for runtimes without XLA, such as Node and TF.js"
    parser.add_argument("--no-xla", action="store_true", help=text)


def add_for_converters(parser: argparse.ArgumentParser) -> None:
    """Adds --for-converters, for commands that write a graph; .jaxfn files do not store it."""
    text = "like --no-xla, with operations that tf2onnx and OpenVINO support"
    parser.add_argument("--for-converters", action="store_true", help=text)


def add_updates(parser: argparse.ArgumentParser) -> None:
    """Adds --updates-params and --weight-signatures."""
    parser.add_argument(
        "--updates-params",
        action="extend",
        default=[],
        type=split_names,
        metavar="NAME,NAME",
        help="signatures that change weights: their functions return outputs and new weights, "
        "which a call assigns",
    )
    parser.add_argument(
        "--weight-signatures",
        action="extend",
        default=[],
        type=split_names,
        metavar="NAME,NAME",
        help="further signatures for these weights: get_weights, set_weights, reset_weights",
    )


def check_updates(options: argparse.Namespace, signatures: Collection[str]) -> None:
    """Raises UsageError if --updates-params names no signature."""
    for name in options.updates_params:
        if name not in signatures:
            near = did_you_mean(name, signatures) or "."
            raise UsageError(
                f"--updates-params: {name} is not a signature{near} The signatures: "
                f"{', '.join(signatures)}"
            )


def check_names(option: str, names: Sequence[str]) -> None:
    """Raises UsageError if an option names the same thing twice."""
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{option}: {name or 'it'} is given twice")


def split_names(text: str) -> list[str]:
    """Splits NAME,NAME."""
    return [name.strip() for name in text.split(",")]


def split_assignment(text: str) -> tuple[str, str]:
    """Splits NAME=VALUE.

    Raises:
      ValueError: it has no name.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise ValueError(text)
    return name.strip(), value


def read_target(options: argparse.Namespace) -> Target | None:
    """Returns the target that --tensorflow and --no-xla name; None without them.

    Raises:
      TargetError: there is no such release.
    """
    xla = not options.no_xla
    if options.tensorflow is not None:
        return Target.tensorflow(options.tensorflow, xla=xla)
    return None if xla else Target.widest(xla=False)


def _make_integer_type(smallest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if number < smallest:
            raise argparse.ArgumentTypeError(
                f"expected a number of at least {smallest}. Got: {text}"
            )
        return number

    return read


NOT_NEGATIVE, POSITIVE = _make_integer_type(0), _make_integer_type(1)
"""Types of options that are whole numbers."""

READABLE_PATHS = "a file that export or jax.export wrote, or the folder of a SavedModel"
NAMED_PATH = "[NAME=]PATH"

NamedPath: TypeAlias = tuple[str, AnyPath]
"""Name of a signature ("" if omitted), and the file of its function."""


def read_exported_path(text: str) -> AnyPath:
    """Reads the path of a file or model that export, save or jax.export wrote.

    Raises:
      argparse.ArgumentTypeError: the text names a function or a Python file.
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


def read_named_path(text: str) -> NamedPath:
    """Reads [NAME=]PATH.

    Raises:
      argparse.ArgumentTypeError: as for `read_exported_path`.
    """
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        return "", read_exported_path(text)
    if name.isidentifier():
        return name, read_exported_path(path)
    if Path(path).exists():
        raise argparse.ArgumentTypeError(
            f"{name!r} cannot name a signature. Use letters, digits and underscores, as "
            f"{_make_signature_name(name)}={path}"
        )
    return "", read_exported_path(text)


def _make_signature_name(text: str) -> str:
    return re.sub(r"\W|^(?=\d)|\A\Z", "_", text)


def map_signatures(files: Sequence[NamedPath]) -> dict[str, AnyPath]:
    """Maps the names of signatures to files; a file without a name is "serving_default".

    Raises:
      UsageError: two have the same name.
    """
    paths: dict[str, AnyPath] = {}
    for name, path in files:
        signature = name or SERVING_DEFAULT
        if signature in paths and name:
            raise UsageError(
                f"{name} names both {paths[name]} and {path}. Give each file a name of its own"
            )
        if signature in paths:
            raise UsageError(
                f"{path}: with several files, each needs the name of its signature, such as "
                f"{_make_signature_name(path.stem)}={path}"
            )
        paths[signature] = path
    return paths


def read_source(options: argparse.Namespace) -> AnyPath | dict[str, PortableFunction]:
    """Reads the functions in files, by signature, or returns the folder of a SavedModel.

    Raises:
      UsageError: files need other names, or an option does not fit.
      FileFormatError, OSError: a file cannot be read.
    """
    files: Sequence[NamedPath] = options.file
    folder = next((path for _, path in files if path.is_dir()), None)
    if folder is None:
        functions = {name: read_function(path) for name, path in map_signatures(files).items()}
        if "updates_params" in options:
            check_updates(options, functions)
        return functions
    if len(files) > 1 or files[0][0]:
        raise UsageError(
            f"{folder} is a SavedModel, whose signatures already have names. Pass it alone, "
            "without NAME="
        )
    for name in ("params", "updates_params", "weight_signatures"):
        if getattr(options, name, None):
            part = "weights" if name == "params" else "signatures"
            raise UsageError(
                f"{get_option_name(name)}: {folder} is a SavedModel, which has its own {part}. "
                "Remove the option"
            )
    return folder


@contextlib.contextmanager
def search_current_folder_first() -> Iterator[None]:
    """Lets imports in a `with` block search the current folder first."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        # User code may have changed the list.
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def import_reference(reference: str, option: str) -> Any:
    """Imports the object of a reference.

    Args:
      reference: "module:attribute" or "package.module:object.attribute".
      option: where the user wrote it, for messages.

    Raises:
      UsageError: the syntax is wrong, or the module or attribute does not exist; with suggestions.
      UserCodeError: importing the module failed.
    """
    module_name, _, path = reference.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        stem = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(
            f"{option}: {reference} names a file; write the module as Python imports it, from the "
            f"folder that it is in: {stem}:{path or 'FUNCTION'}"
        )
    if not all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")]):
        raise UsageError(
            f"{option}: expected module:name, as model:predict or package.module:net.apply. "
            f"Got: {reference!r}"
        )
    value: Any = _import_module(module_name, option)
    dotted = module_name
    for name in path.split("."):
        if not hasattr(value, name):
            near = did_you_mean(name, (n for n in dir(value) if not n.startswith("_")))
            what = f"the module {dotted}" if isinstance(value, ModuleType) else dotted
            raise UsageError(f"{option}: {what} has no {name}{near}")
        value = getattr(value, name)
        dotted = f"{dotted}:{name}" if ":" not in dotted else f"{dotted}.{name}"
    return value


def _import_module(name: str, option: str) -> ModuleType:
    try:
        module: ModuleType = pkgutil.resolve_name(f"{name}:")
    except ModuleNotFoundError as e:
        if e.name is None or not f"{name}.".startswith(f"{e.name}."):
            raise UserCodeError(f"importing {name}", e) from e
        raise UsageError(
            f"{option}: there is no module {name} in {Path.cwd()} or in the installed packages"
            f"{did_you_mean(name, _list_sibling_modules(e.name))}"
        ) from e
    except (Exception, SystemExit) as e:
        raise UserCodeError(f"importing {name}", e) from e
    return module


def _list_sibling_modules(missing: str) -> list[str]:
    """Lists the modules beside the missing one, by their full names."""
    package, _, _ = missing.rpartition(".")
    if not package:
        return [m.name for m in pkgutil.iter_modules([str(Path.cwd())])]
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or []
    return [f"{package}.{m.name}" for m in pkgutil.iter_modules(folders)]


Example: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Values of inputs by name, or several of them."""


def read_example(file: AnyPath) -> Example:
    """Reads values by name; values from JSON get the dtype of their input."""
    kind = file.suffix.lower()
    if kind not in (".npz", ".json"):
        raise UsageError(
            f"--example: expected a file .npz or .json with values of inputs by name. Got: {file}"
        )
    try:
        return _read_json(file) if kind == ".json" else read_npz(file)
    except READING_ERRORS as e:
        raise FileFormatError(
            f"--example: {file} cannot be read as {kind} with values of inputs by name: {e}",
            file=str(file),
        ) from e


def _read_json(file: AnyPath) -> Example:
    values = json.loads(file.read_bytes())
    listed = values if isinstance(values, list) else [values]
    if not listed or not all(isinstance(each, dict) for each in listed):
        raise ValueError('expected an object, as {"ids": [[4, 8, 15]]}, or a list of such objects')
    return values if isinstance(values, dict) else listed


READING_ERRORS = (ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Errors that reading values from a damaged file raises."""


def read_npz(file: AnyPath) -> dict[str, np.ndarray]:
    """Reads arrays by name.

    Raises:
      ValueError, or another of READING_ERRORS: the file is damaged, or has another format.
    """
    with file.open("rb") as stream:
        arrays = np.load(stream, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array without a name; write it with np.savez")
        return {name: arrays[name] for name in arrays.files}
