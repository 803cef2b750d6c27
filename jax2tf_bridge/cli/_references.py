"""Reads references in arguments: module:attribute, and [NAME=]PATH of a function's file."""

from __future__ import annotations

import contextlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.cli._commands import UsageError, exported_path
from jax2tf_bridge.cli._console import first_line
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.saved_model import SERVING_DEFAULT
from jax2tf_bridge.storage import AnyPath


class UserCodeError(BridgeError):
    """Error for failing user code; its exception is the cause."""

    def __init__(self, what: str, cause: BaseException, place: str | None = None) -> None:
        """`what` is the action that failed; `place` is the user's line, if known."""
        first = first_line(cause)
        at = f" at {place}" if place else ""
        text = f"{what} failed{at}: {type(cause).__name__}" + (f": {first}" if first else "")
        super().__init__(f"{text} (--debug shows all of it)")


@contextlib.contextmanager
def current_folder_first() -> Iterator[None]:
    """Makes imports in a `with` block search the current folder first."""
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
    value: Any = _module(module_name, option)
    dotted = module_name
    for name in path.split("."):
        if not hasattr(value, name):
            near = did_you_mean(name, (n for n in dir(value) if not n.startswith("_")))
            what = f"the module {dotted}" if isinstance(value, ModuleType) else dotted
            raise UsageError(f"{option}: {what} has no {name}{near}")
        value = getattr(value, name)
        dotted = f"{dotted}:{name}" if ":" not in dotted else f"{dotted}.{name}"
    return value


def _module(name: str, option: str) -> ModuleType:
    try:
        module: ModuleType = pkgutil.resolve_name(f"{name}:")
    except ModuleNotFoundError as e:
        if e.name is None or not f"{name}.".startswith(f"{e.name}."):
            raise UserCodeError(f"importing {name}", e) from e
        raise UsageError(
            f"{option}: there is no module {name} in {Path.cwd()} or among what is installed"
            f"{did_you_mean(name, _module_names(e.name))}"
        ) from e
    except (Exception, SystemExit) as e:
        raise UserCodeError(f"importing {name}", e) from e
    return module


def _module_names(missing: str) -> list[str]:
    """Lists the modules beside the missing one, by their full names."""
    package, _, _ = missing.rpartition(".")
    if not package:
        return [m.name for m in pkgutil.iter_modules([str(Path.cwd())])]
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or []
    return [f"{package}.{m.name}" for m in pkgutil.iter_modules(folders)]


NamedPath: TypeAlias = tuple[str, AnyPath]
"""Name of a signature ("" if omitted), and the file of its function."""

METAVAR = "[NAME=]PATH"


def named_path(text: str) -> NamedPath:
    """Parses the argument.

    Raises:
      argparse.ArgumentTypeError: as `exported_path`.
    """
    name, equals, path = text.partition("=")
    if equals and name.isidentifier() and not Path(text).exists():
        return name, exported_path(path)
    return "", exported_path(text)


def by_signature(files: Sequence[NamedPath]) -> dict[str, AnyPath]:
    """Maps the names of signatures to files; a file without a name is "serving_default".

    Raises:
      UsageError: two have the same name.
    """
    paths: dict[str, AnyPath] = {}
    for name, path in files:
        signature = name or SERVING_DEFAULT
        if signature in paths:
            raise UsageError(
                f"{path}: of several files each needs the name of its signature, as "
                f"{path.stem}={path}"
            )
        paths[signature] = path
    return paths
