"""`jax2tf-bridge inspect`: describes a file or a SavedModel."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jax2tf_bridge._utils import printable
from jax2tf_bridge._version import __version__
from jax2tf_bridge.cli._commands import NOT_NEGATIVE, READABLE, Command, check_output, exported_path
from jax2tf_bridge.cli._console import Console
from jax2tf_bridge.cli.inspect._module_texts import module_texts
from jax2tf_bridge.cli.inspect.html import (
    directory_page,
    file_page,
    litert_page,
    render,
    weights_page,
)
from jax2tf_bridge.inspecting import inspect

_DESCRIPTION = """\
Says what is in a .jaxfn file, in one that jax.export wrote, or in a SavedModel: signatures, what
they need, which TensorFlow releases can run it, and what will go wrong. Lists the signatures and
operators of a LiteRT model (.tflite), and the weights in a file of msgpack or safetensors. Needs
neither JAX nor TensorFlow."""

_EXAMPLES = """\
examples:
  jax2tf-bridge inspect predict.jaxfn
  jax2tf-bridge inspect predict.jaxfn --json | jq .tensorflow
  jax2tf-bridge inspect predict/1 --html predict.html
  jax2tf-bridge inspect predict.tflite
  jax2tf-bridge inspect weights.msgpack"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    readable = f"{READABLE}, a LiteRT model, or a file of weights"
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
    """Reads the file or directory, and prints a description or writes a page."""
    console = Console(verbose=options.verbose)
    page_file: Path | None = options.html
    if page_file is not None:
        check_output(page_file, "--html")
    with console.step(f"reading {options.file}"):
        inspection = inspect(options.file)
    if page_file is not None:
        with console.step(f"writing {page_file}"):
            make_page = _PAGES[inspection.kind]
            page = make_page(inspection.as_json(), module_texts(inspection.modules), __version__)
            page_file.write_text(render(page), encoding="utf-8")
        print(printable(f"{page_file}: a page about {options.file}"))
    elif options.json:
        print(json.dumps(inspection.as_json(), indent=2))
    else:
        print(printable(inspection.text(options.ops)))


_PAGES = {
    "SavedModel": directory_page,
    "function": file_page,
    "LiteRT model": litert_page,
    "weights": weights_page,
}


COMMAND = Command("inspect", _DESCRIPTION, _EXAMPLES, _add_options, run)
