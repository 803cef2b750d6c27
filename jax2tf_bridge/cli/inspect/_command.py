"""`jax2tf-bridge inspect`: says what is in a file or a SavedModel."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax2tf_bridge._version import __version__
from jax2tf_bridge.cli._commands import NOT_NEGATIVE, READABLE, Command, check_output, exported_path
from jax2tf_bridge.cli._console import Console, printable
from jax2tf_bridge.cli._function_text import stored_functions
from jax2tf_bridge.cli.inspect._directory_text import directory_lines
from jax2tf_bridge.cli.inspect._functions import describe, function_lines
from jax2tf_bridge.cli.inspect._module_texts import ModuleTexts, module_texts
from jax2tf_bridge.cli.inspect._weights import (
    describe_weights,
    weights_lines,
    weights_page,
)
from jax2tf_bridge.cli.inspect.html._page import Page, render
from jax2tf_bridge.cli.inspect.html._pages import directory_page, file_page
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.inspecting import describe_saved_model, read_saved_model
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.serialization._flatbuffer import Reader
from jax2tf_bridge.serialization.jax_exported._schema import ExportedField
from jax2tf_bridge.serialization.jaxfn._format import HEADER_SIZE, IDENTIFIER, parse_header
from jax2tf_bridge.storage._paths import AnyPath

_DESCRIPTION = """\
Says what is in a .jaxfn file, in one that jax.export wrote, or in a SavedModel: signatures, what
they need, which TensorFlow releases can run it, and what will go wrong. Lists the weights in a file
of msgpack or safetensors. Needs neither JAX nor TensorFlow."""

_EXAMPLES = """\
examples:
  jax2tf-bridge inspect predict.jaxfn
  jax2tf-bridge inspect predict.jaxfn --json | jq .tensorflow
  jax2tf-bridge inspect predict/1 --html predict.html
  jax2tf-bridge inspect weights.msgpack"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    readable = f"{READABLE}, or a file of weights"
    parser.add_argument("file", type=exported_path, metavar="PATH", help=readable)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="all of it as JSON; docs/command-line.md has the schema"
    )
    form.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument(
        "--ops",
        type=NOT_NEGATIVE,
        default=10,
        metavar="N",
        help="show the N commonest ops (default 10)",
    )


def run(options: argparse.Namespace) -> None:
    """Reads the file or directory, and prints what is in it or writes a page about it."""
    console = Console(verbose=options.verbose)
    page_file: Path | None = options.html
    if page_file is not None:
        check_output(page_file, "--html")
    with console.step(f"reading {options.file}"):
        read = _directory if options.file.is_dir() else _file_contents
        facts, modules, text, page = read(options.file)
    if page_file is not None:
        with console.step(f"writing {page_file}"):
            shown = page(facts, module_texts(modules), __version__)
            page_file.write_text(render(shown), encoding="utf-8")
        print(printable(f"{page_file}: a page about {options.file}"))
    elif options.json:
        print(json.dumps(facts, indent=2))
    else:
        print(printable("\n".join(text(facts, options.ops))))


_Facts = dict[str, Any]
_Text = Callable[[Mapping[str, Any], int], Iterator[str]]
_MakePage = Callable[[Mapping[str, Any], ModuleTexts, str], Page]
_Read = tuple[_Facts, Sequence[bytes | memoryview | None], _Text, _MakePage]
"""What is known, the modules that can be read, and what makes a text and a page of it."""


def _file_contents(path: AnyPath) -> _Read:
    """Reads a function or, if it is none, weights."""
    try:
        return _function(path)
    except FileFormatError:
        with path.open("rb") as file:
            is_jaxfn = file.read(8)[4:] == IDENTIFIER
        facts = None if is_jaxfn else describe_weights(path)
        if facts is None:
            raise
        return facts, (), weights_lines, weights_page


def _function(path: AnyPath) -> _Read:
    portable = read_function(path)
    facts = {"file": _file(path), **describe(portable)}
    modules = [
        None if module["unreadable"] else function.module.data
        for module, function in zip(facts["modules"], stored_functions(portable), strict=True)
    ]
    return facts, modules, function_lines, file_page


def _directory(path: AnyPath) -> _Read:
    contents = read_saved_model(path)
    facts = describe_saved_model(contents)
    modules = [
        None if module["unreadable"] else contents.modules[module["number"]].module
        for module in facts["modules"]
    ]
    return facts, modules, directory_lines, directory_page


def _file(path: AnyPath) -> dict[str, Any]:
    """Describes the file itself."""
    with path.open("rb") as file:
        start, size = file.read(HEADER_SIZE), path.stat().st_size
    if start[4:8] == IDENTIFIER:
        format_name, version = "jaxfn", parse_header(start, size, str(path)).version
    else:
        root = Reader(path.read_bytes(), what="A function exported by JAX", file=str(path)).root()
        format_name = "jax.export"
        version = root.integer(ExportedField.SERIALIZATION_VERSION)
    return {"path": str(path), "format": format_name, "version": version, "bytes": size}


COMMAND = Command("inspect", _DESCRIPTION, _EXAMPLES, _add_options, run)
