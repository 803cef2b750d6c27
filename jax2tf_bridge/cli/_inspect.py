"""`jax2tf-bridge inspect`: says what is in a file or a SavedModel."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax2tf_bridge._version import __version__
from jax2tf_bridge.cli._console import Console, printable
from jax2tf_bridge.cli._description import describe
from jax2tf_bridge.cli._directory_text import directory_lines
from jax2tf_bridge.cli._inspect_weights import (
    describe_weights,
    weights_lines,
    weights_page,
)
from jax2tf_bridge.cli._module_texts import ModuleTexts, module_texts
from jax2tf_bridge.cli._orders import stored_functions
from jax2tf_bridge.cli._text import lines
from jax2tf_bridge.cli._usage import check_output
from jax2tf_bridge.cli.html._page import Page, render
from jax2tf_bridge.cli.html._pages import directory_page, file_page
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.inspecting import describe_saved_model, read_saved_model
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.serialization._flatbuffer import Reader
from jax2tf_bridge.serialization.jax_exported._schema import ExportedField
from jax2tf_bridge.serialization.jaxfn._format import HEADER_SIZE, IDENTIFIER, parse_header


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


def _file_contents(path: Path) -> _Read:
    """A function or, if it is none, weights."""
    try:
        return _function(path)
    except FileFormatError:
        with path.open("rb") as file:
            is_jaxfn = file.read(8)[4:] == IDENTIFIER
        facts = None if is_jaxfn else describe_weights(path)
        if facts is None:
            raise
        return facts, (), weights_lines, weights_page


def _function(path: Path) -> _Read:
    record = read_function(path)
    facts = {"file": _file(path), **describe(record)}
    modules = [
        None if module["unreadable"] else function.module.data
        for module, function in zip(facts["modules"], stored_functions(record), strict=True)
    ]
    return facts, modules, lines, file_page


def _directory(path: Path) -> _Read:
    contents = read_saved_model(path)
    facts = describe_saved_model(contents)
    modules = [
        None if module["unreadable"] else contents.modules[module["number"]].module
        for module in facts["modules"]
    ]
    return facts, modules, directory_lines, directory_page


def _file(path: Path) -> dict[str, Any]:
    """The file's own properties."""
    with path.open("rb") as file:
        start, size = file.read(HEADER_SIZE), path.stat().st_size
    if start[4:8] == IDENTIFIER:
        format_name, version = "jaxfn", parse_header(start, size, str(path)).version
    else:
        root = Reader(path.read_bytes(), what="A function exported by JAX", file=str(path)).root()
        format_name = "jax.export"
        version = root.integer(ExportedField.SERIALIZATION_VERSION, "u16")
    return {"path": str(path), "format": format_name, "version": version, "bytes": size}
