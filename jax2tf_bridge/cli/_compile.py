"""`jax2tf-bridge compile`: writes a C library."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from jax2tf_bridge.cli._commands import (
    Command,
    NamedPath,
    UsageError,
    add_functions,
    add_json,
    add_output,
    add_overwrite,
    add_params,
    print_json,
    print_result,
    read_source,
    split_assignment,
)
from jax2tf_bridge.cli._console import Console, get_option_name

_DESCRIPTION = """\
Compiles the signatures of a SavedModel, or functions in files, to a C library that needs neither
Python nor TensorFlow. Needs TensorFlow, not JAX."""

_EXAMPLES = """\
examples:
  jax2tf-bridge compile predict/1 -o predict_lib --sizes b=1 --sizes b=32
  jax2tf-bridge compile predict/1 -o predict_lib --sizes b=1 --shared
  jax2tf-bridge compile predict.jaxfn --params weights.msgpack -o predict_lib --sizes b=1 \\
      --weights separate --target-triple aarch64-unknown-linux-gnu
  jax2tf-bridge compile predict.jaxfn -o predict_lib --open-sizes"""

_ONLY_FIXED: Mapping[str, Any] = {
    **{"sizes": [], "signature": None, "params": None, "weights": "embedded"},
    **{"target_triple": None, "target_cpu": "", "multithreading": False, "shared": False},
}
"""Options of libraries with fixed sizes, and their defaults."""


def _read_sizes(text: str) -> dict[str, int]:
    """Reads VARIABLE=SIZE,VARIABLE=SIZE."""
    try:
        pairs = [split_assignment(each) for each in text.split(",")]
        sizes = {name: int(size) for name, size in pairs}
    except ValueError:
        pairs, sizes = [], {}
    if not sizes or len(sizes) < len(pairs):
        raise argparse.ArgumentTypeError(
            f"expected open sizes and their values, as b=1 or b=1,n=128. Got: {text}"
        )
    return sizes


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_functions(parser, takes_model=True)
    add_output(parser, "DIR", "the folder of the library to write")
    parser.add_argument(
        "--name",
        help="the name of the library, with which its C names begin; by default the name of the "
        "folder without _lib",
    )
    parser.add_argument(
        "--signature",
        action="append",
        metavar="NAME",
        help="a signature to compile; once for each. By default all",
    )
    parser.add_argument(
        "--sizes",
        action="append",
        default=[],
        type=_read_sizes,
        metavar="NAME=SIZE[,NAME=SIZE]",
        help="values of the open sizes to compile for; once for each program. By default the "
        "buckets of the model",
    )
    parser.add_argument(
        "--open-sizes",
        action="store_true",
        help="write a library for any sizes, in C, of one file that export wrote. It needs "
        "TensorFlow's libraries, and compiles each size when it first occurs. --name is by default "
        "the name of the file",
    )
    add_params(parser)
    parser.add_argument(
        "--weights",
        choices=("embedded", "separate"),
        default="embedded",
        help="where the weights are: in the program, or in a file that it maps into memory",
    )
    parser.add_argument(
        "--target-triple",
        metavar="TRIPLE",
        help="the machine that runs the library, as aarch64-unknown-linux-gnu; by default this one",
    )
    parser.add_argument(
        "--target-cpu",
        default="",
        metavar="CPU",
        help="the processor that runs it, as haswell or cortex-a72; by default any of its kind",
    )
    parser.add_argument(
        "--multithreading",
        action="store_true",
        help="use several threads for large products of matrices and convolutions",
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help="build the shared library for this machine, for jax2tf_bridge.load_library",
    )
    add_overwrite(parser)
    add_json(parser)


def _compile(options: argparse.Namespace, console: Console) -> None:
    if options.open_sizes:
        _write_open(options, console)
        return
    source = read_source(options)
    with console.loading("TensorFlow", "compile"):
        from jax2tf_bridge.c_library import compile_library
    with console.step(f"compiling {options.output}"):
        library = compile_library(
            options.output,
            source,
            params=options.params,
            name=options.name,
            signatures=options.signature,
            sizes=options.sizes,
            weights=options.weights,
            target_triple=options.target_triple,
            target_cpu=options.target_cpu,
            multithreading=options.multithreading,
            shared=options.shared,
            overwrite=options.overwrite,
        )
    print_result(options, library)


def _write_open(options: argparse.Namespace, console: Console) -> None:
    refused = [
        get_option_name(name)
        for name, default in _ONLY_FIXED.items()
        if getattr(options, name) != default
    ]
    if refused:
        raise UsageError(
            f"{', '.join(refused)}: --open-sizes writes a library for any sizes, which TensorFlow "
            "compiles where it runs. Remove these options, or --open-sizes"
        )
    files: list[NamedPath] = options.file
    if len(files) > 1 or files[0][0]:
        raise UsageError("--open-sizes takes one file, without NAME=, and writes one function")
    from jax2tf_bridge.c_library import write_open_library

    with console.step(f"writing {options.output}"):
        write_open_library(
            files[0][1], options.output, name=options.name, overwrite=options.overwrite
        )
    if options.json:
        print_json({"path": str(options.output)})
    else:
        print(f"{options.output}: a C library for any sizes. Its README.md says how to build it.")


COMMAND = Command("compile", "write a C library", _DESCRIPTION, _EXAMPLES, _add_options, _compile)
